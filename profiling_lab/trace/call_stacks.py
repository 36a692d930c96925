# SPDX-License-Identifier: Apache-2.0
"""The input and the result of the readers of Python stacks, for every format."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from profiling_lab.records import dataclass
from profiling_lab.trace.columns import I32, I64, NO_SEQUENCE, Calls, full
from profiling_lab.trace.stacks import Stacks

EXACT_LINES = "torch.profiler call stacks"
FUNCTION_LINES = "torch.profiler Python functions"
HLO_LINES = "HLO metadata"


@dataclass(frozen=True, slots=True)
class CallRows:
    """All rows of the call table, including the extra rows that only contain a call chain."""

    start_ns: I64
    end_ns: I64
    process: I32
    thread: I32
    correlation: I64
    is_call: npt.NDArray[np.bool_]
    chain: I64


@dataclass(frozen=True, slots=True)
class StacksFound:
    """The origin of the Python stacks of a file, and how many could not be used."""

    form: str
    """'recorder', 'nsys', 'call chains', EXACT_LINES, FUNCTION_LINES, HLO_LINES, or '' if there are none"""
    recorded: int
    """recorded stacks, including those that could not be read or matched with a call"""
    without_payload: int
    """stacks whose frames are missing in the export"""
    without_call: int
    """stacks or launch records whose call is not in the file"""


@dataclass(frozen=True, slots=True)
class CallTable:
    """The calls of a file with their Python stacks."""

    calls: Calls
    stacks: Stacks
    found: StacksFound


@dataclass(frozen=True, slots=True)
class CallFacts:
    """Per call (not per table row): its stack and its autograd data, as in `Calls`."""

    stack: I32
    next_sequence: I64
    node_sequence: I64
    counter: I32
    node_counter: I32
    node_name: I32
    in_engine: npt.NDArray[np.bool_]
    """the native call chain passes through the autograd engine"""
    own_ns: I64
    node_names: tuple[str, ...] = ()


def unknown_facts(calls: int) -> CallFacts:
    """CallFacts with unknown values, which a reader fills in."""
    return CallFacts(
        stack=full(calls, 0, np.int32),
        next_sequence=full(calls, NO_SEQUENCE),
        node_sequence=full(calls, NO_SEQUENCE),
        counter=full(calls, -1, np.int32),
        node_counter=full(calls, -1, np.int32),
        node_name=full(calls, -1, np.int32),
        in_engine=np.zeros(calls, dtype=bool),
        own_ns=full(calls, -1),
    )


def rows_by_id(ids: I64, first: int = 0) -> Callable[..., I32]:
    """A function from ids to row numbers (counted from `first`); `missing` for unknown ids."""
    order = np.argsort(ids, kind="stable")
    ordered = ids[order]

    def rows(wanted: I64, missing: int = 0) -> I32:
        if not len(ordered):
            return full(len(wanted), missing, np.int32)
        at = np.minimum(np.searchsorted(ordered, wanted), len(ordered) - 1)
        return np.where(ordered[at] == wanted, order[at] + first, missing).astype(np.int32)

    return rows
