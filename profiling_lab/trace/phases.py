# SPDX-License-Identifier: Apache-2.0
"""What each GPU operation was for: forward, backward, forward once more for backward, or the optimizer."""

from __future__ import annotations

import re
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from profiling_lab import _analysis
from profiling_lab.trace.columns import I32, U8, Calls, Evaluates, Ranges
from profiling_lab.trace.stacks import Stacks

# Timestamps of nested ranges may bleed past each other by less than this.
BLEED_NS = 1000

# torch puts these ranges around every step (emit_nvtx, torch.profiler): `Optimizer.step#AdamW.step`.
_OPTIMIZER_RANGE = re.compile(r"^Optimizer\.(step|zero_grad)#")
# The node of the checkpoint that saves its inputs (use_reentrant=True): all that runs in it and in no node
# of its own is forward. The other kind has no node; its frames tell it.
_CHECKPOINT_NODE = re.compile(r"(^|[: ])CheckpointFunctionBackward$")


class Phase(IntEnum):
    """How a launch came about: `FORWARD` is everything outside of backward, the optimizer and copies too."""

    FORWARD = 0
    BACKWARD = 1
    UNKNOWN = 2
    """the launching call was not recorded"""


class LinePhase(IntEnum):
    """The phases that `lines` tells apart: Phase, with two parts of it on their own."""

    FORWARD = 0
    """everything that is none of the others: copies of inputs and clipping of gradients too"""
    BACKWARD = 1
    RECOMPUTE = 2
    """forward run again inside of backward, under activation checkpointing"""
    OPTIMIZER = 3
    """steps of an optimizer, and its zero_grad"""
    UNKNOWN = 4
    """the launching call was not recorded"""


LINE_PHASES = tuple(phase.name.lower() for phase in LinePhase)


def line_phases(phase: U8, call: I32, calls: Calls, ranges: Ranges, stacks: Stacks, link: str) -> U8:
    """LinePhase per operation, of its Phase and its launching call (-1: none); `link` as in Attribution."""
    own_stack = np.append(calls.stack, np.int32(0))[call]  # -1 looks up the last: no stack
    backward = phase == Phase.BACKWARD
    out = np.full(len(phase), LinePhase.FORWARD, dtype=np.uint8)
    out[backward] = LinePhase.BACKWARD
    again = np.append(_in_checkpoint_node(calls, ranges, link), False)[call] | stacks.recomputes()[own_stack]
    out[backward & again] = LinePhase.RECOMPUTE
    # Where a call has a stack of its own, that knows better than a range: a closure runs inside of the step.
    in_range = np.append(_inside(_OPTIMIZER_RANGE, calls, ranges), False)[call]
    out[stacks.optimizes()[own_stack] | (in_range & (own_stack == 0) & ~backward)] = LinePhase.OPTIMIZER
    out[phase == Phase.UNKNOWN] = LinePhase.UNKNOWN
    return out


def _in_checkpoint_node(calls: Calls, ranges: Ranges, link: str) -> npt.NDArray[np.bool_]:
    """Per call, whether the node that was being evaluated is the checkpoint's own."""
    by_node = _matching(calls.node_names, _CHECKPOINT_NODE)[calls.node_name]
    if link != "ranges":
        return by_node
    evaluates = ranges.evaluates != Evaluates.NOTHING
    return by_node | _inside(_CHECKPOINT_NODE, calls, ranges, among=evaluates)


def _inside(
    wanted: re.Pattern[str], calls: Calls, ranges: Ranges, among: npt.NDArray[np.bool_] | None = None
) -> npt.NDArray[np.bool_]:
    """Per call, whether it lies in a range of that name; `among`: whether the innermost of these has it."""
    hit = _matching(ranges.names, wanted)[ranges.name]
    if not hit.any():
        return np.zeros(len(calls), dtype=bool)
    rows = np.flatnonzero(ranges.domain == 0)
    times = (ranges.start_ns[rows], ranges.end_ns[rows], ranges.thread[rows])
    parent, innermost, _ = _analysis.contain(*times, calls.start_ns, calls.thread, BLEED_NS)
    marks = hit[rows] if among is None else among[rows] | hit[rows]
    nearest = np.append(_analysis.nearest_marked(parent, marks.astype(np.uint8)), np.int32(-1))[innermost]
    return np.append(hit[rows], False)[nearest]


def _matching(names: tuple[str, ...], wanted: re.Pattern[str]) -> npt.NDArray[np.bool_]:
    """Per name, and False for the row -1 behind the last."""
    return np.array([*(bool(wanted.search(name)) for name in names), False], dtype=bool)
