# SPDX-License-Identifier: Apache-2.0
"""Streams that wait for each other"""

from __future__ import annotations

from builders import Judge, TraceBuilder

from profiling_lab.rules import Abstain
from profiling_lab.rules.stream_chain import RULE


def chain(wait: bool, *, overlapping: bool = False, recorded: bool = True) -> TraceBuilder:
    builder = TraceBuilder()
    for i in range(20):
        at = 2_000_000 + i * (50_000 if overlapping else 100_000)
        for stream, offset in ((7, 0), (13, 0 if overlapping else 50_000)):
            if wait:
                builder.call("cudaEventRecord_v3020").call("cudaStreamWaitEvent_v3020")
            builder.launch(
                "gemm",
                50_000,
                stream=stream,
                start_ns=at + offset,
                stack=f"/app/model.py:{stream} f",
                recorded=recorded,
            )
    return builder


def test_fires_where_waits_put_streams_in_a_row(judge: Judge) -> None:
    (finding,) = judge(RULE, chain(wait=True))
    assert finding.cost_ns == 20 * 50_000 and finding.events == 39 and finding.confidence == "low"
    assert "39 of 39 changes of stream follow a wait for an event" in finding.what
    assert "only 0.0 % of what could overlap does" in finding.what


def test_the_line_is_the_one_that_waits(judge: Judge) -> None:
    builder = TraceBuilder()
    for i in range(20):
        for stream, line in ((7, 3), (13, 4)):
            builder.call("cudaStreamWaitEvent_v3020", stack=f"/app/model.py:{line - 1 + i % 2 * line} f")
            at = 2_000_000 + i * 100_000 + (stream == 13) * 50_000
            builder.launch("gemm", 50_000, stream=stream, start_ns=at, stack=f"/app/model.py:{stream} f")
    builder.call("cudaStreamWaitEvent_v3020", stack="/app/model.py:3 f")
    (finding,) = judge(RULE, builder)
    assert finding.place.line == 3


def test_silent_where_streams_overlap(judge: Judge) -> None:
    assert judge(RULE, chain(wait=True, overlapping=True)) == []


def test_silent_where_the_other_stream_communicates(judge: Judge) -> None:
    """One bucket of DDP: its all-reduce waits for the last gradient, the optimizer for the all-reduce."""
    builder = TraceBuilder()
    for i in range(20):
        for stream, name in ((7, "gemm"), (20, "ncclDevKernel_AllReduce_Sum_f32_RING_LL")):
            at = 2_000_000 + i * 100_000 + (stream == 20) * 50_000
            builder.call("cudaStreamWaitEvent_v3020").launch(name, 50_000, stream=stream, start_ns=at)
    assert judge(RULE, builder) == []


def test_silent_on_one_stream(judge: Judge) -> None:
    builder = TraceBuilder()
    for _ in range(9):
        builder.call("cudaStreamWaitEvent_v3020").launch("gemm", 50_000)
    assert judge(RULE, builder) == []


def test_silent_where_few_changes_wait(judge: Judge) -> None:
    assert judge(RULE, chain(wait=False).call("cudaStreamWaitEvent_v3020").launch("gemm", 5)) == []


def test_abstains_where_waits_were_not_recorded(judge: Judge) -> None:
    verdict = judge(RULE, chain(wait=False, recorded=False))
    assert isinstance(verdict, Abstain) and "--trace=cuda" in verdict.to_record
