# SPDX-License-Identifier: Apache-2.0
"""torch.profiler's own arrows from forward operators to their backward: a second opinion on the link."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from profiling_lab.trace.chrome_events import ChromeEvents, Table
from profiling_lab.trace.columns import I32, I64, full


@dataclass(frozen=True, slots=True)
class FlowAgreement:
    """How many arrows there are, and what they say of the operators that sequence numbers join."""

    arrows: int
    """with a beginning and an end at an operator that has a sequence number"""
    agree: int
    """name the operator that the link by sequence number names too"""
    loose: int
    """arrows without such operators at both ends"""


def flow_agreement(events: ChromeEvents) -> FlowAgreement:
    """Compare each arrow with the rule that joins backward with forward: of the operators outside of backward
    with the same number the one that started last before it.
    """
    flows, operators = events.flows, events["operators"]
    begins, ends = flows["is_end"] == 0, flows["is_end"] == 1
    from_row, to_row = _matched(flows["id"][begins], flows["id"][ends])
    source = _operators_at(operators, flows["thread"][begins], flows["time_ns"][begins])[from_row]
    target = _operators_at(operators, flows["thread"][ends], flows["time_ns"][ends])[to_row]
    whole = (source >= 0) & (target >= 0)
    source, target = source[whole], target[whole]
    agree = source == _forward_of(operators, target)
    return FlowAgreement(int(whole.sum()), int(agree.sum()), int(max(begins.sum(), ends.sum()) - whole.sum()))


def _matched(begin_id: I64, end_id: I64) -> tuple[I64, I64]:
    """Rows of beginnings and ends with one id, of the ends with the same id the first."""
    ids, first = np.unique(end_id, return_index=True)
    if not len(ids):
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    at = np.minimum(np.searchsorted(ids, begin_id), len(ids) - 1)
    found = np.flatnonzero(ids[at] == begin_id)
    return found, first[at[found]]


def _operators_at(operators: Table, thread: I32, time_ns: I64) -> I32:
    """The operator with a sequence number that starts here, the innermost one; -1 none."""
    rows = np.flatnonzero(operators["sequence"] >= 0)
    keys = pa.table({"thread": operators["thread"][rows], "time": operators["start_ns"][rows], "row": rows})
    return _looked_up(keys, {"thread": thread, "time": time_ns})


def _looked_up(keys: pa.Table, wanted: dict[str, np.ndarray]) -> I32:
    """Per wanted key the largest row with it, -1 where there is none."""
    columns = list(wanted)
    largest = keys.group_by(columns).aggregate([("row", "max")])
    asked = pa.table({**wanted, "at": np.arange(len(next(iter(wanted.values()))))})
    found = asked.join(largest, columns)
    out = full(len(asked), -1, np.int32)
    rows = found.column("row_max").fill_null(-1).to_numpy()
    out[found.column("at").to_numpy()] = rows
    return out


def _forward_of(operators: Table, backward: I32) -> I32:
    """Per backward operator the forward one by the rule, -1 where there is none."""
    is_forward = (operators["sequence"] >= 0) & (operators["forward_thread"] <= 0)
    rows = np.flatnonzero(is_forward)
    order = rows[np.lexsort((operators["start_ns"][rows], operators["sequence"][rows]))]
    sequence, start_ns = operators["sequence"], operators["start_ns"]
    out = full(len(backward), -1, np.int32)
    if not len(order):
        return out
    # One key for (sequence, start): sequences are ranked densely, starts ranked over all.
    ranks = np.argsort(np.argsort(start_ns, kind="stable"), kind="stable").astype(np.int64)
    distinct = np.unique(sequence[order])
    at = np.minimum(np.searchsorted(distinct, sequence[backward]), len(distinct) - 1)
    known = distinct[at] == sequence[backward]
    size = np.int64(len(start_ns) + 1)
    keys = np.searchsorted(distinct, sequence[order]) * size + ranks[order]
    place = np.searchsorted(keys, at * size + ranks[backward]) - 1
    candidate = order[np.maximum(place, 0)]
    found = known & (place >= 0) & (sequence[candidate] == sequence[backward])
    out[found] = candidate[found]
    return out
