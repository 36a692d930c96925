# SPDX-License-Identifier: Apache-2.0
"""The Python stack of each GPU operation, its phase, and the reason if it has no stack."""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from profiling_lab import _analysis
from profiling_lab.records import dataclass, replace
from profiling_lab.trace.columns import I32, NO_SEQUENCE, U8, Calls, Operations, Ranges, Trait, full
from profiling_lab.trace.operation_classes import OperationClass, operation_classes
from profiling_lab.trace.ownership import Ownership
from profiling_lab.trace.phases import BLEED_NS as BLEED_NS
from profiling_lab.trace.phases import Phase as Phase
from profiling_lab.trace.phases import line_phases
from profiling_lab.trace.stacks import Stacks


class Match(IntEnum):
    """How reliable a stack is, the most reliable first (csrc/analysis/autograd_link.h)."""

    OWN = 0
    EXACT = 1
    INFERRED = 2
    NEAREST = 3
    NO_NUMBER = 4
    UNKNOWN = 5


class Reason(IntEnum):
    """Why an operation has no stack (csrc/analysis/attribution.h)."""

    ATTRIBUTED = 0
    NO_CALL = 1
    NO_STACK = 2
    NO_SEQUENCE = 3
    FORWARD_UNKNOWN = 4
    FORWARD_WITHOUT_STACK = 5


@dataclass(frozen=True, slots=True)
class Attribution:
    """One row per GPU operation."""

    call: I32
    """row of the launching call, -1 if it was not recorded"""
    stack: I32
    """row of Trace.stacks; 0 if there is none, see `reason`"""
    phase: U8
    """Phase"""
    line_phase: U8
    """LinePhase, the finer classification"""
    match: U8
    reason: U8
    range: I32
    """row of the innermost range around the launch (in backward: around the forward operator); -1 none"""
    link: str
    """how backward was linked to forward: 'counter', 'ranges' or '' (not linked)"""
    dropped_ranges: int
    """the number of NVTX ranges that overlap another without nesting"""


def attribute(operations: Operations, calls: Calls, ranges: Ranges, stacks: Stacks) -> Attribution:
    calls = replace(calls, traits=_with_own_lines(calls, stacks))
    call = _analysis.call_of(
        operations.process, operations.correlation, calls.process, calls.correlation, calls.start_ns
    )
    author = call
    if operations.author is not None:
        author = _analysis.call_of(
            operations.process, operations.author, calls.process, calls.correlation, calls.start_ns
        )
        author = np.where(author >= 0, author, call).astype(np.int32)
    (phase, match, forward_row), range_of_call, link, dropped = _link(calls, ranges)
    stack, op_phase, op_match, reason = _analysis.attribute(
        author, calls.stack, phase, match, forward_row, calls.traits
    )
    # A hook communicates many gradients: analysis/hooks.py finds their modules.
    of_hook = (op_match == Match.NO_NUMBER) & (stack > 0)
    of_hook &= operation_classes(operations) == OperationClass.COMMUNICATION
    stack[of_hook], reason[of_hook] = 0, Reason.NO_SEQUENCE
    op_range = full(len(call), -1, np.int32)
    launched = call >= 0
    op_phase[author < 0] = Phase.UNKNOWN
    op_range[launched] = range_of_call[call[launched]]
    if ranges.stack.any():
        # If an operator launched nothing in forward, its own stack is used for its backward.
        by_range = np.where(stack == 0, np.append(ranges.stack, np.int32(0))[op_range], 0)
        reason[by_range > 0] = Reason.ATTRIBUTED
        stack[by_range > 0] = by_range[by_range > 0]
    fine = line_phases(op_phase, author, calls, ranges, stacks, link)
    return Attribution(call, stack, op_phase, fine, op_match, reason, op_range, link, dropped)


def _with_own_lines(calls: Calls, stacks: Stacks) -> U8:
    """The traits of the calls. Three kinds of calls use the line in their own stack, in backward too:

    recomputed forward, if the stack has a line inside the checkpoint (the checkpoint's own work gets the
    node's line); generated code that knows the forward line of each kernel, while the node is that of a
    whole compiled region; and the user's hooks, which do other work than the node that they wait for.
    """
    recomputes = stacks.recomputes()
    again = recomputes & recomputes[stacks.own_rows(Ownership())]
    answers = (again | stacks.tells_origin() | (stacks.in_hook() & ~recomputes))[calls.stack]
    return (calls.traits | np.where(answers, Trait.OWN_STACK_ANSWERS, 0)).astype(np.uint8)


def _link(calls: Calls, ranges: Ranges) -> tuple[tuple[U8, U8, I32], I32, str, int]:
    """The links, the range per call, the linking method, and the number of dropped ranges."""
    has_counter = bool(np.any(calls.next_sequence != NO_SEQUENCE))
    by_counter = _analysis.link_by_counter(
        calls.start_ns,
        calls.counter,
        calls.next_sequence,
        calls.node_sequence,
        calls.node_counter,
        calls.traits,
    )
    nested = _nested(ranges)
    if not len(nested):
        return by_counter, full(len(calls), -1, np.int32), "counter" if has_counter else "", 0
    evaluates = ranges.evaluates[nested]
    by_ranges, around, forward_range, dropped = _analysis.link_by_ranges(
        ranges.start_ns[nested],
        ranges.end_ns[nested],
        ranges.thread[nested],
        ranges.sequence[nested],
        evaluates,
        ranges.process[nested],
        calls.start_ns,
        calls.thread,
        (calls.stack > 0).astype(np.uint8),
        calls.traits,
        BLEED_NS,
    )
    use_ranges = not has_counter and bool(evaluates.any())
    chosen = forward_range if use_ranges else around
    range_of_call = np.where(chosen >= 0, nested[chosen], -1).astype(np.int32)
    if use_ranges:
        return by_ranges, range_of_call, "ranges", dropped
    return by_counter, range_of_call, "counter" if has_counter else "", dropped


def _nested(ranges: Ranges) -> np.ndarray:
    """Rows of the default domain. Ranges of libraries (NCCL) have their own domains and nest separately."""
    return np.flatnonzero(ranges.domain == 0)
