# SPDX-License-Identifier: Apache-2.0
"""Long kernels with blocks for a few SMs only"""

from __future__ import annotations

from pathlib import Path

import pytest
from builders import Judge, TraceBuilder

from profiling_lab.rules import RULES, Abstain, Finding, run
from profiling_lab.rules.few_blocks import RULE
from profiling_lab.trace import Trace

SOFTMAX = (
    "void at::native::(anonymous namespace)::cunn_SpatialSoftMaxForward<float, float, float, int, Log>()"
)
LOSS = "void at::native::(anonymous namespace)::nll_loss_forward_reduce_cuda_kernel_2d<float, float, long>()"
POOL = "void at::native::(anonymous namespace)::adaptive_average_pool_nhwc<int, float>(float const*)"
NORM = "void at::native::(anonymous namespace)::GammaBetaBackwardCUDAKernelTemplate<float, float>(long)"
US = 1_000
SMS = 128


def on_gpu() -> TraceBuilder:
    return TraceBuilder().row("TARGET_INFO_GPU", vmId=0, id=0, name="NVIDIA H200", smCount=SMS)


def steps(name: str, blocks: int, gpu_ns: int = 400 * US) -> TraceBuilder:
    """One kernel and others that fill the GPU, for 100 us."""
    builder = on_gpu()
    for number in range(12):
        began_ns = builder.now_ns
        builder.launch(name, gpu_ns, blocks=blocks, stack="/app/a.py:7 loss_of")
        builder.launch("elementwise_kernel", 100 * US, blocks=4096, stack="/app/a.py:8 main")
        builder.range(f"ProfilerStep#{number}", began_ns, builder.now_ns)
    return builder


def checked(builder: TraceBuilder, folder: Path) -> list[Finding]:
    with Trace.open(builder.write(folder / "run.sqlite")) as trace:
        return list(run(trace, RULES).findings)


def test_fires_for_softmax_over_a_dimension_that_is_not_the_last(judge: Judge, tmp_path: Path) -> None:
    (finding,) = judge(RULE, steps(SOFTMAX, 16))
    assert finding.cost_ns == 12 * 400 * US and finding.place.line == 7
    assert "12 kernels of 0.400 ms on average leave 87.5 % of the SMs free: 4.800 ms, 80.0 %" in finding.what
    assert finding.cause == "spatial_softmax" and "flatten" in finding.remedy
    first = checked(steps(SOFTMAX, 16), tmp_path)[0]
    assert first.rule == "few_blocks"
    assert first.gain_per_step_ns == pytest.approx(400 * US * 7 / 8, rel=0.02), "what is filled remains"
    assert {effect.rule for effect in first.effects} >= {"dominant_line"}


def test_fires_for_a_mean_of_one_block(judge: Judge) -> None:
    (finding,) = judge(RULE, steps(LOSS, 1))
    assert finding.cause == "loss_mean" and "reduction='none'" in finding.remedy


def test_others_say_only_the_most(judge: Judge) -> None:
    """What takes their place is not known, nor whether it is needed: as in healthy programs."""
    (finding,) = judge(RULE, steps(POOL, 1))
    assert finding.saving is None and finding.severity_at_most == "medium"
    assert "one call for several" in finding.remedy


def test_functions_and_families_are_told_apart(judge: Judge) -> None:
    builder = on_gpu()
    for _ in range(12):
        for name, line, of in ((SOFTMAX, 7, "f"), (SOFTMAX, 9, "f"), (POOL, 7, "f"), (SOFTMAX, 20, "g")):
            builder.launch(name, (500 - line) * US, blocks=16, stack=f"/app/a.py:{line} {of}")
    found = judge(RULE, builder)
    assert sorted((f.cause, f.place.line, f.events) for f in found) == [
        ("", 7, 12),
        ("spatial_softmax", 7, 24),
        ("spatial_softmax", 20, 12),
    ]


def test_time_in_which_others_fill_the_gpu_does_not_count(judge: Judge) -> None:
    builder = on_gpu()
    for _ in range(12):
        begin_ns = builder.now_ns + 10 * US
        builder.launch(SOFTMAX, 400 * US, blocks=16, start_ns=begin_ns, stack="/app/a.py:7 f")
        builder.launch("k", 300 * US, blocks=4096, stream=8, start_ns=begin_ns + 100 * US)
        builder.gap(500 * US)
    (finding,) = judge(RULE, builder)
    assert finding.cost_ns == 12 * 100 * US
    assert finding.saving.left == pytest.approx([1 - 0.25 * 7 / 8] * 12)


@pytest.mark.parametrize(("blocks", "streams"), [(32, 1), (31, 1), (16, 2), (15, 2)])
def test_silent_where_they_fill_a_quarter_together(judge: Judge, blocks: int, streams: int) -> None:
    builder = on_gpu()
    for _ in range(12):
        begin_ns = builder.now_ns + 20 * US
        for stream in range(streams):
            how = {"stream": 7 + stream, "start_ns": begin_ns, "stack": "/app/a.py:7 f"}
            builder.launch(SOFTMAX, 400 * US, blocks=blocks, **how)
        builder.gap(500 * US)
    verdict = judge(RULE, builder)
    if blocks * streams >= SMS / 4:
        assert verdict == ()
    else:
        assert verdict[0].events == 12 * streams


def test_silent_for_short_kernels_and_little_time(judge: Judge) -> None:
    assert judge(RULE, steps(SOFTMAX, 16, 49 * US)) == ()
    builder = steps(SOFTMAX, 16, 51 * US).launch("k", 25_000 * US, blocks=4096)
    assert judge(RULE, builder) == ()


def test_silent_for_what_no_other_call_widens(judge: Judge) -> None:
    for name in (NORM, "ampere_sgemm_32x32_nn", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgs)"):
        assert judge(RULE, steps(name, 16)) == (), name


def test_abstains_where_blocks_or_sms_are_not_known(judge: Judge) -> None:
    builder = TraceBuilder()
    for _ in range(30):
        builder.launch(SOFTMAX, 400 * US, blocks=16)
    verdict = judge(RULE, builder)
    assert isinstance(verdict, Abstain) and "SMs" in verdict.reason
    builder = on_gpu()
    for _ in range(30):
        builder.launch(SOFTMAX, 400 * US)
    assert isinstance(judge(RULE, builder), Abstain)
