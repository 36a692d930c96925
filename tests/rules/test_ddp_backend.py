# SPDX-License-Identifier: Apache-2.0
"""DistributedDataParallel without NCCL"""

from __future__ import annotations

import pytest
from builders import Judge, TraceBuilder

from profiling_lab.rules import Abstain
from profiling_lab.rules.ddp_backend import RULE
from profiling_lab.trace.nsys.source import SqliteSource

STACK = (
    "/app/train.py:9 main > /site-packages/torch/nn/parallel/distributed.py:1643 "
    "DistributedDataParallel.forward > /app/model.py:4 Net.forward"
)


def ddp(stack: str = STACK) -> TraceBuilder:
    builder = TraceBuilder()
    for _ in range(3):
        builder.launch("gemm", 10_000, stack=stack).copy("DtoH", 4_000).copy("HtoD", 3_000)
    return builder


def test_fires_where_gradients_go_through_the_host(judge: Judge) -> None:
    (finding,) = judge(RULE, ddp())
    assert finding.cost_ns == 3 * 7_000 and finding.events == 3 and finding.place is not None
    assert "nccl" in finding.remedy and finding.confidence == "medium"


def test_fires_for_its_operator(judge: Judge) -> None:
    builder = ddp("").range("aten::mm", 0, 1)
    (finding,) = judge(RULE, builder.range("DistributedDataParallel.forward", 0, builder.now_ns))
    assert finding.events == 9


def test_silent_with_nccl_and_without_ddp(judge: Judge) -> None:
    assert judge(RULE, ddp().launch("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 5_000)) == ()
    assert judge(RULE, ddp("/app/train.py:9 main")) == ()


def test_abstains_where_nothing_tells_who_launched(judge: Judge) -> None:
    assert isinstance(judge(RULE, ddp("")), Abstain)


@pytest.mark.parametrize("facts", [{"backend": "cuda:nccl,cpu:gloo"}, {"backend": "nccl"}, {"world_size": 1}])
def test_silent_where_the_file_names_its_backend(
    judge: Judge, monkeypatch: pytest.MonkeyPatch, facts: dict[str, object]
) -> None:
    monkeypatch.setattr(SqliteSource, "job_facts", lambda _: facts)
    assert judge(RULE, ddp()) == ()
    monkeypatch.setattr(SqliteSource, "job_facts", lambda _: {"backend": "gloo", "world_size": 2})
    (finding,) = judge(RULE, ddp())
    assert "runs with gloo" in finding.what
