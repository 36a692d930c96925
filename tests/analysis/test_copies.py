# SPDX-License-Identifier: Apache-2.0
"""Copies by direction, memory and line."""

from __future__ import annotations

from pathlib import Path

import pytest
from builders import TraceBuilder

from profiling_lab.analysis.copies import CopiesResult, copies
from profiling_lab.analysis.copy_peaks import host_link
from profiling_lab.errors import NotEnoughDataError, UsageError
from profiling_lab.trace import Trace
from profiling_lab.trace.columns import MemoryKind
from profiling_lab.trace.window import WindowSelection

PAGEABLE, PINNED, DEVICE = MemoryKind.PAGEABLE, MemoryKind.PINNED, MemoryKind.DEVICE
RECORDED = Path(__file__).resolve().parents[2] / "profiling_lab/exercises/e17_python_backtrace/recorded"


def copies_of(builder: TraceBuilder, folder: Path, **how: object) -> CopiesResult:
    with Trace.open(builder.write(folder / "run.sqlite")) as trace:
        return copies(trace, **how)  # type: ignore[arg-type]


@pytest.fixture
def builder() -> TraceBuilder:
    out = TraceBuilder().launch("gemm", 10)
    load, save = "train.py:4 main", "train.py:9 main"
    out.copy("HtoD", 100_000, size_bytes=2_000_000, source=PINNED, target=DEVICE, stack=load)
    out.copy("HtoD", 300_000, size_bytes=6_000_000, source=PINNED, target=DEVICE, stack=load)
    out.copy("HtoD", 5_000, size_bytes=10, source=PINNED, target=DEVICE, stack=load)
    out.copy("HtoD", 200_000, size_bytes=1_000_000, source=PAGEABLE, target=DEVICE, stack=load)
    out.copy("HtoD", 50_000, size_bytes=1_000_000, source=PINNED, target=DEVICE, stack=save)
    out.copy("DtoH", 3_000, size_bytes=4, source=DEVICE, target=PAGEABLE, stack=save)
    out.copy("DtoD", 10_000, size_bytes=4_000_000, source=DEVICE, target=DEVICE)
    return out.memset(700, memory=DEVICE, stack=load)


def test_rows_are_by_direction_memory_and_line(builder: TraceBuilder, tmp_path: Path) -> None:
    result = copies_of(builder, tmp_path)
    rows = {row.key: row for row in result.rows}
    assert list(rows) == [
        "memcpy HtoD/pinned/device/train.py:4",
        "memcpy HtoD/pageable/device/train.py:4",
        "memcpy HtoD/pinned/device/train.py:9",
        "memcpy DtoD/device/device/:no Python stack",
        "memcpy DtoH/device/pageable/train.py:9",
        "memset/device/train.py:4",
    ]
    pinned = rows["memcpy HtoD/pinned/device/train.py:4"]
    assert (pinned.times.count, pinned.times.total, pinned.sizes.total) == (3, 405_000, 8_000_010)
    assert (pinned.large, pinned.bytes_per_s) == (2, 20_000_000_000), "the small one does not count"
    assert rows["memcpy DtoH/device/pageable/train.py:9"].bytes_per_s is None
    assert [row.pageable for row in result.rows] == [False, True, False, False, True, False]
    assert (result.copies, result.sets, result.pageable_ns) == (7, 1, 203_000)
    assert sum(row.share_frac for row in result.rows) == pytest.approx(1)
    assert sum(row.times.total for row in result.rows) == result.total_ns == 668_700


def test_rows_can_be_grouped_by_less(builder: TraceBuilder, tmp_path: Path) -> None:
    with Trace.open(builder.write(tmp_path / "run.sqlite")) as trace:
        by_memory, by_direction = copies(trace, "memory"), copies(trace, "direction")
        with pytest.raises(UsageError, match="by must be one of line, memory, direction"):
            copies(trace, "size")  # type: ignore[arg-type]
    assert [row.key for row in by_direction.rows] == ["memcpy HtoD", "memcpy DtoD", "memcpy DtoH", "memset"]
    up = by_direction.rows[0]
    assert (up.source, up.target, up.times.count, up.pageable) == ("", "", 5, True)
    assert [(place.key, place.ns) for place in up.places] == [
        ("train.py:4", 605_000),
        ("train.py:9", 50_000),
    ]
    assert [row.key for row in by_memory.rows][:2] == [
        "memcpy HtoD/pinned/device",
        "memcpy HtoD/pageable/device",
    ]


def test_a_part_of_a_pageable_copy_is_no_bandwidth(tmp_path: Path) -> None:
    """Of pageable memory some recordings have the last piece alone: 380 GB/s over PCIe."""
    out = TraceBuilder().row("TARGET_INFO_GPU", vmId=0, id=0, name="NVIDIA H200")
    for kind, gpu_ns, source, target, call_ns in (
        ("HtoD", 22_000, PAGEABLE, DEVICE, 1_400_000),
        ("HtoD", 22_000, PINNED, DEVICE, 5_000),
        ("DtoH", 45_000, DEVICE, PAGEABLE, 3_000_000),
        ("DtoH", 838_860, DEVICE, PAGEABLE, 900_000),
    ):
        out.copy(kind, gpu_ns, size_bytes=8_388_608, source=source, target=target, call_ns=call_ns)
        out.gap(call_ns)
    rows = {row.key: row for row in copies_of(out, tmp_path, by="memory").rows}
    up, down = rows["memcpy HtoD/pageable/device"], rows["memcpy DtoH/device/pageable"]
    assert (up.large, up.partial, up.bytes_per_s, up.of_peak_frac) == (1, 1, None, None)
    assert up.calls_ns == 1_400_000 and up.times.total == 22_000
    assert (down.large, down.partial, down.calls_ns) == (2, 1, 3_900_000)
    assert down.bytes_per_s == pytest.approx(10e9, rel=1e-3), "over the one that is whole"
    pinned = rows["memcpy HtoD/pinned/device"]
    assert pinned.partial == 0 and pinned.bytes_per_s > 300e9, "the driver stages no piece of it"


def test_a_link_that_is_not_known_makes_no_copy_a_part(tmp_path: Path) -> None:
    out = TraceBuilder().copy("HtoD", 22_000, size_bytes=8_388_608, source=PAGEABLE, target=DEVICE)
    out.copy("HtoD", 0, size_bytes=8_388_608, source=PAGEABLE, target=DEVICE)
    (row,) = copies_of(out, tmp_path).rows
    assert row.partial == 0 and row.bytes_per_s is not None


def test_time_in_calls_is_unknown_where_a_call_is(tmp_path: Path) -> None:
    out = TraceBuilder().copy("HtoD", 100, source=PINNED, target=DEVICE, call_ns=7_000).gap(9_000)
    out.copy("DtoH", 100, source=DEVICE, target=PINNED, call_ns=7_000)
    out.copy("DtoH", 100, source=DEVICE, target=PINNED, recorded=False)
    rows = copies_of(out, tmp_path, by="direction").rows
    assert {row.key: row.calls_ns for row in rows} == {"memcpy HtoD": 7_000, "memcpy DtoH": None}


def test_peaks_say_whose_figures_they_are(builder: TraceBuilder, tmp_path: Path) -> None:
    builder.row("TARGET_INFO_GPU", vmId=0, id=0, name="NVIDIA H200", memoryBandwidth=4_800_000_000_000)
    with Trace.open(builder.write(tmp_path / "run.sqlite")) as trace:
        rows = {row.direction: row for row in copies(trace, "direction").rows}
        given = copies(trace, "direction", peak_bytes_per_s=40_000_000_000).rows[0]
    link = rows["memcpy HtoD"].peak
    assert link and link.source.startswith("PCIe 5") and link.bytes_per_s == 63_000_000_000
    inside = rows["memcpy DtoD"]
    assert inside.peak and inside.peak.bytes_per_s == 2_400_000_000_000
    assert inside.of_peak_frac == pytest.approx(0.4e12 / 2.4e12)
    assert rows["memset"].peak is None and rows["memcpy DtoH"].of_peak_frac is None
    assert given.peak and given.peak.source == "as given"


def test_without_a_known_gpu_there_is_no_peak(builder: TraceBuilder, tmp_path: Path) -> None:
    assert {row.peak for row in copies_of(builder, tmp_path).rows} == {None}


@pytest.mark.parametrize(
    ("gpu", "source"),
    [
        ("NVIDIA H100 80GB HBM3", "PCIe 5"),
        ("NVIDIA A100-SXM4-80GB", "PCIe 4"),
        ("NVIDIA L40S", "PCIe 4"),
        ("NVIDIA GeForce RTX 3080", "PCIe 4"),
        ("NVIDIA GeForce RTX 5090", "PCIe 5"),
        ("Tesla V100-DGXS-32GB", "PCIe 3"),
        ("NVIDIA GH200 480GB", "NVLink-C2C"),
        ("Some GPU", None),
    ],
)
def test_links_of_gpus(gpu: str, source: str | None) -> None:
    link = host_link(gpu)
    assert (link is None) == (source is None) and (link is None or link.source.startswith(str(source)))


def test_a_copy_cut_by_the_window_has_no_bandwidth(tmp_path: Path) -> None:
    builder = TraceBuilder().copy("HtoD", 1_000_000, size_bytes=20_000_000, source=PINNED, target=DEVICE)
    builder.copy("HtoD", 1_000_000, size_bytes=30_000_000, source=PINNED, target=DEVICE)
    with Trace.open(builder.write(tmp_path / "run.sqlite")) as trace:
        (row,) = copies(trace.windowed(WindowSelection(range="500us:"))).rows
    assert (row.times.count, row.large, row.bytes_per_s) == (2, 1, 30_000_000_000)


def test_nothing_was_copied(tmp_path: Path) -> None:
    result = copies_of(TraceBuilder().launch("gemm", 10), tmp_path)
    assert (result.rows, result.copies, result.total_ns) == ((), 0, 0)
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotEnoughDataError, match="no GPU operation"):
        copies_of(TraceBuilder().call("cudaMalloc"), tmp_path / "empty")


def test_unknown_kind_of_memory(tmp_path: Path) -> None:
    (row,) = copies_of(TraceBuilder().copy("HtoD", 10), tmp_path).rows
    assert (row.source, row.target, row.pageable) == ("unknown", "unknown", False)


def test_fsdp_inference_is_bound_by_copies(captures: Path) -> None:
    with Trace.open(captures / "fsdp_inference_2xh100.sqlite") as trace:
        rows = {row.key: row for row in copies(trace, "memory").rows}
    pinned = rows["memcpy HtoD/pinned/device"]
    assert (pinned.times.count, pinned.sizes.total) == (446, 50_950_504_448)
    assert pinned.times.total == 1_841_627_438
    assert pinned.bytes_per_s == pytest.approx(27.7e9, rel=2e-3)
    assert pinned.peak is None, "the file does not describe its GPUs"


def test_resnet_loads_from_pageable_memory(captures: Path) -> None:
    with Trace.open(captures / "resnet50_num_workers_0.pt.trace.json.gz") as trace:
        row = copies(trace).rows[0]
    assert (row.direction, row.source, row.pageable) == ("memcpy HtoD", "pageable", True)
    assert row.places[0].frame and row.places[0].frame.line == 44
    assert row.peak and row.peak.source.startswith("PCIe 3"), "a V100, as the file says"


def test_the_demo() -> None:
    with Trace.open(RECORDED / "demo_h200.sqlite") as trace:
        rows = {row.key: row for row in copies(trace, "memory").rows}
    assert rows["memcpy HtoD/pageable/device"].times.count == 8
    assert rows["memset/device"].times.total == 121_372
