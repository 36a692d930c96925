# SPDX-License-Identifier: Apache-2.0
"""Which copies between host and GPU are synchronous calls? They block the host until the copy is done.

Copies to the GPU of up to 64 KB return as soon as they are staged, and are not counted. The cost is what
the GPU loses: the idle time that the calls cause, and the time in which only the copies run. torch itself
always uses asynchronous calls, so these calls come from other libraries or from your own extension code.
"""

from __future__ import annotations

import numpy as np

from profiling_lab.rules.blocking_calls import blocking_calls
from profiling_lab.rules.finding import WORTH, RuleResult, Threshold
from profiling_lab.rules.rule import Rule, Time
from profiling_lab.rules.view import View

SMALL = Threshold("small", "HtoD copies left out", 65536, "bytes, at most", "nsys: they return once staged")
REMEDY = "use the asynchronous call (cudaMemcpyAsync; in torch non_blocking=True with pinned memory)"


def check(view: View) -> RuleResult:
    to_device = view.named("memcpy HtoD")
    host_side = to_device | view.named("memcpy DtoH", "memcpy HtoH", "memcpy HtoA", "memcpy AtoH")
    if not host_side.any():
        return ()
    small = to_device & (view.operations.size_bytes <= view[SMALL])
    synchronous = view.launched_by(r"^(cuda|cu)Memcpy(?!.*Async)")
    rows = np.flatnonzero(host_side & ~small & synchronous)
    worth_ns = view[WORTH] * view.span_ns
    findings = blocking_calls(view, rows, worth_ns, "synchronous copies", REMEDY)
    return findings or view.too_few_calls(host_side, "copies") or ()


RULE = Rule(
    "sync_copy",
    "Which copies between host and GPU are synchronous calls?",
    (SMALL, WORTH),
    check,
    __doc__ or "",
    time=Time.IDLE,
    of_host=True,
)
