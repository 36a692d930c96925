# SPDX-License-Identifier: Apache-2.0
"""Grade E03. The right answers are computed from the learner's own recording."""

from __future__ import annotations

import numpy as np

from profiling_lab.exercises.clinic import SHARE, Defect, exercise
from profiling_lab.exercises.exercise import Mistake
from profiling_lab.exercises.program_repair import Goal
from profiling_lab.exercises.questions import After, TimelineNumber, call_gb_s, copied_mib, pageable_ms
from profiling_lab.exercises.suspects import operations
from profiling_lab.rules.view import Mask, View
from profiling_lab.trace.columns import MemoryKind

LARGE_BYTES = 1 << 20


def pageable(view: View) -> Mask:
    """Large copies with pageable memory on either side."""
    found = view.operations
    either = (found.source_memory == MemoryKind.PAGEABLE) | (found.target_memory == MemoryKind.PAGEABLE)
    return np.asarray(view.copies & either & (found.size_bytes >= LARGE_BYTES))


EXERCISE = exercise(
    "memory-timeline",
    "What do the copies in both directions cost, and what would they cost at best?",
    Defect(
        operations(pageable, names="memory"),
        planted=("Offload.keep", "Offload.fetch"),
        behind="memory",
        size=SHARE,
    ),
    Goal(faster=8.0, steps=6),
    rules=("pageable_copy", "blocked_copy", "sync_calls"),
    asked=(
        TimelineNumber(
            "to_host_mib",
            "MiB of all copies to the host (`profiling-lab copies --by direction`, memcpy DtoH)",
            copied_mib("memcpy DtoH"),
            slack_frac=0.02,
        ),
        TimelineNumber(
            "to_host_gb_s",
            "bytes of these copies by the time in their calls, in GB/s (columns size and in calls)",
            call_gb_s("memcpy DtoH"),
            slack_frac=0.05,
        ),
        TimelineNumber(
            "to_device_gb_s",
            "the same of the copies to the GPU, in GB/s (memcpy HtoD)",
            call_gb_s("memcpy HtoD"),
            slack_frac=0.05,
        ),
    ),
    after=(
        After("pinned", "ms in calls that copy pageable memory", pageable_ms, at_most=15),
        After("offloaded", "MiB copied to the host", copied_mib("memcpy DtoH"), at_least=300),
    ),
    more_mistakes=(
        Mistake("bytes instead of MiB", {"timeline.to_host_mib": 99887766.0}, "to_host_mib"),
        Mistake(
            "the time of the recorded pieces, not of the calls",
            {"timeline.to_host_gb_s": 162.6},
            "to_host_gb_s",
        ),
        Mistake("the peak of the link", {"timeline.to_device_gb_s": 63.0}, "to_device_gb_s"),
        Mistake("the bandwidth of the GPU's memory", {"timeline.to_host_gb_s": 4290.0}, "to_host_gb_s"),
        Mistake("the memory on the other side", {"finding.behind": "device"}, "behind"),
        Mistake(
            "the recording of the unchanged program as that of the repaired one",
            {"fix.after": "recorded/starter_h200.sqlite"},
            "pinned",
        ),
    ),
)
