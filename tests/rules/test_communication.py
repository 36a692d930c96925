# SPDX-License-Identifier: Apache-2.0
"""Exposed communication"""

from __future__ import annotations

from builders import Judge, TraceBuilder

from profiling_lab.rules import Abstain
from profiling_lab.rules.communication import RULE

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def step(hidden: bool, kernel: str = NCCL, stream: int = 20) -> TraceBuilder:
    builder = TraceBuilder()
    for i in range(10):
        at = 2_000_000 + i * 150_000
        builder.launch("gemm", 100_000, start_ns=at, stream=7)
        at += 0 if hidden else 100_000
        builder.launch(kernel, 50_000, start_ns=at, stream=stream, stack="/app/train.py:8 main")
    return builder


def test_fires_for_what_nothing_hides(judge: Judge) -> None:
    (finding,) = judge(RULE, step(hidden=False))
    assert finding.cost_ns == 10 * 50_000 and finding.place.line == 8 and finding.events == 10
    assert "communicates for 0.500 ms; 0.500 ms of it" in finding.what
    assert "only 0.0 % overlaps with compute" in finding.what


def test_says_when_it_could_not_overlap_compute(judge: Judge) -> None:
    (finding,) = judge(RULE, step(hidden=False))
    assert "stream" not in finding.what
    (finding,) = judge(RULE, step(hidden=False, stream=7))
    assert finding.what.endswith("most of it runs on a compute stream")


def test_symmetric_memory_communicates_too(judge: Judge) -> None:
    (finding,) = judge(RULE, step(hidden=False, kernel="multimem_all_reduce_kernel"))
    assert finding.cost_ns == 500_000


def accumulating(
    batches: int = 4,
    updates: int = 1,
    reduces: tuple[int, ...] = (2, 2, 2, 2),
    node_name: str = "torch::autograd::AccumulateGrad",
) -> TraceBuilder:
    """Steps of micro-batches: forward, backward, all-reduces; then the optimizer."""
    builder, optimizer = (
        TraceBuilder(),
        "/app/train.py:9 main > /v/site-packages/torch/optim/sgd.py:3 SGD.step",
    )
    for _ in range(3):
        for batch in range(batches):
            builder.launch("gemm", 100_000, stack="/app/train.py:7 main", peek=1)
            builder.launch("gemm", 100_000, thread=2, node=0, node_name="MmBackward0", peek=1)
            for _ in range(reduces[batch]):
                builder.launch(NCCL, 200_000, thread=2, node=-1, node_name=node_name, peek=1)
            if updates > 1:
                builder.launch("adam", 10_000, stack=optimizer)
        if updates == 1:
            builder.launch("adam", 10_000, stack=optimizer)
    return builder


def test_tells_of_gradients_that_are_accumulated(judge: Judge) -> None:
    (finding,) = judge(RULE, accumulating())
    assert "18 of 24 kernels send gradients that are added to before they are used" in finding.what
    assert "no_sync()" in finding.remedy and len(finding.saving.operations) == 18
    assert set(finding.saving.left) == {0.0} and finding.wins_frac == 0.75
    assert finding.events == 24


def test_gradients_that_are_used_each_time_are_needed(judge: Judge) -> None:
    needed = (
        accumulating(updates=4),
        accumulating(batches=1),
        accumulating(batches=2, reduces=(1, 3)),  # of two networks
        accumulating(node_name="ParallelLinearBackward"),  # what a layer sends
    )
    for builder in needed:
        (finding,) = judge(RULE, builder)
        assert "added to" not in finding.what and finding.saving is None and finding.wins_frac is None


def test_silent_where_computing_hides_it(judge: Judge) -> None:
    assert judge(RULE, step(hidden=True)) == []


def test_silent_on_one_gpu(judge: Judge) -> None:
    assert judge(RULE, TraceBuilder().launch("gemm", 100)) == ()


def test_abstains_where_several_gpus_never_talk(judge: Judge) -> None:
    verdict = judge(RULE, TraceBuilder().launch("gemm", 100).launch("gemm", 100, device=1))
    assert isinstance(verdict, Abstain) and "2 GPUs are used" in verdict.reason
