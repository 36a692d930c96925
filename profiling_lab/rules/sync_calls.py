# SPDX-License-Identifier: Apache-2.0
"""Which lines synchronise with the GPU, and how long does the GPU idle before it gets work again?

A wait of a stream for an event (cudaStreamWaitEvent) does not count: it does not block the host.

Waits that read a value belong to `implicit_sync`. Waits that end a blocking copy (`.to(device)`, `.cpu()`)
are reported separately, because their remedy is that of the copy. A line is reported if the GPU idled after
its waits, or if they blocked the host for a good part of the recording.

Without a wait the host would run ahead. So a wait costs the GPU's idle time until the next wait, at most as
long as it lasted, without other host work such as data loading. If the host is slower than the GPU anyway,
the rest of the idle time remains: `tiny_kernels` reports it.
"""

from __future__ import annotations

from profiling_lab.rules.finding import CALLS, Abstain, RuleResult
from profiling_lab.rules.host_waits import DENSITY, IDLE, other_waits, wait_findings
from profiling_lab.rules.rule import Rule, Time
from profiling_lab.rules.view import View

OF_COPIES = "copy with non_blocking=True and pinned memory (see pageable_copy)"
REMEDY = "synchronise at most once per step: order work with streams and events, and read results later"


def check(view: View) -> RuleResult:
    if not len(view.calls):
        return Abstain("no CUDA API call was recorded", CALLS)
    waits = other_waits(view)
    copying = view.copy_before[waits] >= 0
    return [
        *wait_findings(view, waits[~copying], "waits for the GPU", REMEDY),
        *wait_findings(view, waits[copying], "waits for a copy to end", OF_COPIES),
    ]


RULE = Rule(
    "sync_calls",
    "Which lines wait for the GPU, and what does it cost?",
    (IDLE, DENSITY),
    check,
    __doc__ or "",
    time=Time.IDLE,
    of_host=True,
)
