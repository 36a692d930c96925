# SPDX-License-Identifier: Apache-2.0
"""Stretches in which a GPU waits"""

from __future__ import annotations

from builders import Judge, TraceBuilder

from profiling_lab.rules import Abstain
from profiling_lab.rules.low_utilisation import RULE


def halves(pause_ns: int) -> TraceBuilder:
    """Forty kernels back to back, a pause of the host, forty more."""
    builder = TraceBuilder()
    for _ in range(40):
        builder.launch("k", 5_000)
    builder.gap(pause_ns).launch("k", 5_000, stack="/app/train.py:44 main")
    for _ in range(39):
        builder.launch("k", 5_000)
    return builder


def test_fires_with_the_line_that_ends_the_gap(judge: Judge) -> None:
    (finding,) = judge(RULE, halves(200_000))
    assert finding.place.line == 44 and "device 0 is busy" in finding.what
    # 600 µs in 30 parts of 20: the pause of 200 µs fills ten, the first and last kernels are at its edges.
    assert 180_000 <= finding.cost_ns <= 200_000
    assert str(finding.evidence[0]) == "operations[40]"


def test_the_longest_of_several_gaps_is_named(judge: Judge) -> None:
    builder = halves(0).gap(150_000).launch("k", 5_000, stack="/app/train.py:50 main")
    builder.gap(50_000).launch("k", 5_000, stack="/app/train.py:51 main")
    for _ in range(40):
        builder.launch("k", 5_000)
    (finding,) = judge(RULE, builder)
    assert finding.place.line == 50 and [str(e) for e in finding.evidence[:2]] == [
        "operations[80]",
        "operations[81]",
    ]


def test_silent_on_a_busy_gpu(judge: Judge) -> None:
    assert judge(RULE, halves(0)) == []


def test_abstains_on_few_operations(judge: Judge) -> None:
    verdict = judge(RULE, TraceBuilder().launch("k", 1000).gap(100_000).launch("k", 1000))
    assert isinstance(verdict, Abstain) and "60 operations" in verdict.reason


def test_fires_once_where_a_gpu_is_half_idle_throughout(judge: Judge) -> None:
    """TensorBoard's plugin asked for the share of the whole recording; it is one interval here."""
    builder = TraceBuilder()
    for i in range(100):
        builder.launch("k", 40_000, start_ns=2_000_000 + i * 100_000)
    (finding,) = judge(RULE, builder)
    assert finding.cost_ns == 99 * 60_000 and "busy 40.2 % of 9.940 ms" in finding.what
