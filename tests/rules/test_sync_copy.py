# SPDX-License-Identifier: Apache-2.0
"""Synchronous copies"""

from __future__ import annotations

from builders import Judge, TraceBuilder

from profiling_lab.rules import Abstain
from profiling_lab.rules.sync_copy import RULE

API = "cudaMemcpy_v3020"


def test_fires_and_adds_up_what_the_gpu_loses(judge: Judge) -> None:
    builder = TraceBuilder()
    for _ in range(2):
        # The copy waits for the kernel, which costs nothing; then the GPU has nothing until the next launch.
        builder.launch("k", 100_000).copy("DtoH", 5_000, api=API, call_ns=105_000, stack="/app/a.py:3 f")
        builder.gap(104_000)
    builder.copy("HtoD", 9_000, api="cuMemcpyHtoD_v2", size_bytes=65_537, call_ns=12_000).gap(10_000)
    builder.launch("k", 1_000)
    finding, driver = judge(RULE, builder)[::-1]
    # The last 3 µs before the driver's copy are the latency of its own call.
    assert (finding.cost_ns, finding.events, finding.place.line) == (5_000 + 9_000 + 5_000 + 6_000, 2, 3)
    assert "2 synchronous copies blocked the host for 0.210 ms" in finding.what
    assert (driver.cost_ns, driver.place) == (12_000, None), "at most its call"


def test_silent_on_small_uploads_asynchronous_calls_and_copies_on_the_gpu(judge: Judge) -> None:
    builder = TraceBuilder().launch("k", 100_000)
    builder.copy("HtoD", 5_000, api=API, size_bytes=65_536, call_ns=60_000)
    builder.copy("DtoH", 5_000, call_ns=60_000)
    builder.copy("DtoD", 5_000, api=API, call_ns=60_000)
    assert judge(RULE, builder) == ()
    assert judge(RULE, TraceBuilder().copy("DtoD", 5_000, api=API)) == ()


def test_abstains_without_calls(judge: Judge) -> None:
    verdict = judge(RULE, TraceBuilder().copy("DtoH", 5_000, recorded=False))
    assert isinstance(verdict, Abstain) and "not recorded" in verdict.reason
