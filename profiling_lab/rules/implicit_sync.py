# SPDX-License-Identifier: Apache-2.0
"""Which lines read a value from the GPU (.item(), .cpu(), nonzero, printing a tensor) and so synchronise
with it?

The rule recognises a copy of a few bytes to the host, followed by a wait of the same thread.

Such a line costs twice: the host waits until the GPU has caught up, and then the GPU idles until the host has
launched new work. Only the idle time counts as the cost, as in `sync_calls`.
"""

from __future__ import annotations

from profiling_lab.rules.finding import RuleResult
from profiling_lab.rules.host_waits import DENSITY, IDLE, TINY_COPY, reads_of_a_value, wait_findings
from profiling_lab.rules.rule import Rule, Time
from profiling_lab.rules.view import View

REMEDY = (
    "keep the value on the GPU; read it every N steps, or copy it with non_blocking=True and read it later"
)


def check(view: View) -> RuleResult:
    to_host = view.named("memcpy DtoH")
    if not to_host.any():
        return ()
    _, waits = reads_of_a_value(view)
    found = wait_findings(view, waits, "reads of a value from the GPU", REMEDY)
    return found or view.too_few_calls(to_host, "copies to the host") or ()


RULE = Rule(
    "implicit_sync",
    "Which lines read a value and so synchronise?",
    (TINY_COPY, IDLE, DENSITY),
    check,
    __doc__ or "",
    time=Time.IDLE,
    of_host=True,
)
