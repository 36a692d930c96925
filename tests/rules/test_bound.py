# SPDX-License-Identifier: Apache-2.0
"""What limits the program"""

from __future__ import annotations

from builders import Judge, TraceBuilder

from profiling_lab.rules import Abstain
from profiling_lab.rules.bound import RULE
from profiling_lab.trace.columns import OverheadKind


def launching(gpu_ns: int, count: int = 50, **how: object) -> TraceBuilder:
    builder = TraceBuilder()
    for _ in range(count):
        builder.launch("k", gpu_ns, stack="/app/train.py:9 step", **how)
    return builder


def copying() -> TraceBuilder:
    builder = TraceBuilder()
    for _ in range(10):
        builder.copy("HtoD", 100_000, stack="/app/train.py:4 load").launch("k", 5_000)
    return builder


def full_queue(builder: TraceBuilder, length_ns: int) -> TraceBuilder:
    return builder.row(
        "CUPTI_ACTIVITY_KIND_OVERHEAD",
        start=1_010_000,
        end=1_010_000 + length_ns,
        globalTid=builder.tid(1),
        overheadType=OverheadKind.COMMAND_BUFFER_FULL,
    )


def test_launch_bound(judge: Judge) -> None:
    (finding,) = judge(RULE, launching(2_000))
    assert finding.cost_ns == 49 * 3_000 and finding.place.line == 9 and finding.events == 49
    assert (
        "launch-bound: outside of long gaps the GPU idles 59.5 %" in finding.what
        and "every 5.0 µs, and one runs 2.0 µs" in finding.what
    )
    assert "CUDA graph" in finding.remedy


def test_copy_bound_whatever_the_launch_calls_took(judge: Judge) -> None:
    (finding,) = judge(RULE, full_queue(copying(), 400_000))
    assert finding.cost_ns == 1_000_000 and finding.place.line == 4
    assert "copy-bound" in finding.what and "0.400 ms because the command buffer was full" in finding.what
    assert "CUDA graph" not in finding.remedy


def test_long_gaps_are_no_launches(judge: Judge) -> None:
    """A program that starts slowly and then waits for every launch loses only the short gaps by them."""
    builder = TraceBuilder().launch("k", 2_000).gap(40_000_000)
    for _ in range(50):
        builder.launch("k", 2_000)
    (finding,) = judge(RULE, builder)
    assert finding.cost_ns < 50 * 3_100 and "idles 59.0 %" in finding.what
    quick = TraceBuilder().launch("k", 50_000).gap(40_000_000)
    for _ in range(50):
        quick.launch("k", 50_000)
    assert judge(RULE, quick) == (), "one long gap makes no launch-bound program"


def test_a_full_queue_is_no_launch_bound_program(judge: Judge) -> None:
    assert judge(RULE, full_queue(launching(2_000), 100_000)) == ()


def test_kernels_that_queue_behind_another_do_not_wait_for_their_launch(judge: Judge) -> None:
    builder = TraceBuilder()
    for _ in range(5):
        builder.launch("long", 60_000)
        for _ in range(9):
            builder.launch("short", 1_000)
        builder.gap(100_000)
    assert judge(RULE, builder) == (), "the GPU idles, but nine of ten launches were in time"


def test_silent_where_the_gpu_computes_all_the_time(judge: Judge) -> None:
    assert judge(RULE, launching(50_000)) == ()


def test_abstains_where_launches_are_unknown_and_the_gpu_idles(judge: Judge) -> None:
    verdict = judge(RULE, launching(2_000, recorded=False))
    assert isinstance(verdict, Abstain) and "of 50 kernels 0 have a recorded launch" in verdict.reason
    assert judge(RULE, launching(50_000, recorded=False)) == (), "a busy GPU waits for no launch"
