# SPDX-License-Identifier: Apache-2.0
"""Copies on the stream that computes"""

from __future__ import annotations

from builders import Judge, TraceBuilder

from profiling_lab.rules import Abstain
from profiling_lab.rules.serial_copy import RULE


def batches(copy_stream: int, overlapping: bool = False) -> TraceBuilder:
    builder = TraceBuilder()
    for i in range(10):
        at = 2_000_000 + i * 120_000
        builder.copy("HtoD", 20_000, stream=copy_stream, start_ns=at, source=1, stack="/app/train.py:5 main")
        builder.launch("gemm", 100_000, start_ns=at if overlapping else at + 20_000)
    return builder


def test_fires_for_copies_that_the_next_kernel_waits_for(judge: Judge) -> None:
    (finding,) = judge(RULE, batches(copy_stream=7))
    assert finding.cost_ns == 10 * 20_000 and finding.place.line == 5 and finding.events == 10
    assert "record_stream" in finding.remedy


def test_other_work_hides_no_more_than_it_takes(judge: Judge) -> None:
    builder = TraceBuilder()
    for i in range(10):
        at = 2_000_000 + i * 120_000
        builder.copy("HtoD", 100_000, stream=7, start_ns=at, source=1).launch(
            "gemm", 5_000, start_ns=at + 100_000
        )
    (finding,) = judge(RULE, builder)
    assert finding.cost_ns == 10 * 5_000 and "other work could hide 0.050 ms" in finding.what
    assert "for 1.000 ms" in finding.what and "copy less" in finding.remedy


def test_time_overlapping_other_work_is_free(judge: Judge) -> None:
    builder = batches(copy_stream=7)
    for i in range(10):
        builder.launch("other", 15_000, stream=9, start_ns=2_000_000 + i * 120_000)
    (finding,) = judge(RULE, builder)
    assert finding.cost_ns == 10 * 5_000


def test_silent_where_a_stream_of_their_own_hides_them(judge: Judge) -> None:
    assert judge(RULE, batches(copy_stream=20, overlapping=True)) == []
    assert judge(RULE, TraceBuilder().launch("gemm", 100)) == ()


def test_abstains_without_kernels(judge: Judge) -> None:
    verdict = judge(RULE, TraceBuilder().copy("HtoD", 20_000))
    assert isinstance(verdict, Abstain) and "no kernel" in verdict.reason
