# SPDX-License-Identifier: Apache-2.0
"""CUDA graphs that are captured for each request"""

from __future__ import annotations

from builders import Judge, TraceBuilder

from profiling_lab.rules import Abstain
from profiling_lab.rules.graph_capture import RULE

GRAPHS = "/v/site-packages/torch/cuda/graphs.py"
OPEN = f"/app/serve.py:7 answer > {GRAPHS}:239 graph.__enter__"
INSIDE, REPLAY = "/app/serve.py:8 answer", f"/app/serve.py:9 answer > {GRAPHS}:139 CUDAGraph.replay"
CODE_NS, LAUNCHES = 50_000, 20


def served(requests: int, captures: bool = True, replays: int = 2) -> TraceBuilder:
    builder = TraceBuilder()
    for _ in range(requests):
        if captures:
            builder.call("cudaDeviceSynchronize_v3020", stack=OPEN)
            builder.launch("seed", 1_000, stack=OPEN)
            for _ in range(LAUNCHES):
                builder.call("cudaLaunchKernel_v7000", stack=INSIDE).gap(CODE_NS)
        for _ in range(replays):
            builder.launch("gemm", 30_000, stack=REPLAY, api="cudaGraphLaunch_v10000")
            builder.gap(30_000)
    return builder


def test_fires_on_captures_that_recur(judge: Judge) -> None:
    (finding,) = judge(RULE, served(5))
    least_ns = 5 * LAUNCHES * CODE_NS
    assert least_ns < finding.cost_ns < 1.2 * least_ns, "up to the replay, without what was still running"
    assert "5 captures of CUDA graphs for 10 replays" in finding.what and finding.cause == "host_work"
    assert finding.place is not None and finding.place.line == 7
    assert finding.saving is not None and len(finding.saving.calls) == 5 * (LAUNCHES + 2), "no replay"


def test_silent_about_few_captures_and_about_replays(judge: Judge) -> None:
    assert judge(RULE, served(2)) == ()
    assert judge(RULE, served(5, captures=False)) == ()
    assert judge(RULE, served(3, replays=3_000)) == (), "little of the recording"


def test_a_capture_at_the_end_is_not_known(judge: Judge) -> None:
    builder = served(3).call("cudaDeviceSynchronize_v3020", stack=OPEN)
    builder.call("cudaLaunchKernel_v7000", stack=INSIDE)
    assert judge(RULE, builder)[0].events == 3


def test_abstains_without_stacks(judge: Judge) -> None:
    assert isinstance(judge(RULE, TraceBuilder().launch("k", 1000)), Abstain)
