# SPDX-License-Identifier: Apache-2.0
"""Which launches ncu shall profile, so that those of one line are among them.

ncu counts the launches whose kernel has one of some names. Other lines may launch kernels of the same names,
so a window of this sequence is profiled, one step long, and its launches are matched with the recorded ones.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from difflib import get_close_matches

import numpy as np
import numpy.typing as npt

from profiling_lab.analysis.lines import lines, needs_operations, needs_stacks
from profiling_lab.analysis.lines_groups import Label, groups
from profiling_lab.analysis.ncu.report import function_name
from profiling_lab.errors import NotEnoughDataError, UsageError
from profiling_lab.records import dataclass
from profiling_lab.trace.columns import OperationKind, unique
from profiling_lab.trace.ownership import Ownership
from profiling_lab.trace.phases import LINE_PHASES
from profiling_lab.trace.step_windows import step_windows
from profiling_lab.trace.trace import Trace

Signature = tuple[str, tuple[int, ...], tuple[int, ...]]
"""the kernel's name alone, its grid and its block; these are () where the file does not say them"""
_SHOWN = 5
_LINE = re.compile(r"(?P<file>.+):(?P<line>\d+)")
PHASES = ("forward", "backward", "recompute", "optimizer")


@dataclass(frozen=True, slots=True)
class Recorded:
    """One launch of the sequence that ncu counts."""

    signature: Signature
    phase: str
    """of the line that is asked for; '' for a launch of another line"""
    ns: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What to profile, and what the recording knows of it."""

    file: str
    line: int
    function: str
    names: tuple[str, ...]
    """of the kernels that the line launched, without parameters"""
    launches: tuple[Recorded, ...]
    """all recorded launches with these names, in order"""
    skip: int
    count: int

    @property
    def name_pattern(self) -> str:
        """For ncu's --kernel-name."""
        return f"regex:^({'|'.join(re.sub(r'[^A-Za-z0-9_]', '.', name) for name in self.names)})$"

    @property
    def kernels(self) -> str:
        """The first names, for messages."""
        more = len(self.names) - _SHOWN
        return ", ".join(self.names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")

    @property
    def window(self) -> tuple[Recorded, ...]:
        return self.launches[self.skip : self.skip + self.count]

    def phase_ns(self, phase: str) -> int:
        """Recorded GPU time of the line in this phase."""
        return sum(each.ns for each in self.launches if each.phase == phase)


def plan(
    trace: Trace, line: str, own: tuple[str, ...] = (), phase: str = "all", most: int | None = None
) -> Plan:
    """line: `model.py:87`, with as much of the path as makes it unique. most: the most launches to profile.

    The window begins with the line's first launch in the second step with one (the first may compile and
    choose algorithms), and is one step long. Raises UsageError if the recording has no such line,
    NotEnoughDataError if it launched no kernel.
    """
    needs_operations(trace)
    needs_stacks(trace)
    operations, found = trace.operations, trace.attribution
    grouped = groups(trace, "line", trace.stacks.own_rows(Ownership(own)))
    number, key = _find(trace, grouped.labels, line, own)
    of_line = (grouped.label == number) & (operations.kind == OperationKind.KERNEL)
    if phase != "all":
        of_line &= found.line_phase == LINE_PHASES.index(phase)
    if not of_line.any():
        within = "" if phase == "all" else f" in {phase}"
        raise NotEnoughDataError(f"{key} launched no kernel{within} that is in the recording")
    processes = unique(operations.process[of_line])
    if len(processes) > 1:
        raise UsageError(f"{key} launched kernels in {len(processes)} processes: --rank selects one")
    short = [function_name(name) for name in operations.names]
    names = tuple(dict.fromkeys(short[i] for i in operations.name[of_line].tolist()))
    named = np.isin(operations.name, [i for i, name in enumerate(short) if name in names])
    rows = np.flatnonzero(
        named & (operations.kind == OperationKind.KERNEL) & (operations.process == processes[0])
    )
    launched = np.where(
        found.call >= 0, np.append(trace.calls.start_ns, np.int64(0))[found.call], operations.start_ns
    )
    rows = rows[np.lexsort((operations.start_ns[rows], launched[rows]))]
    shapes = trace.launch_shapes
    launches = []
    for row in rows.tolist():
        shape = None if shapes is None or shapes.number[row] < 0 else shapes.shapes[shapes.number[row]]
        launches.append(
            Recorded(
                (
                    short[operations.name[row]],
                    () if shape is None else tuple(shape.grid),
                    () if shape is None else tuple(shape.block),
                ),
                LINE_PHASES[found.line_phase[row]] if of_line[row] else "",
                int(operations.duration_ns[row]),
            )
        )
    label = grouped.labels[number]
    begin, end = _window(trace, int(processes[0]), launched[rows], of_line[rows])
    count = end - begin if most is None else min(most, end - begin)
    return Plan(label.file, label.line, label.function, names, tuple(launches), begin, count)


def _window(
    trace: Trace, process: int, launched: npt.NDArray[np.int64], of_line: npt.NDArray[np.bool_]
) -> tuple[int, int]:
    """The first and the last plus one of the sequence: from the line's first launch in a step to the first in
    the next one, so that every kernel of a step is in it wherever the program's own first launch was.
    """
    steps = step_windows(trace)
    mine = np.flatnonzero(steps.process == process)
    at = launched[of_line]
    step = np.searchsorted(steps.host_start_ns[mine], at, side="right") - 1
    inside = step >= 0
    inside[inside] &= at[inside] < steps.host_end_ns[mine][step[inside]]
    place = np.flatnonzero(of_line)
    _, first = np.unique(step[inside], return_index=True)
    starts = place[inside][first].tolist()
    if not starts:  # no step has one
        return int(place[0]), int(place[-1]) + 1
    chosen = min(1, max(len(starts) - 2, 0))  # the second, if another one follows
    end = starts[chosen + 1] if chosen + 1 < len(starts) else int(place[-1]) + 1
    return starts[chosen], end


def _find(trace: Trace, labels: Sequence[Label], text: str, own: tuple[str, ...]) -> tuple[int, str]:
    match = _LINE.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"expected a line such as model.py:87, not {text!r}")
    file, line = os.path.normpath(match["file"]), int(match["line"])
    here = [i for i, each in enumerate(labels) if each.line == line and _is_file(each.file, file)]
    if len(here) == 1:
        return here[0], f"{labels[here[0]].file}:{line}"
    if here:
        files = ", ".join(sorted(f"{labels[i].file}:{line}" for i in here))
        raise UsageError(f"{text} is several lines of the recording: {files}; give more of the path")
    hottest = [f"{row.file}:{row.line}" for row in lines(trace, own=own, limit=_SHOWN).rows if row.line]
    every = [f"{each.file}:{each.line}" for each in labels if each.line]
    same_file = [name for name in hottest if _is_file(name.rpartition(":")[0], file)]
    near = same_file[:3] or get_close_matches(text, every, n=1, cutoff=0.6) or hottest[:3]
    raise UsageError(
        f"no line {text} of your code launched anything; did you mean {' or '.join(near)}?"
        if near
        else f"no line {text} of your code launched anything, and no other one did"
    )


def _is_file(file: str, given: str) -> bool:
    return file == given or file.endswith(f"/{given}")
