# SPDX-License-Identifier: Apache-2.0
"""The phase of each GPU operation: forward, backward, recomputed forward, or optimizer."""

from __future__ import annotations

import re
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from profiling_lab import _analysis
from profiling_lab.trace.columns import I32, U8, Calls, Evaluates, Ranges
from profiling_lab.trace.stacks import Stacks

# Timestamps of nested ranges may overlap by less than this.
BLEED_NS = 1000

# torch puts these ranges around every step (emit_nvtx, torch.profiler): `Optimizer.step#AdamW.step`.
_OPTIMIZER_RANGE = re.compile(r"^Optimizer\.(step|zero_grad)#")
# The node of a reentrant checkpoint (use_reentrant=True): everything in it that is not in another node is
# forward. The other kind has no node; it is recognised by its frames.
_CHECKPOINT_NODE = re.compile(r"(^|[: ])CheckpointFunctionBackward$")


class Phase(IntEnum):
    """The phase of a launch. `FORWARD` is everything outside of backward, including optimizer and copies."""

    FORWARD = 0
    BACKWARD = 1
    UNKNOWN = 2
    """the launching call was not recorded"""


class LinePhase(IntEnum):
    """The phases of `lines`: Phase, with recomputation and the optimizer separate."""

    FORWARD = 0
    """everything else, including copies of inputs and gradient clipping"""
    BACKWARD = 1
    RECOMPUTE = 2
    """forward recomputed in backward, by activation checkpointing"""
    OPTIMIZER = 3
    """steps of an optimizer, and its zero_grad"""
    UNKNOWN = 4
    """the launching call was not recorded"""


LINE_PHASES = tuple(phase.name.lower() for phase in LinePhase)


def line_phases(phase: U8, call: I32, calls: Calls, ranges: Ranges, stacks: Stacks, link: str) -> U8:
    """LinePhase per operation, from its Phase and its launching call (-1: none); `link` as in Attribution."""
    own_stack = np.append(calls.stack, np.int32(0))[call]  # -1 finds the last entry: no stack
    backward = phase == Phase.BACKWARD
    out = np.full(len(phase), LinePhase.FORWARD, dtype=np.uint8)
    out[backward] = LinePhase.BACKWARD
    again = np.append(_in_checkpoint_node(calls, ranges, link), False)[call] | stacks.recomputes()[own_stack]
    out[backward & again] = LinePhase.RECOMPUTE
    # A call's own stack is more precise than a range: a closure runs inside the optimizer's step.
    in_range = np.append(_inside(_OPTIMIZER_RANGE, calls, ranges), False)[call]
    out[stacks.optimizes()[own_stack] | (in_range & (own_stack == 0) & ~backward)] = LinePhase.OPTIMIZER
    out[phase == Phase.UNKNOWN] = LinePhase.UNKNOWN
    return out


def _in_checkpoint_node(calls: Calls, ranges: Ranges, link: str) -> npt.NDArray[np.bool_]:
    """Per call, whether the evaluated node is the checkpoint's own node."""
    by_node = _matching(calls.node_names, _CHECKPOINT_NODE)[calls.node_name]
    if link != "ranges":
        return by_node
    evaluates = ranges.evaluates != Evaluates.NOTHING
    return by_node | _inside(_CHECKPOINT_NODE, calls, ranges, among=evaluates)


def _inside(
    wanted: re.Pattern[str], calls: Calls, ranges: Ranges, among: npt.NDArray[np.bool_] | None = None
) -> npt.NDArray[np.bool_]:
    """Per call, whether it is in a range with this name. `among`: whether the innermost of these has the
    name.
    """
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
