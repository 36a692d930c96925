# SPDX-License-Identifier: Apache-2.0
"""The memory of a GPU"""

from __future__ import annotations

from builders import VM, Judge, TraceBuilder

from profiling_lab.rules import Abstain
from profiling_lab.rules.memory_full import RULE

GB = 1 << 30


def holding(*events: tuple[int, int], total: int | None = 80 * GB) -> TraceBuilder:
    """Events of (bytes, 0 for an allocation and 1 for a release), each with its call."""
    builder = TraceBuilder().launch("gemm", 100)
    for line, (size, released) in enumerate(events, 1):
        at = builder.now_ns
        builder.call("cudaFree_v3020" if released else "cudaMalloc_v3020", stack=f"/app/model.py:{line} f")
        builder.row(
            "CUDA_GPU_MEMORY_USAGE_EVENTS",
            start=at + 10,
            globalPid=VM | builder.pid << 24,
            deviceId=0,
            bytes=size,
            memKind=2,
            memoryOperationType=released,
        )
    builder.launch("gemm", 100)
    if total is not None:
        builder.row("TARGET_INFO_GPU", vmId=0, id=0, name="Test GPU", totalMemory=total)
    return builder


def test_fires_at_the_peak_and_names_who_allocated_last(judge: Judge) -> None:
    (finding,) = judge(RULE, holding((40 * GB, 0), (35 * GB, 0), (30 * GB, 1), (1 * GB, 0)))
    assert f"held {75 * GB:,} bytes" in finding.what and "93.8 %" in finding.what
    assert finding.place.line == 2 and finding.events == 4 and finding.cost_ns == 4 * 3_000


def test_fires_without_the_calls_that_allocated(judge: Judge) -> None:
    builder = holding((75 * GB, 0))
    del builder.rows["CUPTI_ACTIVITY_KIND_RUNTIME"][1:]
    (finding,) = judge(RULE, builder)
    assert finding.place is None and finding.cost_ns == 0 and finding.what.endswith("93.8 % of all")
    assert [str(event) for event in finding.evidence] == ["operations[0]"]


def test_silent_where_there_is_room(judge: Judge) -> None:
    assert judge(RULE, holding((40 * GB, 0), (39 * GB, 1), (39 * GB, 0))) == []


def test_host_memory_is_none_of_the_gpus(judge: Judge) -> None:
    builder = holding((90 * GB, 0))
    builder.rows["CUDA_GPU_MEMORY_USAGE_EVENTS"][0]["memKind"] = 1
    assert judge(RULE, builder) == []


def test_abstains_without_allocations_or_a_size(judge: Judge) -> None:
    verdict = judge(RULE, holding())
    assert isinstance(verdict, Abstain) and "--cuda-memory-usage=true" in verdict.to_record
    verdict = judge(RULE, holding((90 * GB, 0), total=None))
    assert isinstance(verdict, Abstain) and "how much memory" in verdict.reason
