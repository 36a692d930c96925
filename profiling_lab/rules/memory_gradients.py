# SPDX-License-Identifier: Apache-2.0
"""Are gradients kept while the next forward runs? zero_grad(set_to_none=False) fills them with zeros instead
of freeing them, so they add to the activations at the peak.

The rule looks for gradients that are the same blocks in several steps and are alive at the peak, where that
is in forward or in the first half of backward, before most gradients would be made again. Gradients that are
accumulated over the parts of a batch are freed after each step, and not counted. It needs `record --memory`,
which notes the gradients after each optimizer step. Memory costs no time.
"""

from __future__ import annotations

import numpy as np

from profiling_lab.analysis.memory.devices import DeviceMemory
from profiling_lab.analysis.memory.kinds import Kind
from profiling_lab.analysis.memory.owners import backwards
from profiling_lab.rules.finding import LONGER, Abstain, RuleResult, Threshold, percent
from profiling_lab.rules.rule import Rule
from profiling_lab.rules.view import View
from profiling_lab.trace.phases import LinePhase

STEPS = Threshold("steps", "optimizer steps that the same gradients see", 3, "at least", "ours")
MUCH = Threshold("much", "gradients", 0.05, "of the peak, at least", "ours")
REMEDY = "optimizer.zero_grad(set_to_none=True), the default, or model.zero_grad() without set_to_none=False"


def check(view: View) -> RuleResult:
    if isinstance(view.memories, Abstain):
        return view.memories
    findings = []
    told = 0
    for each in view.memories:
        samples = each.history.tensors.sample_ns
        told = max(told, len(samples))
        if len(samples) < view[STEPS]:
            continue
        event = each.replayed.peak_event
        rows = _kept(view, each, event)
        held, peak = int(each.allocations.size[rows].sum()), each.replayed.peak_bytes
        if not len(rows) or held < view[MUCH] * peak or not _comes_early(each, event):
            continue
        findings.append(
            view.finding(
                f"gradients in {len(rows)} blocks stay allocated from step to step, {held:,} bytes, "
                f"{percent(held / peak)} of the peak of device {each.device}",
                cost_ns=0,
                cost_of="memory, not time",
                place=each.place(int(rows[each.allocations.size[rows].argmax()])).frame,
                rows=view.near(each.time_of(event)),
                weight=np.ones(1, dtype=np.int64),
                remedy=REMEDY,
                confidence="medium",
            )
        )
    if told < view[STEPS]:
        return Abstain(f"the gradients of {told} optimizer steps are known, too few to tell", LONGER)
    return findings


def _kept(view: View, each: DeviceMemory, event: int) -> np.ndarray:
    """Gradients at the peak that several optimizer steps saw."""
    alive = each.allocations.alive_at(event)
    rows = alive[each.kinds[alive] == Kind.GRADIENT]
    samples = np.sort(each.history.tensors.sample_ns)
    seen = np.searchsorted(samples, each.owners.end_ns[rows]) - np.searchsorted(
        samples, each.owners.begin_ns[rows]
    )
    return np.asarray(rows[seen >= view[STEPS]])


def _comes_early(each: DeviceMemory, event: int) -> bool:
    """Whether the allocation that made the peak is one of forward, or of the first half of backward."""
    made = np.flatnonzero(each.allocations.begin == event)
    if not len(made):
        return False
    phase, time = int(each.owners.phase[made[0]]), each.time_of(event)
    if phase != LinePhase.BACKWARD:
        return phase == LinePhase.FORWARD
    spans = backwards(each.trace, each.history.process)
    at = int(np.searchsorted(spans.end_ns, time))
    return at < len(spans.end_ns) and 2 * (time - int(spans.start_ns[at])) < int(
        spans.end_ns[at] - spans.start_ns[at]
    )


RULE = Rule(
    "memory_gradients", "Are gradients kept while the next forward runs?", (STEPS, MUCH), check, __doc__ or ""
)
