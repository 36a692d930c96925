# SPDX-License-Identifier: Apache-2.0
"""Odd traces: every rule answers, costs are never negative, and evidence points at rows that are there."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from builders import TraceBuilder
from hypothesis import given, settings
from hypothesis import strategies as st

from profiling_lab.rules import RULES, run
from profiling_lab.rules.finding import with_effects
from profiling_lab.trace import Trace

times = st.one_of(st.integers(0, 2_000), st.integers(-(1 << 63), (1 << 63) - 1))
kinds = st.sampled_from((None, 0, 1, 2, 4, -3, 200))
ids = st.integers(0, 6)
APIS = ("cudaLaunchKernel_v7000", "cudaMemcpyAsync_v3020", "cudaMemcpy_v3020", "cudaStreamSynchronize_v3020",
        "cudaMalloc_v3020", "cudaMemset_v3020", "cudaStreamWaitEvent_v3020")  # fmt: skip

KERNELS = ("k", "ncclDevKernel_AllReduce", "volta_sgemm_64x64_nt", "elementwise_kernel<copy_kernel>")
RANGES = ("DataLoader.__next__", "aten::mm", "ProfilerStep#1", "ProfilerStep#2", "DataParallel.forward")
operations = st.tuples(st.sampled_from(("KERNEL", "MEMCPY", "MEMSET")), times, times, ids, ids, kinds, kinds)
calls = st.tuples(times, times, ids, st.sampled_from(APIS), st.booleans())
overheads = st.tuples(times, times, st.integers(-2, 12))
ranges = st.tuples(times, st.none() | times, st.sampled_from(RANGES))


def build(ops: list, api: list, over: list, nvtx: list, memory: list) -> TraceBuilder:
    builder = TraceBuilder(form="nsys")
    pid = (1 << 48) | (builder.pid << 24)
    for table, start, end, correlation, stream, source, target in ops:
        row = {"start": start, "end": end, "deviceId": stream % 2, "contextId": 1, "streamId": stream}
        row |= {"correlationId": correlation, "globalPid": pid}
        row |= {
            "KERNEL": dict.fromkeys(("demangledName", "shortName"), builder.string(KERNELS[correlation % 4])),
            "MEMCPY": {"bytes": source or 0, "copyKind": stream, "srcKind": source, "dstKind": target},
            "MEMSET": {"bytes": 4, "value": 0, "memKind": target},
        }[table]
        builder.row(f"CUPTI_ACTIVITY_KIND_{table}", **row)
    for start, end, correlation, name, has_stack in api:
        row = {"start": start, "end": end, "eventClass": 0, "globalTid": builder.tid(1)}
        row |= {"correlationId": correlation, "nameId": builder.string(name), "returnValue": 0}
        builder.row("CUPTI_ACTIVITY_KIND_RUNTIME", **row)
        if has_stack:
            ddp = ("DistributedDataParallel.forward", "/torch/nn/parallel/distributed.py", 9)
            frames = (("f", "/app/a.py", correlation), *((ddp,) if correlation % 2 else ()))
            builder.backtrace(start, builder.tid(1), frames)
    for start, end, kind in over:
        row = {"start": start, "end": end, "globalTid": builder.tid(1), "overheadType": kind}
        builder.row("CUPTI_ACTIVITY_KIND_OVERHEAD", **row)
    for start, end, text in nvtx:
        builder.range(text, start, end)
    for start, size, released in memory:
        values = {"start": start, "bytes": size, "memKind": 2, "memoryOperationType": released}
        builder.row("CUDA_GPU_MEMORY_USAGE_EVENTS", globalPid=pid, deviceId=0, **values)
    if memory:
        builder.row("TARGET_INFO_GPU", vmId=0, id=0, name="GPU", totalMemory=1000, computeMajor=9)
    return builder


@settings(max_examples=100)
@given(
    st.lists(operations, min_size=1, max_size=70),
    st.lists(calls, max_size=12),
    st.lists(overheads, max_size=4),
    st.lists(ranges, max_size=4),
    st.lists(st.tuples(times, times, st.integers(0, 1)), max_size=3),
)
def test_every_rule_answers(ops: list, api: list, over: list, nvtx: list, memory: list) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = build(ops, api, over, nvtx, memory).write(Path(folder) / "run.sqlite")
        with Trace.open(path) as trace:
            if not len(trace.operations):
                return  # all of them at impossible times
            checked = run(trace, RULES)
            sizes = {"operations": len(trace.operations), "calls": len(trace.calls)}
            sizes |= {"ranges": len(trace.ranges), "overheads": len(trace.overheads)}
    answered = (
        {f.rule for f in with_effects(checked.findings)}
        | {*checked.silent}
        | {rule for rule, _ in checked.abstained}
    )
    assert answered == {rule.name for rule in RULES}
    for finding in with_effects(checked.findings):
        assert finding.cost_ns >= 0, finding
        assert finding.evidence and all(0 <= e.row < sizes[e.table] for e in finding.evidence)


@pytest.mark.parametrize("count", [1, 100])
def test_operations_without_length(tmp_path: Path, count: int) -> None:
    builder = TraceBuilder()
    for _ in range(count):
        builder.copy("HtoD", 0, start_ns=5, stack="/app/a.py:1 f", source=0)
        builder.launch("k", 0, start_ns=5, stack="/app/a.py:1 f").call("cudaStreamSynchronize_v3020")
    with Trace.open(builder.write(tmp_path / "run.sqlite")) as trace:
        assert all(finding.cost_ns >= 0 for finding in run(trace, RULES).findings)
