# SPDX-License-Identifier: Apache-2.0
"""Who made each allocation: its Python stack, in backward that of the forward line, and its phase.

The autograd engine's own threads have no Python frames. An allocation without frames belongs to the launch
that follows it: an operator allocates its result and launches the kernel that writes it. That launch is
linked with its forward line, like every launch in backward.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from profiling_lab.analysis.memory.replay import BEFORE, Replay
from profiling_lab.analysis.places import call_stacks
from profiling_lab.records import dataclass
from profiling_lab.trace.columns import I32, I64, U8, Trait, full
from profiling_lab.trace.phases import LinePhase
from profiling_lab.trace.stacks import Stacks
from profiling_lab.trace.trace import Trace

LAUNCH_FOLLOWS_NS = 500_000
"""an allocation without frames and its launch are at most this far apart"""
CLOCKS_DIFFER_NS = 2_000
"""times of allocations are whole microseconds, and a launch that began within this before may be theirs"""
_CHECKPOINT = "torch/utils/checkpoint.py"
_AGAIN = ("unpack_hook", "recompute_fn", "backward")
_FUNCTION = "torch/autograd/function.py"


@dataclass(frozen=True, slots=True)
class Backwards:
    """Times on the host in which backward launched, in order; they do not overlap."""

    start_ns: I64
    end_ns: I64


@dataclass(frozen=True, slots=True)
class Owners:
    """One row per allocation."""

    stack: I32
    """row of the trace's stacks, 0 if unknown"""
    phase: U8
    """LinePhase; UNKNOWN without a sign"""
    is_linked: npt.NDArray[np.bool_]
    """the stack is that of the launch that followed"""
    begin_ns: I64
    """the history's first time for what is older"""
    end_ns: I64
    """int64's maximum for what is alive at the end"""


def backwards(trace: Trace, process: int) -> Backwards:
    """Runs of backward launches of a process, without any other launch between them."""
    calls = trace.calls
    rows = np.flatnonzero((calls.process == process) & _launches(trace))
    rows = rows[np.argsort(calls.start_ns[rows], kind="stable")]
    backward = np.concatenate([[False], (calls.traits[rows] & Trait.IS_BACKWARD) > 0, [False]])
    first = np.flatnonzero(backward[1:] & ~backward[:-1])
    last = np.flatnonzero(~backward[1:] & backward[:-1]) - 1
    return Backwards(calls.start_ns[rows[first]], calls.end_ns[rows[last]])


def _launches(trace: Trace) -> npt.NDArray[np.bool_]:
    """Per call, whether it launched something on the GPU."""
    out = np.zeros(len(trace.calls), dtype=bool)
    if len(trace.operations):
        call = trace.attribution.call
        out[call[call >= 0]] = True
    return out


def owners(trace: Trace, replayed: Replay) -> Owners:
    """Stack, phase and times of each allocation of a history."""
    history, made = replayed.history, replayed.allocations
    times = history.time_ns
    begin = np.where(made.begin == BEFORE, times[:1].sum(), np.append(times, 0)[made.begin])
    end = np.append(times, np.iinfo(np.int64).max)[made.end]
    stack, linked = made.stack.copy(), np.zeros(len(made), dtype=bool)
    phase = _phases(trace.stacks, stack)
    phase[made.begin == BEFORE] = LinePhase.UNKNOWN
    if len(trace.operations):
        without = np.flatnonzero((stack == 0) & (made.begin != BEFORE))
        found, in_backward = _following(trace, history.process, begin[without])
        linked[without], stack[without] = found > 0, found
        phase[without[in_backward]] = LinePhase.BACKWARD
        spans = backwards(trace, history.process)
        at = np.searchsorted(spans.start_ns, begin, "right") - 1
        inside = (at >= 0) & (begin <= np.append(spans.end_ns, 0)[at])
        own = (made.stack > 0) & inside & (phase == LinePhase.FORWARD)
        phase[own & _on_engine_thread(trace.stacks)[made.stack]] = LinePhase.BACKWARD
    return Owners(stack, phase, linked, begin, end)


def _phases(stacks: Stacks, stack: I32) -> U8:
    """The phases that the frames themselves tell."""
    of_stack = full(len(stacks), LinePhase.FORWARD, np.uint8)
    is_function = np.array([frame.file.endswith(_FUNCTION) for frame in stacks.frames] or [False], dtype=bool)
    of_stack[stacks.called_by_engine()] = LinePhase.BACKWARD
    # An autograd.Function in forward has frames above `apply`.
    of_stack[is_function[stacks.frame[_roots(stacks)]]] = LinePhase.BACKWARD
    of_stack[stacks.passes_through((_CHECKPOINT,), _AGAIN) > 0] = LinePhase.RECOMPUTE
    of_stack[stacks.optimizes()] = LinePhase.OPTIMIZER
    of_stack[0] = LinePhase.UNKNOWN
    return of_stack[stack]


def _roots(stacks: Stacks) -> I32:
    """Per stack the row of its outermost frame."""
    root = np.where(stacks.parent == 0, np.arange(len(stacks)), stacks.parent).astype(np.int32)
    while True:
        above = root[root]
        if np.array_equal(above, root):
            return root
        root = above


def _on_engine_thread(stacks: Stacks) -> npt.NDArray[np.bool_]:
    """Per stack, whether its outermost frame is torch's: the engine called Python on its own thread."""
    torch = np.array(["torch/" in frame.file for frame in stacks.frames] or [False], dtype=bool)
    out = torch[stacks.frame[_roots(stacks)]]
    out[0] = False
    return np.asarray(out)


def _following(trace: Trace, process: int, times: I64) -> tuple[I32, npt.NDArray[np.bool_]]:
    """For times of allocations: the stack of the backward launch that follows, 0 if it has none, and whether
    one follows."""
    calls = trace.calls
    backward = (calls.traits & Trait.IS_BACKWARD) > 0
    rows = np.flatnonzero((calls.process == process) & backward & _launches(trace))
    rows = rows[np.argsort(calls.start_ns[rows], kind="stable")]
    if not len(rows):
        return full(len(times), 0, np.int32), np.zeros(len(times), dtype=bool)
    starts = calls.start_ns[rows]
    at = np.searchsorted(starts, times - CLOCKS_DIFFER_NS, "left")
    follows = at < len(rows)
    at = np.minimum(at, len(rows) - 1)
    follows &= starts[at] - times <= LAUNCH_FOLLOWS_NS
    return np.where(follows, call_stacks(trace)[rows[at]], 0).astype(np.int32), follows
