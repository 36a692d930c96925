# SPDX-License-Identifier: Apache-2.0
"""Recomputation under activation checkpointing"""

from __future__ import annotations

from builders import Judge, TraceBuilder

from profiling_lab.rules import Abstain
from profiling_lab.rules.recompute import RULE

CHECKPOINT = "/v/site-packages/torch/utils/checkpoint.py:500 checkpoint > "
AGAIN = "/app/train.py:5 main > /v/site-packages/torch/utils/checkpoint.py:900 unpack_hook > "
LAYER = "/app/model.py:21 Block.forward"


def training(again_ns: int) -> TraceBuilder:
    builder = TraceBuilder().launch(
        "gemm", 10_000, stack=f"/app/train.py:4 main > {CHECKPOINT}{LAYER}", peek=1
    )
    if again_ns:
        builder.launch("gemm", again_ns, stack=AGAIN + LAYER, node=0, node_name="CheckpointBackward", peek=2)
    return builder.launch("gemm_t", 20_000, node=0, node_name="MmBackward0", thread=2, peek=0)


def test_fires_on_forward_computed_in_backward(judge: Judge) -> None:
    (finding,) = judge(RULE, training(10_000))
    assert finding.cost_ns == 10_000 and finding.events == 1 and "25.0 % of the GPU time" in finding.what
    assert str(finding.evidence[0]) == "operations[1]"
    assert finding.place.line == 4, "the line that calls checkpoint, not the one that it runs again"


def test_silent_without_or_with_little_of_it(judge: Judge) -> None:
    assert judge(RULE, training(0)) == (), "the first forward under checkpoint is not recomputation"
    assert judge(RULE, training(3_000)) == ()


def test_backward_that_runs_inside_of_the_checkpoint_is_none(judge: Judge) -> None:
    """A checkpoint that saved its inputs (use_reentrant=True) runs backward of what it recomputed itself."""
    nested = "/v/site-packages/torch/utils/checkpoint.py:331 backward > "
    nested += "/v/site-packages/torch/autograd/graph.py:979 _engine_run_backward"
    builder = training(10_000).launch("bwd", 50_000, stack=nested, node=0, node_name="MmBackward0", thread=2)
    (finding,) = judge(RULE, builder)
    assert finding.cost_ns == 10_000


def test_abstains_without_stacks_or_backward(judge: Judge) -> None:
    verdict = judge(RULE, TraceBuilder().launch("k", 1000))
    assert isinstance(verdict, Abstain) and "no Python stacks" in verdict.reason
    verdict = judge(RULE, TraceBuilder().launch("k", 1000, stack=LAYER))
    assert isinstance(verdict, Abstain) and "no backward" in verdict.reason
