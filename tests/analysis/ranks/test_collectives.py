# SPDX-License-Identifier: Apache-2.0
"""Which collective is which: by name, group, number; with sizes where a file has them."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest
from builders import TraceBuilder
from job_builder import EPOCH_NS, KERNEL

from profiling_lab.analysis.ranks import Options, RankSummary, summarize
from profiling_lab.analysis.ranks.collectives import PER_STEP
from profiling_lab.analysis.ranks.kinds import RankSet, Series, bus_bytes
from profiling_lab.trace import Trace
from profiling_lab.trace.operation_classes import collective_kind

GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
COMMUNICATOR, SCHEMA = 0xABCDEF, 16777220


def summary_of(path: Path, steps_by: str | None = None) -> RankSummary:
    with Trace.open(path) as trace:
        (summary,) = summarize(trace, Options(steps_by=steps_by))
    return summary


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "AllReduce"),
        ("ncclKernel_ReduceScatter_RING_LL_Sum_float", "ReduceScatter"),
        ("_allgather_base", "AllGather"),
        ("reduce_scatter_tensor_coalesced", "ReduceScatter"),
        ("all_to_allv", "AllToAll"),
        ("ncclDevKernel_SendRecv", "SendRecv"),
        ("multimem_all_reduce_kernel<c10::BFloat16>", "AllReduce"),
        ("vllm::cross_device_reduce_1stage<half, 8>", "AllReduce"),
        ("ncclDevKernel_Broadcast_RING_LL", "Broadcast"),
        ("ncclDevKernel_Generic", "ncclDevKernel_Generic"),
    ],
)
def test_kinds(name: str, kind: str) -> None:
    assert collective_kind(name) == kind


def test_the_kernel_decides_where_the_name_does_not() -> None:
    assert (
        collective_kind("coalesced", "AllGather") == "AllGather" and collective_kind("", "Reduce") == "Reduce"
    )
    assert collective_kind("all_to_all", "SendRecv") == "AllToAll"


def test_bytes_on_the_bus() -> None:
    assert bus_bytes("AllReduce", 800, 4) == 1200 and bus_bytes("AllGather", 100, 4) == 300
    assert bus_bytes("AllToAll", 800, 4) == 600 and bus_bytes("Broadcast", 800, 4) == 800


def test_numbers_count_within_steps_and_kinds(tmp_path: Path) -> None:
    builder = TraceBuilder()
    for _ in range(2):
        begin = builder.now_ns
        for kernel in (KERNEL, GATHER, KERNEL):
            builder.launch("gemm", 1000).launch(kernel, 2000)
        builder.range("training_step", begin, builder.now_ns - 1)
    builder.gap(10_000).launch(KERNEL, 2000)
    found = summary_of(builder.write(tmp_path / "run.sqlite"))
    numbers = {series.kind: occurrences.number for series, occurrences in found.collectives.series.items()}
    assert (numbers["AllReduce"] % PER_STEP).tolist() == [0, 1, 0, 1]
    assert np.diff(numbers["AllReduce"] // PER_STEP).tolist() == [0, 1, 0]
    assert len(numbers["AllGather"]) == 2
    assert found.collectives.outside == 1 and "1 collectives lie outside of steps" in found.facts.notes[0]


def test_the_order_is_the_hosts(tmp_path: Path) -> None:
    """A stream that is behind runs its collective later: that makes it no other collective."""
    builder = TraceBuilder()
    builder.launch(KERNEL, 1000, stream=7, start_ns=2_000_000).launch(
        KERNEL, 5000, stream=9, start_ns=1_500_000
    )
    (occurrences,) = summary_of(builder.write(tmp_path / "run.sqlite")).collectives.series.values()
    assert occurrences.start_ns.tolist() == [2_000_000, 1_500_000]


def payload(communicator: int, size_bytes: int) -> bytes:
    """An NVTX payload as nsys exports it: header of domain, schema and sizes, then the fields."""
    fields = struct.pack("<QQ", communicator, size_bytes)
    return struct.pack("<IIIIQQ", 1, 0, SCHEMA, 0, len(fields), 32 + len(fields)) + fields


def test_sizes_and_communicators_from_nccl(tmp_path: Path) -> None:
    builder = TraceBuilder(form="nsys")
    schema = "NVTX_PAYLOAD_SCHEMA_ENTRIES"
    fields = {"NCCL communicator ID": (18, 0), "Message size [bytes]": (22, 8)}
    for i, (name, (kind, offset)) in enumerate(fields.items()):
        builder.row(schema, domainId=1, schemaId=SCHEMA, idx=i, type=kind, name=name, offset=offset)
    for size in (4096, 8192):
        at = builder.now_ns
        # The launch comes at the end of the group, after the range of the call.
        builder.range("ncclAllReduce", at, at + 500, domainId=1, binaryData=payload(COMMUNICATOR, size))
        builder.gap(1000).launch(KERNEL, 2000)
    builder.launch(GATHER, 1000)
    found = summary_of(builder.write(tmp_path / "run.sqlite")).collectives.series
    by_kind = {series.kind: (series, occurrences) for series, occurrences in found.items()}
    series, occurrences = by_kind["AllReduce"]
    assert series.group == "communicator abcdef" and occurrences.size_bytes.tolist() == [4096, 8192]
    # The last call before the gather is an all-reduce: that is not its own.
    series, occurrences = by_kind["AllGather"]
    assert series.group == "" and occurrences.size_bytes.tolist() == [-1]


def test_a_truncated_payload_is_ignored(tmp_path: Path) -> None:
    builder = TraceBuilder(form="nsys")
    builder.row("NVTX_PAYLOAD_SCHEMA_ENTRIES", domainId=1, schemaId=SCHEMA, idx=0, type=22,
                name="Message size [bytes]", offset=8)  # fmt: skip
    for data in (b"", b"short", payload(1, 2)[:36]):
        at = builder.now_ns
        builder.range("ncclAllReduce", at, at + 500, domainId=1, binaryData=data)
        builder.launch(KERNEL, 2000)
    (occurrences,) = summary_of(builder.write(tmp_path / "run.sqlite")).collectives.series.values()
    assert occurrences.size_bytes.tolist() == [-1, -1, -1]


def test_groups_of_torch_keep_their_own_members(tmp_path: Path) -> None:
    events = []
    for i, (group, members) in enumerate([("0", [0, 1, 2, 3]), ("1", [0, 1]), ("0", [0, 1, 2, 3])]):
        args = {
            "device": 0, "stream": 7, "correlation": i, "Collective name": "_allgather_base",
            "In msg nelems": 10, "Out msg nelems": 40, "dtype": "BFloat16", "Group size": len(members),
            "Process Group Name": group, "Process Group Ranks": str(members),
        }  # fmt: skip
        shared = {"ph": "X", "ts": i * 100.0, "dur": 50.0}
        events += [
            shared | {"cat": "kernel", "name": GATHER, "pid": 0, "tid": 7, "args": args},
            shared | {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 9, "tid": 9,
                      "args": {"correlation": i}},
        ]  # fmt: skip
    path = tmp_path / "trace.json"
    path.write_text(
        json.dumps({
            "distributedInfo": {"rank": 1, "world_size": 4},
            "baseTimeNanoseconds": EPOCH_NS,
            "traceEvents": events,
        })
    )  # fmt: skip
    found = summary_of(path)
    assert (found.facts.rank, found.facts.world_size, found.facts.said_by) == (1, 4, "recording")
    world, pair = (
        Series("AllGather", g, RankSet.of(m), len(m), "order")
        for g, m in (("0", (0, 1, 2, 3)), ("1", (0, 1)))
    )
    assert len(found.collectives.series[world].number) == 2
    assert found.collectives.series[pair].size_bytes.tolist() == [20], "the part of one rank"


@pytest.mark.parametrize(
    ("name", "rank"),
    [("run.rank3.sqlite", 3), ("job-Rank_12.sqlite", 12), ("r7.sqlite", 7), ("trainer3.sqlite", None),
     ("run.sqlite", None)],
)  # fmt: skip
def test_ranks_by_the_name_of_the_file(tmp_path: Path, name: str, rank: int | None) -> None:
    assert summary_of(TraceBuilder().launch("gemm", 1000).write(tmp_path / name)).facts.rank == rank


def test_a_process_on_several_gpus_is_a_rank_on_each(tmp_path: Path) -> None:
    builder = TraceBuilder().launch("gemm", 9000).launch("gemm", 9000, device=1).launch("gemm", 100, device=2)
    with Trace.open(builder.write(tmp_path / "run.sqlite")) as trace:
        found = summarize(trace)
    assert [(summary.facts.device, summary.facts.rank) for summary in found] == [(0, None), (1, None)]
    assert "drives 2 GPUs" in found[0].facts.notes[0] and "GPU 2 a little" in found[0].facts.notes[1]
