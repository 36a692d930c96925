# SPDX-License-Identifier: Apache-2.0
"""Launches that return only when their kernel has ended"""

from __future__ import annotations

from pathlib import Path

import pytest
from builders import CALL_NS, HOST_NS, Judge, TraceBuilder

from profiling_lab.rules import RULES, Abstain, Finding, run
from profiling_lab.rules.blocking_launches import RULE
from profiling_lab.trace import Trace

STACK = "/app/model.py:7 Block.forward"
KERNEL_NS, RETURN_NS, HOST_CODE_NS = 30_000, 4_000, 24_000
BODY_NS = CALL_NS + KERNEL_NS + RETURN_NS


def blocking(builder: TraceBuilder, gpu_ns: int = KERNEL_NS, stack: str = STACK) -> None:
    """A launch that waits for its kernel; then the host works on the next for 24 us."""
    call_ns = CALL_NS + gpu_ns + RETURN_NS
    builder.launch("k", gpu_ns, call_ns=call_ns, stack=stack).gap(call_ns - HOST_NS + HOST_CODE_NS)


def steps(gpu_ns: int = KERNEL_NS) -> TraceBuilder:
    builder = TraceBuilder()
    for number in range(10):
        began_ns = builder.now_ns
        for _ in range(20):
            blocking(builder, gpu_ns)
        builder.range(f"ProfilerStep#{number}", began_ns, builder.now_ns)
    return builder


def test_fires_with_what_the_calls_wait_for(judge: Judge) -> None:
    (finding,) = judge(RULE, steps())
    assert "100.0 % of 200 launch calls return only when" in finding.what
    assert finding.cost_ns == 199 * (RETURN_NS + HOST_CODE_NS + CALL_NS), "no more than the GPU is idle"
    assert finding.events == 200 and finding.place.line == 7
    assert "CUDA_LAUNCH_BLOCKING" in finding.remedy


def test_a_busy_gpu_waits_no_longer_than_it_idles(judge: Judge) -> None:
    """Of little time in launches, all of it: then the host itself is slow."""
    builder = TraceBuilder()
    for _ in range(40):
        blocking(builder)
        builder.gap(400_000)
    (finding,) = judge(RULE, builder)
    waited_ns = 40 * (KERNEL_NS + RETURN_NS) - RETURN_NS
    assert finding.cost_ns == waited_ns, "the last wait ends with the recording"


def checked(builder: TraceBuilder, folder: Path) -> list[Finding]:
    with Trace.open(builder.write(folder / "run.sqlite")) as trace:
        return list(run(trace, RULES).findings)


def test_explains_the_idle_gpu_and_says_what_a_step_wins(tmp_path: Path) -> None:
    """Without the waits a launch takes what the host needs for it, and the GPU keeps up or does not."""
    for gpu_ns, left_ns in ((KERNEL_NS, KERNEL_NS), (20_000, CALL_NS + HOST_CODE_NS)):
        (tmp_path / "run.sqlite").unlink(missing_ok=True)
        first = checked(steps(gpu_ns), tmp_path)[0]
        assert first.rule == "blocking_launches"
        if gpu_ns == KERNEL_NS:  # the GPU is busy for less than half
            assert "low_utilisation" in {effect.rule for effect in first.effects}
        before_ns = CALL_NS + gpu_ns + RETURN_NS + HOST_CODE_NS
        assert first.gain_per_step_ns == pytest.approx(20 * (before_ns - left_ns), rel=0.12)


def test_a_shorter_kernel_shortens_the_launch_that_waits_for_it(tmp_path: Path) -> None:
    """Also while launches wait other findings say what a step wins."""
    builder = TraceBuilder()
    for number in range(10):
        began_ns = builder.now_ns
        for _ in range(20):
            blocking(builder)
            call_ns = CALL_NS + 100_000 + RETURN_NS
            builder.launch("ampere_sgemm_128x64_nn", 100_000, call_ns=call_ns, stack="/app/a.py:9 f")
            builder.gap(call_ns - HOST_NS)
        builder.range(f"ProfilerStep#{number}", began_ns, builder.now_ns)
    (found,) = (f for f in checked(builder, tmp_path) if f.rule == "tensor_cores")
    assert found.gain_per_step_ns == pytest.approx(20 * 85_000, rel=0.05)


def test_silent_where_short_kernels_end_during_ordinary_calls(judge: Judge) -> None:
    builder = TraceBuilder()
    for _ in range(100):
        builder.launch("k", 1_000, call_ns=4_500, stack=STACK)
        builder.launch("long", KERNEL_NS, stack=STACK).gap(KERNEL_NS)
    assert judge(RULE, builder) == ()


def test_silent_where_a_few_calls_are_slow(judge: Judge) -> None:
    """As those that load a kernel's code: 20 of 220."""
    builder = TraceBuilder()
    for number in range(220):
        if number % 11 == 0:
            blocking(builder)
        else:
            builder.launch("k", KERNEL_NS, stack=STACK).gap(KERNEL_NS)
    assert judge(RULE, builder) == ()


def test_silent_for_a_wait_behind_each_launch(judge: Judge) -> None:
    builder = TraceBuilder()
    for _ in range(40):
        builder.launch("k", KERNEL_NS, stack=STACK)
        builder.call("cudaStreamSynchronize_v3020", call_ns=KERNEL_NS, stack=STACK).gap(KERNEL_NS)
    assert judge(RULE, builder) == ()


def test_silent_for_graph_launches(judge: Judge) -> None:
    builder = TraceBuilder()
    for _ in range(40):
        builder.launch("k", KERNEL_NS, call_ns=BODY_NS, stack=STACK, api="cudaGraphLaunch_v10000")
        builder.gap(BODY_NS)
    assert judge(RULE, builder) == ()


def test_abstains_where_all_kernels_are_short(judge: Judge) -> None:
    """All of them end within their calls, but they would also do so during ordinary ones."""
    builder = TraceBuilder()
    for _ in range(100):
        builder.launch("k", 1_000, call_ns=4_500, stack=STACK)
    verdict = judge(RULE, builder)
    assert isinstance(verdict, Abstain) and "longer than an ordinary launch call" in verdict.reason
    for _ in range(100):
        builder.launch("k", 3_000, stack=STACK)
    assert judge(RULE, builder) == ()


def test_abstains_without_calls(judge: Judge) -> None:
    builder = TraceBuilder()
    for _ in range(40):
        builder.launch("k", KERNEL_NS, recorded=False)
    assert isinstance(judge(RULE, builder), Abstain)
