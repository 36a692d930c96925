# SPDX-License-Identifier: Apache-2.0
"""What each GPU operation was for: forward, backward, forward once more for backward, or the optimizer."""

from __future__ import annotations

import re
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from profiling_lab import _analysis
from profiling_lab.trace.attribution import BLEED_NS, Phase
from profiling_lab.trace.columns import U8, Evaluates
from profiling_lab.trace.trace import Trace

# torch puts these ranges around every step (emit_nvtx, torch.profiler): `Optimizer.step#AdamW.step`.
_OPTIMIZER_RANGE = re.compile(r"^Optimizer\.(step|zero_grad)#")
# The node of the checkpoint that saves its inputs (use_reentrant=True): all that runs in it and in no node
# of its own is forward. The other kind has no node; its frames tell it.
_CHECKPOINT_NODE = re.compile(r"(^|[: ])CheckpointFunctionBackward$")


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


def line_phases(trace: Trace) -> U8:
    """LinePhase per operation. Raises NotEnoughDataError in a trace without operations."""
    found, stacks = trace.attribution, trace.stacks
    own_stack = np.append(trace.calls.stack, np.int32(0))[found.call]  # -1 looks up the last: no stack
    backward = found.phase == Phase.BACKWARD
    phase = np.full(len(backward), LinePhase.FORWARD, dtype=np.uint8)
    phase[backward] = LinePhase.BACKWARD
    phase[backward & (stacks.recomputes()[own_stack] | _in_checkpoint_node(trace))] = LinePhase.RECOMPUTE
    # Where a call has a stack that shows the program's own frames, these know better than a range.
    in_range = (own_stack == 0) & _inside(trace, _OPTIMIZER_RANGE) & ~backward
    phase[stacks.optimizes()[own_stack] | in_range] = LinePhase.OPTIMIZER
    phase[found.phase == Phase.UNKNOWN] = LinePhase.UNKNOWN
    return phase


def _in_checkpoint_node(trace: Trace) -> npt.NDArray[np.bool_]:
    """Per operation, whether the node that was being evaluated is the checkpoint's own."""
    calls = trace.calls
    is_checkpoint = _matching(calls.node_names, _CHECKPOINT_NODE)
    by_node = np.append(is_checkpoint[calls.node_name], False)[trace.attribution.call]
    if trace.attribution.link != "ranges":
        return by_node
    evaluates = trace.ranges.evaluates != Evaluates.NOTHING
    return by_node | _inside(trace, _CHECKPOINT_NODE, among=evaluates)


def _inside(
    trace: Trace, wanted: re.Pattern[str], among: npt.NDArray[np.bool_] | None = None
) -> npt.NDArray[np.bool_]:
    """Per operation, whether its launch lies in a range of that name; `among`: the innermost of these has it."""
    ranges, calls = trace.ranges, trace.calls
    hit = _matching(ranges.names, wanted)[ranges.name]
    if not hit.any():
        return np.zeros(len(trace.operations), dtype=bool)
    rows = np.flatnonzero(ranges.domain == 0)
    parent, innermost, _ = _analysis.contain(
        ranges.start_ns[rows],
        ranges.end_ns[rows],
        ranges.thread[rows],
        calls.start_ns,
        calls.thread,
        BLEED_NS,
    )
    marks = hit[rows] if among is None else among[rows] | hit[rows]
    nearest = np.append(_analysis.nearest_marked(parent, marks.astype(np.uint8)), np.int32(-1))[innermost]
    answer = np.append(hit[rows], False)[nearest]
    return np.append(answer, False)[trace.attribution.call]


def _matching(names: tuple[str, ...], wanted: re.Pattern[str]) -> npt.NDArray[np.bool_]:
    """Per name, and False for the row -1 behind the last."""
    return np.array([*(bool(wanted.search(name)) for name in names), False], dtype=bool)
