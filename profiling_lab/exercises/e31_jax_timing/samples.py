# SPDX-License-Identifier: Apache-2.0
"""What the samples of a JAX program say: which line compiles, and which line waits for the computation."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path, PurePath

from profiling_lab.analysis.lines_host import host_lines, host_stacks
from profiling_lab.exercises.suspects import Suspect
from profiling_lab.trace import Trace
from profiling_lab.trace.ownership import Ownership
from profiling_lab.trace.stacks import Frame

LOOP = "train"
"""the function whose loop runs the steps"""
JAX = "/jax/"
ARRAYS = "/jax/_src/array.py"
"""where JAX makes a value of an array, for which it must be computed"""
LEAST_COMPILING_FRAC = 0.4
"""of the time of the loop: the starter has twice that, the repaired program far less"""


@dataclass(slots=True)
class _Line:
    frame: Frame
    ns: int = 0
    names: dict[str, float] = field(default_factory=dict)
    """the functions of JAX that were running, with their time"""


@dataclass(slots=True)
class JaxTime:
    """Time by line of the program, innermost frame of the user."""

    loop_ns: int = 0
    """in the loop, with all that it calls"""
    compiling: dict[tuple[str, int], _Line] = field(default_factory=dict)
    waiting: dict[tuple[str, int], _Line] = field(default_factory=dict)

    @property
    def compiling_ns(self) -> int:
        """of the loop"""
        return sum(each.ns for each in self.compiling.values())


def jax_time(trace: Trace) -> JaxTime:
    """Of the lines of the loop, and of what it calls."""
    found, own = JaxTime(), Ownership()
    for stack in host_stacks(trace):
        mine = [number for number, frame in enumerate(stack.frames) if own.is_own(frame.file)]
        if not any(stack.frames[number].function == LOOP for number in mine):
            continue
        found.loop_ns += stack.ns
        libraries, line = stack.frames[: mine[0]], stack.frames[mine[0]]
        inside = [frame for frame in libraries if JAX in frame.file]
        if not inside:
            continue
        if any("compile" in frame.function for frame in inside):
            lines = found.compiling
        elif inside[0].file.endswith(ARRAYS) or any(f.function == "block_until_ready" for f in inside):
            lines = found.waiting
        else:
            continue
        of_line = lines.setdefault((line.file, line.line), _Line(line))
        of_line.ns += stack.ns
        name = inside[0].function
        of_line.names[name] = of_line.names.get(name, 0.0) + stack.ns
    return found


def _suspects(trace: Trace, lines: dict[tuple[str, int], _Line]) -> list[Suspect]:
    """The effect is the line's share in `lines --host`."""
    shares = {(row.file, row.line): 100 * row.share_frac for row in host_lines(trace).rows}
    found = [
        Suspect(
            PurePath(each.frame.file).name,
            each.frame.line,
            each.frame.function,
            float(each.ns),
            shares.get(place, 0.0),
            each.names,
        )
        for place, each in lines.items()
    ]
    return sorted(found, key=lambda each: (-each.weight, each.file, each.line))


def compiling_lines(trace: Trace) -> list[Suspect]:
    """The lines of the loop that compile, the longest first; none if the loop does something else."""
    found = jax_time(trace)
    if found.compiling_ns < LEAST_COMPILING_FRAC * found.loop_ns:
        return []
    return _suspects(trace, found.compiling)


def waiting_lines(path: Path) -> list[Suspect]:
    """The lines of the loop that wait until something is computed, the longest first. Raises LabError."""
    with Trace.open(path) as trace:
        return _suspects(trace, jax_time(trace).waiting)


def compiling_ns(path: Path) -> int | None:
    """The time in the loop in which JAX compiles; None if the loop is not in the recording. Raises
    LabError.
    """
    with Trace.open(path) as trace:
        found = jax_time(trace)
    return found.compiling_ns if found.loop_ns else None
