# SPDX-License-Identifier: Apache-2.0
"""Sums over made collectives: exposed time against brute force, groups, what is not known."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from builders import TraceBuilder
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from job_builder import BYTES, EPOCH_NS, KERNEL, TRANSFER_NS, Job

from profiling_lab.analysis.collectives import By, CollectivesResult, collectives
from profiling_lab.analysis.ranks import LocalPool, Options
from profiling_lab.analysis.ranks.kinds import algorithm_bytes, bus_bytes, has_bandwidth
from profiling_lab.errors import NotEnoughDataError, UsageError
from profiling_lab.trace.window import WindowSelection

GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
KERNELS = ("gemm", KERNEL, GATHER)


def of(paths: list[Path] | Path, by: By = "line", **how: Any) -> CollectivesResult:
    files = [str(path) for path in (paths if isinstance(paths, list) else [paths])]
    return collectives(files, by, pool=LocalPool(1), **how)


# Kernel (KERNELS), begin, duration, stream.
SPANS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 60), st.integers(1, 40), st.integers(1, 4)),
    min_size=1,
    max_size=12,
)


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(st.lists(SPANS, min_size=1, max_size=2))
def test_exposed_and_hidden_time_by_brute_force(
    tmp_path: Path, gpus: list[list[tuple[int, int, int, int]]]
) -> None:
    builder = TraceBuilder(form="nsys")
    ran: list[list[set[int]]] = []
    for gpu, spans in enumerate(gpus):
        at: list[set[int]] = [set() for _ in range(100)]
        for kernel, begin, length, stream in [*spans, (1, 0, 1, 9)]:
            builder.launch(
                KERNELS[kernel], length, start_ns=2_000_000 + begin, stream=stream, pid=100 + gpu, device=gpu
            )
            for moment in range(begin, begin + length):
                at[moment].add(kernel)
        ran.append(at)
    path = tmp_path / "run.sqlite"
    path.unlink(missing_ok=True)
    builder.write(path)
    kernel_of = {"AllReduce": 1, "AllGather": 2}
    result = of(path, "kind")
    moments = [moment for at in ran for moment in at]
    assert result.busy_ns == sum(bool(moment & {1, 2}) for moment in moments)
    assert result.hidden_ns == sum(bool(moment & {1, 2}) and 0 in moment for moment in moments)
    for row in result.rows:
        kernel = kernel_of[row.kind]
        assert row.busy_ns == sum(kernel in moment for moment in moments)
        assert row.hidden_ns == sum({0, kernel} <= moment for moment in moments)
        assert 0 <= row.exposed_ns <= row.busy_ns <= row.times.total
        assert row.exposed_ns <= 100 * len(gpus), "no cost exceeds its span"
    for by in ("line", "group", "collective"):
        assert sum(row.times.total for row in of(path, by).rows) == sum(r.times.total for r in result.rows)


@pytest.mark.parametrize(
    ("kind", "size", "ranks", "algorithm", "bus"),
    [
        # By the tables of nccl-tests' PERFORMANCE.md: S is the whole buffer, B = S / t times the factor.
        ("AllReduce", 800, 4, 800, 800 * 2 * 3 / 4),
        ("AllGather", 200, 4, 800, 800 * 3 / 4),
        ("ReduceScatter", 200, 4, 800, 800 * 3 / 4),
        ("AllToAll", 800, 4, 800, 800 * 3 / 4),
        ("Broadcast", 800, 4, 800, 800),
        ("Reduce", 800, 4, 800, 800),
        ("SendRecv", 800, 4, 800, 800),
    ],
)
def test_bytes_of_nccl_tests(kind: str, size: int, ranks: int, algorithm: int, bus: float) -> None:
    assert has_bandwidth(kind)
    assert (algorithm_bytes(kind, size, ranks), bus_bytes(kind, size, ranks)) == (algorithm, bus)


def test_no_bandwidth_is_made_up_for_other_kinds() -> None:
    assert not any(map(has_bandwidth, ("Barrier", "Gather", "Scatter", "ncclDevKernel_Generic")))


def torch_trace(path: Path, *kernels: dict[str, Any], rank: int = 0) -> Path:
    """torch.profiler's JSON with collectives of 50 us, one after the other."""
    events = []
    for i, args in enumerate(kernels):
        shared = {"ph": "X", "ts": i * 100.0, "dur": 50.0}
        details = {"device": rank, "stream": 7, "correlation": i, "dtype": "Float"} | args
        events += [
            shared | {"cat": "kernel", "name": "ncclDevKernel_Some", "pid": 0, "tid": 7, "args": details},
            shared | {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 9, "tid": 9,
                      "args": {"correlation": i}},
        ]  # fmt: skip
    job = {"rank": rank, "world_size": 4}
    path.write_text(
        json.dumps({"distributedInfo": job, "baseTimeNanoseconds": EPOCH_NS, "traceEvents": events})
    )
    return path


def collective(name: str, elements: int, group: str = "0", members: int = 4, **more: Any) -> dict[str, Any]:
    return {
        "Collective name": name, "In msg nelems": elements, "Out msg nelems": elements,
        "Group size": members, "Process Group Name": group,
        "Process Group Ranks": str(list(range(members))),
    } | more  # fmt: skip


def test_rows_by_kind_group_and_size(tmp_path: Path) -> None:
    path = torch_trace(
        tmp_path / "trace.json",
        collective("allreduce", 1000),
        collective("allreduce", 3000),
        collective("allreduce", 500, "1", 2),
        collective("_allgather_base", 100),
        collective("all_to_allv", 400),
    )
    groups = {(row.kind, row.group): row for row in of(path, "group").rows}
    assert set(groups) == {("AllReduce", "0"), ("AllReduce", "1"), ("AllGather", "0"), ("AllToAll", "0")}
    whole, pair = groups["AllReduce", "0"], groups["AllReduce", "1"]
    assert (whole.group_size, whole.members, whole.size_total_bytes) == (4, (0, 1, 2, 3), 16_000)
    # 16,000 bytes in 100 us.
    assert (whole.rates.algorithm_bytes_per_s, whole.rates.bus_bytes_per_s) == (160_000_000, 240_000_000)
    assert (pair.group_size, pair.rates.bus_bytes_per_s) == (2, 40_000_000)
    gathered = groups["AllGather", "0"]
    assert (gathered.rates.algorithm_bytes_per_s, gathered.rates.bus_bytes_per_s) == (32_000_000, 24_000_000)
    kinds = {row.kind: row for row in of(path, "kind").rows}
    mixed = kinds["AllReduce"]
    assert (mixed.count, mixed.group, mixed.group_size) == (3, "", None)
    # 24,000 bytes on the bus of four ranks and 2,000 on that of two, in 150 us.
    assert mixed.rates.bus_bytes_per_s == 173_333_333
    assert (kinds["AllToAll"].group, kinds["AllToAll"].group_size) == ("0", 4)
    for by in ("line", "group", "kind", "collective"):
        keys = [row.key for row in of(path, by).rows]
        assert len(set(keys)) == len(keys)


def test_groups_of_one_name_and_other_members_are_other_rows(tmp_path: Path) -> None:
    path = torch_trace(
        tmp_path / "trace.json", collective("allreduce", 1), collective("allreduce", 1, members=2)
    )
    assert {row.key for row in of(path, "group").rows} == {"AllReduce/0/0,1,2,3", "AllReduce/0/0,1"}


@pytest.mark.parametrize(
    "unknown",
    [{"dtype": "odd"}, {"In msg nelems": None}, {"Group size": None, "Process Group Ranks": ""},
     {"Group size": 1, "Process Group Ranks": "[0]"}],
)  # fmt: skip
def test_without_bytes_or_group_there_is_no_bandwidth(tmp_path: Path, unknown: dict[str, Any]) -> None:
    args = {k: v for k, v in (collective("allreduce", 1000) | unknown).items() if v is not None}
    (row,) = of(torch_trace(tmp_path / "trace.json", args)).rows
    assert row.count == 1 and row.rates.measured == 0
    assert row.rates.algorithm_bytes_per_s is row.rates.bus_bytes_per_s is None
    assert row.arrivals.spread_ns is None, "one rank shows nothing of others"


def test_one_unknown_size_makes_the_total_unknown(tmp_path: Path) -> None:
    path = torch_trace(
        tmp_path / "trace.json", collective("allreduce", 1000), collective("allreduce", 1000, dtype="odd")
    )
    (row,) = of(path, "group").rows
    assert (row.count, row.sizes.count, row.size_total_bytes, row.rates.measured) == (2, 1, None, 1)
    assert row.rates.algorithm_bytes_per_s == 80_000_000, "of the one that is known, over its own time"


def test_arrivals_of_a_job(tmp_path: Path) -> None:
    """Rank 3 comes 2 ms late to the first collective of each step; transfer takes TRANSFER_NS."""
    job = Job(ranks=4, steps=5, starts_apart_ns=0)
    job.slow_compute[3] = 2_000_000
    job.clock_error[1] = 9_000_000
    paths = job.write_torch(tmp_path)
    (row,) = of(paths, "group").rows
    assert (row.count, row.ranks, row.arrivals.compared) == (4 * 5 * 2, 4, 10)
    assert (row.arrivals.last_rank, row.arrivals.last_frac) == (3, 0.5)
    assert row.arrivals.bus_bytes_per_s == pytest.approx(BYTES * 1.5 / (TRANSFER_NS / 1e9), rel=0.02)
    assert row.arrivals.wait_ns == pytest.approx(3 * 5 * 2_000_000, rel=0.01)
    assert row.arrivals.wait_ns + row.arrivals.transfer_ns == row.times.total
    singles = of(paths, "collective").rows
    late = [one for one in singles if one.arrivals.last_rank == 3]
    assert len(singles) == 10 and len(late) == 5
    assert all(one.arrivals.spread_ns == pytest.approx(2_000_000, abs=5_000) for one in late)
    assert all(one.ranks == one.count == 4 for one in singles)
    assert [one.exposed_ns for one in singles] == sorted((o.exposed_ns for o in singles), reverse=True)


def test_collectives_outside_of_steps_are_there_and_not_matched(tmp_path: Path) -> None:
    paths = []
    for rank in range(2):
        builder = TraceBuilder(pid=100 + rank).row("TARGET_INFO_SESSION_START_TIME", utcEpochNs=EPOCH_NS)
        builder.launch(KERNEL, 7000).gap(100_000)
        for _ in range(4):
            begin = builder.now_ns
            builder.launch("gemm", 9000).launch(KERNEL, 5000)
            builder.range("training_step", begin, builder.now_ns).gap(50_000)
        paths.append(builder.write(tmp_path / f"run.rank{rank}.sqlite"))
    result = of(paths, "collective")
    alone = [row for row in result.rows if row.step is None]
    assert [(row.count, row.number, row.arrivals.compared) for row in alone] == [(1, None, 0)] * 2
    assert [row.count for row in result.rows if row.step is not None] == [2] * 4
    assert any("collectives outside of steps: 1" in note for note in result.notes)
    (row,) = of(paths, "kind").rows
    assert (row.count, row.arrivals.compared) == (10, 4)
    assert of(paths[0]).notes == (), "with one rank there is nothing to match"


def test_lines_of_forward_and_backward_are_rows_of_their_own(tmp_path: Path) -> None:
    line = "/app/train.py:7 step"
    builder = TraceBuilder().launch(KERNEL, 5000, stack=line, peek=1)
    builder.launch(KERNEL, 4000, node=0, node_name="AllReduceBackward0", thread=2, peek=0)
    builder.launch(GATHER, 3000, stack="/app/train.py:8 step", peek=2)
    rows = of(builder.write(tmp_path / "run.sqlite")).rows
    places = [
        (row.kind, row.places[0].phase, row.places[0].frame.line) for row in rows if row.places[0].frame
    ]
    assert places == [("AllReduce", "forward", 7), ("AllReduce", "backward", 7), ("AllGather", "forward", 8)]
    (both, _) = of(tmp_path / "run.sqlite", "kind").rows
    assert [(p.phase, p.ns) for p in both.places] == [("forward", 5000), ("backward", 4000)]


def test_the_same_whoever_reads_the_files(tmp_path: Path) -> None:
    paths = Job(ranks=3, steps=3).write(tmp_path)
    serial = of(paths, "collective")
    parallel = collectives([str(path) for path in paths], "collective", pool=LocalPool(3))
    assert parallel == serial


def test_limits_and_wrong_questions(tmp_path: Path) -> None:
    paths = Job(ranks=2, steps=3).write(tmp_path)
    result = of(paths, "collective", limit=2)
    assert (len(result.rows), result.total_matched) == (2, 6)
    for one, other in pairwise(result.rows):
        assert one.exposed_ns >= other.exposed_ns
    with pytest.raises(UsageError, match="by must be one of line, group, kind, collective"):
        of(paths, "rank")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="at least 1"):
        of(paths, limit=0)
    window = Options(window=WindowSelection(step="1"))
    assert of(paths, options=window).calls == 4


def test_no_collectives_is_said_with_the_reason(tmp_path: Path, captures: Path) -> None:
    path = TraceBuilder().launch("gemm", 1000).write(tmp_path / "run.sqlite")
    with pytest.raises(NotEnoughDataError, match=r"run\.sqlite: no collectives: none of the 1 GPU op"):
        of(path)
    with pytest.raises(NotEnoughDataError, match="4,368 GPU operations"):
        of(captures / "fsdp_inference_2xh100.sqlite")
