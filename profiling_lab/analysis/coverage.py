# SPDX-License-Identifier: Apache-2.0
"""How much of the GPU time a table covers, and why the rest has no line."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np

from profiling_lab import _analysis
from profiling_lab.analysis.device_spans import span_ns
from profiling_lab.analysis.hooks import Reduction, reductions
from profiling_lab.records import dataclass
from profiling_lab.trace.attribution import Match, Phase, Reason
from profiling_lab.trace.call_stacks import FUNCTION_LINES, HLO_LINES
from profiling_lab.trace.columns import I32, NO_SEQUENCE, OperationKind, dense
from profiling_lab.trace.operation_classes import OperationClass
from profiling_lab.trace.ownership import Ownership
from profiling_lab.trace.spans import Window
from profiling_lab.trace.trace import Trace

NO_OWN_FRAME = "only library frames in the stack"

_SENTENCES = {
    Reason.NO_CALL: "launched before the recording began, or its call was not recorded",
    Reason.NO_STACK: "no Python stack recorded for the call",
    Reason.NO_SEQUENCE: "AccumulateGrad and autograd hooks: nothing before them tells whose gradient it is",
    Reason.FORWARD_UNKNOWN: "backward of a forward call that is not in the recording",
    Reason.FORWARD_WITHOUT_STACK: "backward of a call without a Python stack",
}
_NOT_IN_A_REPORT = "a report of ncu has no calls and no stacks: --ncu joins it with a recording, which has"
# Stacks without an own frame, communication in hooks, and what the engine does when all nodes are done come
# after the reasons of the attribution.
_LIBRARY, _HOOK, _CALLBACK = range(len(Reason), len(Reason) + 3)
_REASONS = _CALLBACK + 1
IN_HOOKS = "communication launched by autograd hooks (DDP, FSDP): it belongs to no forward line"
AT_THE_END = "launched by the autograd engine outside of its nodes: callbacks at the end of backward (DDP)"
_UNLINKED = "backward without a sequence number that leads to its forward line"


class Unattributed(NamedTuple):
    """GPU time without a line in user code."""

    reason: str
    ns: int
    kernels: int
    """GPU operations of any kind"""


@dataclass(frozen=True, slots=True)
class Coverage:
    """GPU time is the sum of all operations' durations; `busy_ns` counts what overlaps once, per device."""

    gpu_ns: int
    busy_ns: int
    span_ns: int
    """from the first operation's start to the last one's end; in a window, what of it any device has"""
    operations: int
    kernels: int
    devices: int
    attributed_ns: int
    """GPU time with a line in user code"""
    linked_ns: int
    """backward GPU time joined with its forward line"""
    inferred_ns: int
    """part of `linked_ns` whose line was inferred from the launches around it, not seen"""
    unattributed: tuple[Unattributed, ...]
    """the largest first; with `attributed_ns` they sum to `gpu_ns` exactly"""
    notes: tuple[str, ...]
    """what limits this recording, and what would have recorded more"""
    window: Window | None = None
    """the part of the recording that this is about; None for all of it"""

    @property
    def attributed_frac(self) -> float:
        return self.attributed_ns / self.gpu_ns if self.gpu_ns else 0.0


def coverage(trace: Trace, own_row: I32) -> Coverage:
    """`own_row`: per stack the row of its innermost own frame, 0 without one (Stacks.own_rows)."""
    operations, found = trace.operations, trace.attribution
    duration = operations.duration_ns
    has_line = own_row[found.stack] > 0
    total, count = _analysis.sum_by_key(why_no_line(trace, own_row), duration, _REASONS)
    unattributed = [
        Unattributed(reason_text(trace, number), int(total[number]), int(count[number]))
        for number in range(1, _REASONS)
        if count[number]
    ]
    linked = has_line & (found.phase == Phase.BACKWARD) & (found.match != Match.OWN)
    inferred = linked & (found.match != Match.EXACT)
    device, _ = dense(operations.process.astype(np.int64) << 32 | operations.device)
    devices = int(device.max()) + 1 if len(device) else 0
    return Coverage(
        gpu_ns=int(duration.sum()),
        busy_ns=int(_analysis.busy_ns(operations.start_ns, operations.end_ns, device, devices).sum()),
        span_ns=span_ns(trace),
        operations=len(operations),
        kernels=int((operations.kind == OperationKind.KERNEL).sum()),
        devices=devices,
        attributed_ns=int(total[0]),
        linked_ns=int(duration[linked].sum()),
        inferred_ns=int(duration[inferred].sum()),
        unattributed=tuple(sorted(unattributed, key=lambda u: (-u.ns, u.reason))),
        notes=notes(trace),
        window=trace.window,
    )


def why_no_line(trace: Trace, own_row: I32) -> I32:
    """Per operation why it has no line in user code: a number for `reason_text`, 0 where it has one."""
    found = trace.attribution
    has_line, backward = own_row[found.stack] > 0, found.phase == Phase.BACKWARD
    # Backward that is not joined with forward may still show what ran inside of the engine: that is no line.
    unlinked = backward & (found.match == Match.OWN) & (not found.link)
    no_line = np.where(unlinked, Reason.FORWARD_UNKNOWN, _LIBRARY)
    why = np.where(has_line, 0, np.where(found.stack > 0, no_line, found.reason))
    # DDP reduces in a hook of the engine, FSDP in a Python hook whose frames are all of libraries.
    in_hook = backward & ((why == Reason.NO_SEQUENCE) | (why == _LIBRARY))
    communicates = trace.classes == OperationClass.COMMUNICATION
    why = np.where(in_hook & communicates, _HOOK, why)
    # Every node that the recorder saw has a number or -1; a call of the engine without either is in none.
    no_node = np.append(trace.calls.node_sequence, 0)[found.call] == NO_SEQUENCE
    at_the_end = (why == Reason.FORWARD_UNKNOWN) & no_node & (found.link == "counter")
    return np.where(at_the_end, _CALLBACK, why).astype(np.int32)


def hook_reductions(trace: Trace, own_row: I32) -> tuple[Reduction, ...]:
    """Communication in hooks, by the modules whose gradients it reduces; `own_row` as in coverage()."""
    return reductions(trace, why_no_line(trace, own_row) == _HOOK, own_row)


def reason_text(trace: Trace, number: int) -> str:
    """A number of `why_no_line` as people read it."""
    if number == _LIBRARY:
        return NO_OWN_FRAME
    if number == _HOOK:
        reduced = hook_reductions(trace, trace.stacks.own_rows(Ownership()))
        modules = [*dict.fromkeys(name for reduction in reduced for name in reduction.modules)]
        listed = ", ".join(modules[:3]) + (", ..." if len(modules) > 3 else "")
        return f"{IN_HOOKS}; gradients of {listed}" if modules else IN_HOOKS
    if number == _CALLBACK:
        return AT_THE_END
    reason = Reason(number)
    if reason is Reason.FORWARD_UNKNOWN and not trace.attribution.link:
        return _UNLINKED
    if reason is Reason.NO_STACK:
        # Which calls: nsys never takes stacks for some of them, whatever its options.
        found = trace.attribution
        rows = found.call[(found.reason == Reason.NO_STACK) & (found.call >= 0)]
        names = Counter(
            {trace.calls.names[i]: n for i, n in enumerate(np.bincount(trace.calls.name[rows])) if n}
        )
        listed = ", ".join(name for name, _ in names.most_common(2)) + (", ..." if len(names) > 2 else "")
        return f"{_SENTENCES[reason]} ({listed})"
    return _NOT_IN_A_REPORT if trace.recorder == "ncu" else _SENTENCES[reason]


LOST = (
    "dropped_calls",
    "dropped_records",
    "records_without_time",
    "stacks_lost",
    "stacks_cut",
    "unwritten_records",
    "texts_cut",
)


def _recorder_notes(facts: dict[str, str]) -> list[str]:
    """What our recorder could not do, in its own words."""
    lost = sum(int(facts[name]) for name in LOST if facts.get(name, "").isdecimal())
    notes = [f"{lost} events were lost while recording"] if lost else []
    for name, what in (("stacks_state", "Python stacks"), ("autograd_link", "the autograd link")):
        state = facts.get(name, "on")
        if state not in ("", "on"):
            notes.append(f"{what}: {state}")
    skipped = facts.get("unreadable_bytes", "")
    if skipped.isdecimal() and int(skipped):
        notes.append(f"{int(skipped):,} bytes of the capture could not be read and were skipped")
    if step := facts.get("work_step", ""):
        notes.append(f"step {step} was counted for roofline: the host needed longer for it, the GPU did not")
    if facts.get("finished", "yes") != "yes":
        notes.append("the recording was cut off before its end")
    return notes


NSYS_STACK_FLAGS = "--python-backtrace=cuda --cudabacktrace=all:0 (with CPU sampling on)"


def notes(trace: Trace) -> tuple[str, ...]:
    """What limits this recording, each with what to do about it."""
    found, link = trace.stacks_found, trace.attribution.link
    out = []
    if found.without_payload:
        out.append(
            f"{found.without_payload} Python stacks were recorded, their frames left out of the export: "
            "export with --include-json=true"
        )
    if found.without_call:
        out.append(f"{found.without_call} Python stacks have no call in the file")
    if found.form == FUNCTION_LINES:
        out.append("the line of a frame is where its function begins: torch.profiler notes no other")
    if not link and found.form != HLO_LINES and np.any(trace.attribution.phase == Phase.BACKWARD):
        how = ": record with --pytorch=autograd-nvtx, or with profiling-lab record"
        how = how if trace.recorder == "nsys" else ""
        out.append(f"backward cannot be joined with its forward lines, the file has no sequence numbers{how}")
    if trace.attribution.dropped_ranges:
        out.append(
            f"{trace.attribution.dropped_ranges} NVTX ranges overlap others without nesting and were left out"
        )
    return (*out, *file_notes(trace))


def file_notes(trace: Trace) -> tuple[str, ...]:
    """Those of `notes` that take neither calls nor stacks."""
    out = _recorder_notes(trace.recorder_facts)
    if pauses := len(set(trace.pauses.spans.start_ns.tolist())):
        often = "once" if pauses == 1 else f"{pauses} times"
        out.append(f"the recording paused {often}: nothing is known of that time, it is not idle")
    return (*out, *(f"{count} {what}" for what, count in trace.repairs.items()))
