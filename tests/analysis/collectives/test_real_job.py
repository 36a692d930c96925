# SPDX-License-Identifier: Apache-2.0
"""Two GPUs as three recorders saw them, against the files read by hand and the model's gradients."""

from __future__ import annotations

import json
import sqlite3
import statistics
import struct
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from profiling_lab.analysis.collectives import CollectivesResult, CollectiveSum, collectives
from profiling_lab.analysis.overlap.overlap import overlap
from profiling_lab.analysis.ranks import LocalPool, Options, ranks
from profiling_lab.trace import Trace
from profiling_lab.trace.window import WindowSelection

STEPS, BUCKETS = 10, 8
# train_ddp.py: four blocks of two Linear layers with biases, float32.
GRADIENTS = 4 * 4 * (1024 * 4096 + 4096 + 4096 * 1024 + 1024)
OURS = ("run.rank0.sqlite", "run.rank1.sqlite")
TORCH = ("kineto.rank0.json", "kineto.rank1.json")
NSYS = ("nsys.sqlite",)


def asked(folder: Path, names: tuple[str, ...], by: Any = "group", **how: Any) -> CollectivesResult:
    return collectives([str(folder / name) for name in names], by, pool=LocalPool(1), **how)


def all_reduces(result: CollectivesResult) -> CollectiveSum:
    (row,) = (row for row in result.rows if row.kind == "AllReduce")
    return row


def kernels_by_hand(path: Path) -> dict[str, list[tuple[int, int]]]:
    """NCCL's kernels by kind, in SQL or in the JSON."""
    found: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    if path.suffix == ".json":
        for event in json.loads(path.read_text())["traceEvents"]:
            if event.get("cat") == "kernel" and event["name"].startswith("nccl"):
                begin, end = (round(1000 * t) for t in (event["ts"], event["ts"] + event["dur"]))
                found[event["name"].split("_")[1]].append((begin, end))
        return found
    with sqlite3.connect(path) as file:
        query = (
            "SELECT s.value, k.start, k.end FROM CUPTI_ACTIVITY_KIND_KERNEL k"
            " JOIN StringIds s ON s.id = k.shortName WHERE s.value LIKE 'nccl%'"
        )
        for name, begin, end in file.execute(query):
            found[name.split("_")[1]].append((begin, end))
    return found


@pytest.mark.parametrize("names", [OURS, TORCH, NSYS], ids=["ours", "torch", "nsys"])
def test_counts_and_times_are_those_of_the_kernels(ddp: Path, names: tuple[str, ...]) -> None:
    by_kind: defaultdict[str, list[int]] = defaultdict(list)
    for name in names:
        for kind, spans in kernels_by_hand(ddp / name).items():
            by_kind[kind] += [end - begin for begin, end in spans]
    result = asked(ddp, names)
    assert {row.kind: row.count for row in result.rows} == {kind: len(ns) for kind, ns in by_kind.items()}
    assert len(by_kind["AllReduce"]) == 2 * (1 + (STEPS - 1) * BUCKETS), "the first step has one bucket"
    for row in result.rows:
        tolerance = len(by_kind[row.kind]) if names is TORCH else 0  # microseconds with three digits
        assert abs(row.times.total - sum(by_kind[row.kind])) <= tolerance
        assert abs(row.times.median - int(statistics.median(by_kind[row.kind]))) <= (names is TORCH)
        assert row.ranks == 2


@pytest.mark.parametrize("names", [OURS, TORCH], ids=["ours", "torch"])
def test_the_buckets_of_a_step_are_the_gradients_of_the_model(ddp: Path, names: tuple[str, ...]) -> None:
    row = all_reduces(asked(ddp, names))
    assert row.size_total_bytes == 2 * STEPS * GRADIENTS
    assert (row.sizes.longest, row.group_size, row.count) == (GRADIENTS, 2, row.rates.measured)
    single = [r for r in asked(ddp, names, "collective").rows if r.kind == "AllReduce" and r.step is not None]
    by_step: defaultdict[int | None, int] = defaultdict(int)
    for one in single:
        assert one.count == one.ranks == 2 and one.arrivals.compared == 1
        by_step[one.step] += one.sizes.median
    assert set(by_step.values()) == {GRADIENTS} and len(by_step) == STEPS - 1


def test_sizes_are_those_of_nccls_payloads(ddp: Path) -> None:
    """The last 8 bytes behind header and communicator of each ncclAllReduce."""
    total = 0
    for name in OURS:
        with sqlite3.connect(ddp / name) as file:
            query = (
                "SELECT n.binaryData FROM NVTX_EVENTS n LEFT JOIN StringIds s ON s.id = n.textId"
                " WHERE COALESCE(n.text, s.value) = 'ncclAllReduce'"
            )
            total += sum(struct.unpack_from("<Q", data, 40)[0] for (data,) in file.execute(query))
    assert all_reduces(asked(ddp, OURS)).size_total_bytes == total


@pytest.mark.parametrize("names", [OURS, TORCH], ids=["ours", "torch"])
def test_bandwidths_by_nccl_tests_definition(ddp: Path, names: tuple[str, ...]) -> None:
    row = all_reduces(asked(ddp, names))
    algorithm = row.size_total_bytes / (row.times.total / 1e9) if row.size_total_bytes else 0
    assert row.rates.algorithm_bytes_per_s == pytest.approx(algorithm, rel=1e-9)
    # 2 (n - 1) / n is 1 for two ranks.
    assert row.rates.bus_bytes_per_s == row.rates.algorithm_bytes_per_s
    # `ranks` finds the same from the last arrival on: of the means, it is within some per cent.
    compared = ranks([str(ddp / name) for name in names], pool=LocalPool(1)).collectives
    (series,) = (r for r in compared if r.series.kind == "AllReduce")
    assert row.arrivals.compared == series.compared == (STEPS - 1) * BUCKETS
    assert row.arrivals.spread_ns == series.spread_ns
    assert (row.arrivals.last_rank, row.arrivals.last_frac) == (1, 1.0)
    assert row.arrivals.bus_bytes_per_s == pytest.approx(series.bus_bytes_per_s, rel=0.02)
    assert row.arrivals.bus_bytes_per_s > 5 * row.rates.bus_bytes_per_s, "rank 0 waits most of the time"


def test_what_nsys_did_not_export_is_unknown(ddp: Path) -> None:
    result = asked(ddp, NSYS)
    assert (result.sized, result.grouped) == (0, 0)
    for row in result.rows:
        assert row.size_total_bytes is None and row.group_size is None and row.rates.measured == 0
        assert row.rates.bus_bytes_per_s is row.rates.algorithm_bytes_per_s is None
        assert row.arrivals.bus_bytes_per_s is None
    assert all_reduces(result).arrivals.spread_ns is not None, "for that no size is needed"


@pytest.mark.parametrize("name", [*OURS, *TORCH])
def test_exposed_time_is_that_of_overlap(ddp: Path, name: str) -> None:
    with Trace.open(ddp / name) as trace:
        (expected,) = (row for row in overlap(trace).classes if row.name == "communication")
    result = asked(ddp, (name,))
    assert (result.busy_ns, result.hidden_ns) == (expected.busy_ns, expected.hidden_ns)
    assert result.exposed_ns == expected.exposed_ns == sum(row.exposed_ns for row in result.rows)


def test_lines_are_those_of_the_program(ddp: Path) -> None:
    source = (Path(__file__).resolve().parents[2] / "data/ddp_h200/train_ddp.py").read_text().splitlines()
    found = {}
    for row in asked(ddp, OURS, "line").rows:
        (place,) = row.places
        line = source[place.frame.line - 1].strip() if place.frame else place.reason
        found[row.kind, place.phase, line.partition("(")[0]] = row.count
    assert found == {
        ("AllReduce", "backward", "communication launched by autograd hooks "): 146,
        ("Broadcast", "forward", "model = torch.nn.parallel.DistributedDataParallel"): 4,
        ("AllGather", "forward", "model = torch.nn.parallel.DistributedDataParallel"): 2,
        ("Broadcast", "forward", "model"): 4,
    }


def test_a_collective_that_the_window_cuts_has_no_bandwidth(ddp: Path) -> None:
    """All its bytes, but not all its time."""
    first = kernels_by_hand(ddp / OURS[0])["AllReduce"][0]
    with Trace.open(ddp / OURS[0]) as trace:
        zero = trace.first_ns
    middle = (first[0] + first[1]) // 2 - zero
    window = Options(window=WindowSelection(range=f"{middle}ns:{middle + 1000}ns"))
    row = all_reduces(asked(ddp, OURS[:1], options=window))
    assert (row.count, row.times.total, row.sizes.total) == (1, 1000, GRADIENTS)
    assert row.rates.measured == 0 and row.rates.bus_bytes_per_s is None


def test_the_arrival_spread_is_the_difference_of_starts(ddp: Path) -> None:
    """One file, one clock: the i-th all-reduce of each process by hand."""
    with sqlite3.connect(ddp / NSYS[0]) as file:
        query = (
            "SELECT k.globalPid, k.start FROM CUPTI_ACTIVITY_KIND_KERNEL k JOIN StringIds s"
            " ON s.id = k.shortName WHERE s.value LIKE 'ncclDevKernel_AllReduce%' ORDER BY k.start"
        )
        starts: defaultdict[int, list[int]] = defaultdict(list)
        for pid, start in file.execute(query):
            starts[pid].append(start)
    by_hand = {abs(one - other) for one, other in zip(*starts.values(), strict=True)}
    rows = [row for row in asked(ddp, NSYS, "collective").rows if row.arrivals.compared]
    assert len(rows) == 64 and {row.arrivals.spread_ns for row in rows} <= by_hand
