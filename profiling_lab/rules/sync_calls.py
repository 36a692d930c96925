# SPDX-License-Identifier: Apache-2.0
"""Which lines wait for the GPU, and how long does the GPU idle before it gets work again?

A wait on an event inside of a stream (cudaStreamWaitEvent) is none: it holds no thread.

Waits that read a value are `implicit_sync`'s. A line is named if the GPU idled after its waits, or if they
held the host for a good part of the recording. The cost is the idle time: the gap around the wait's end.
"""

from __future__ import annotations

from profiling_lab.rules.host_waits import DENSITY, IDLE, other_waits, wait_findings
from profiling_lab.rules.rule import CALLS, Abstain, Rule, Verdict
from profiling_lab.rules.view import View

REMEDY = "wait once per step or never: order work with streams and events, and read results later"


def check(view: View) -> Verdict:
    if not len(view.calls):
        return Abstain("no API call was recorded", CALLS)
    return wait_findings(view, other_waits(view), "waits for the GPU", REMEDY)


RULE = Rule(
    "sync_calls",
    "Which lines wait for the GPU, and what does it cost?",
    (IDLE, DENSITY),
    check,
    __doc__ or "",
)
