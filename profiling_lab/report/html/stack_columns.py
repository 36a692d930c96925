# SPDX-License-Identifier: Apache-2.0
"""Trees of Python stacks as a page holds them: columns, with the time of each stack by phase or by thread."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from profiling_lab.analysis.lines_host import host_stacks
from profiling_lab.errors import NotEnoughDataError
from profiling_lab.report.html.packing import Packer
from profiling_lab.trace import Trace
from profiling_lab.trace.columns import I32
from profiling_lab.trace.ownership import Ownership
from profiling_lab.trace.stacks import StackBuilder, Stacks

THREADS_AT_MOST = 16
"""threads of the host that have a time of their own; the others share one"""
OTHER_THREADS = "other threads"


def stack_columns(
    packer: Packer,
    stacks: Stacks,
    used: npt.NDArray[np.intp],
    own_row: I32,
    self_ns: Mapping[str, npt.ArrayLike],
) -> dict[str, Any]:
    """The rows `used` of a tree, row 0 first; self_ns: per name the time of each of them without its callees.

    own_row: see Stacks.own_rows.
    """
    column = packer.column
    number = np.zeros(len(stacks), dtype=np.int32)
    number[used] = np.arange(len(used))
    frames, frame_number = np.unique(stacks.frame[used[1:]], return_inverse=True)
    shown = [stacks.frames[i] for i in frames.tolist()]
    functions, files = _Strings([f.function for f in shown]), _Strings([f.file for f in shown])
    return {
        "parent": column(number[stacks.parent[used]]),
        "frame": column(np.concatenate([[0], frame_number])),
        "own": column(own_row[used] == used),
        "self_ns": {name: column(values) for name, values in self_ns.items()},
        "frames": {
            "function": column(functions.number),
            "file": column(files.number),
            "line": column([max(0, f.line) for f in shown]),
        },
        "functions": functions.distinct,
        "files": files.distinct,
    }


def host_stack_columns(packer: Packer, trace: Trace, own: tuple[str, ...]) -> dict[str, Any] | None:
    """The sampled stacks with their time by thread; None where there are no samples."""
    try:
        sampled = list(host_stacks(trace, own))
    except NotEnoughDataError:
        return None
    total: Counter[int] = Counter()
    for each in sampled:
        total[each.number] += each.ns
    alone = [number for number, _ in total.most_common(THREADS_AT_MOST)]
    builder = StackBuilder()
    times: dict[str, Counter[int]] = {}
    names = {each.number: each.thread for each in sampled}
    for number in alone:
        times[names[number]] = Counter()
    for each in sampled:
        name = each.thread if each.number in alone else OTHER_THREADS
        times.setdefault(name, Counter())[builder.add(each.frames)] += each.ns
    stacks = builder.build()
    columns = {}
    for name, counted in times.items():
        columns[name] = np.zeros(len(stacks), dtype=np.int64)
        columns[name][list(counted)] = list(counted.values())
    used = np.arange(len(stacks))
    return stack_columns(packer, stacks, used, stacks.own_rows(Ownership(own)), columns)


class _Strings:
    def __init__(self, values: list[str]) -> None:
        numbers = {value: i for i, value in enumerate(dict.fromkeys(values))}
        self.distinct = list(numbers)
        self.number = [numbers[value] for value in values]
