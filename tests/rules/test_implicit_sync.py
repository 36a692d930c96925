# SPDX-License-Identifier: Apache-2.0
"""Reading values from the GPU: .item() and its kin"""

from __future__ import annotations

from builders import Judge, TraceBuilder

from profiling_lab.rules import Abstain
from profiling_lab.rules.implicit_sync import RULE

WAIT = "cudaStreamSynchronize_v3020"
LINE = "/app/train.py:59 train"


def reading(size_bytes: int, *, thread: int = 1, between: str = "") -> TraceBuilder:
    builder = TraceBuilder()
    for _ in range(3):
        builder.launch("k", 50_000).copy("DtoH", 1_000, size_bytes=size_bytes, stack=LINE)
        if between:
            builder.call(between)
        builder.call(WAIT, call_ns=50_000, stack=LINE, thread=thread).gap(70_000)
    return builder.launch("k", 50_000)


def test_fires_with_the_line_and_the_idle_time(judge: Judge) -> None:
    (finding,) = judge(RULE, reading(4))
    # Per round: the copy ends at 54 µs, the wait at 60; the next kernel starts at 88 µs.
    assert (finding.events, finding.cost_ns) == (3, 3 * 34_000)
    assert (finding.place.file, finding.place.line) == ("/app/train.py", 59)
    assert "3 reads of a value" in finding.what and finding.evidence[0].table == "calls"


def test_silent_on_large_copies_and_waits_of_others(judge: Judge) -> None:
    assert judge(RULE, reading(65)) == ()
    assert judge(RULE, reading(4, thread=2)) == (), "another thread waits"
    assert judge(RULE, reading(4, between="cudaLaunchKernel_v7000")) == (), "not at once"
    assert judge(RULE, TraceBuilder().launch("k", 1000)) == ()


def test_the_last_call_of_a_thread_is_followed_by_none(judge: Judge) -> None:
    builder = TraceBuilder().launch("k", 50_000).copy("DtoH", 1_000, size_bytes=4, stack=LINE)
    builder.call(WAIT, call_ns=50_000, stack=LINE, thread=2).gap(70_000).launch("k", 50_000, thread=3)
    assert judge(RULE, builder) == ()


def test_abstains_without_the_calls_of_the_copies(judge: Judge) -> None:
    verdict = judge(RULE, TraceBuilder().copy("DtoH", 1_000, size_bytes=4, recorded=False))
    assert isinstance(verdict, Abstain) and "not recorded" in verdict.reason
