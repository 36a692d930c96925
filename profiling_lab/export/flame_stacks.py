# SPDX-License-Identifier: Apache-2.0
"""The data of flame graphs: stacks from the outermost frame to the kernel, with their GPU time; or sampled
stacks of the host, with host time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from profiling_lab.analysis.flame import stack_times
from profiling_lab.analysis.lines_host import host_stacks
from profiling_lab.trace import Trace
from profiling_lab.trace.ownership import Ownership


class FlameFrame(NamedTuple):
    """One box: a Python frame, or a kernel or the reason for a missing frame (`file` is '', `line` 0)."""

    name: str
    file: str
    line: int


class FlameStack(NamedTuple):
    """The time of one stack in one profile."""

    profile: tuple[int, str]
    """its place in the order, and its name: a phase of GPU time, or a thread of the host"""
    frames: tuple[FlameFrame, ...]
    """outermost first; the last one of GPU time is a kernel or a kind of copy"""
    ns: int


def flame_stacks(trace: Trace, own: tuple[str, ...] = (), *, own_only: bool = False) -> Iterator[FlameStack]:
    """Every stack; they sum to the GPU time of the trace. `own_only`: without the frames of libraries.

    Raises NotEnoughDataError for a trace without GPU operations. Without stacks there are only kernels.
    """
    own_row = trace.stacks.own_rows(Ownership(own))
    for time in stack_times(trace, own_row, all_frames=not own_only, by_kernel=True):
        frames = [FlameFrame(f.function, f.file, f.line) for f in reversed(time.frames)]
        if not frames:
            frames = [FlameFrame(f"({time.reason})", "", 0)]
        profile = (int(time.phase), time.phase.name.lower())
        yield FlameStack(profile, (*frames, FlameFrame(time.kernel, "", 0)), time.ns)


def host_flame_stacks(
    trace: Trace, own: tuple[str, ...] = (), *, own_only: bool = False
) -> Iterator[FlameStack]:
    """Every sampled stack; they sum to the samples times the period. Raises what `host_stacks` raises."""
    for stack in host_stacks(trace, own, own_only=own_only):
        frames = [FlameFrame(f.function, f.file, f.line) for f in reversed(stack.frames)]
        frames = frames or [FlameFrame("(no frame in your code)", "", 0)]
        yield FlameStack((stack.number, stack.thread), tuple(frames), stack.ns)
