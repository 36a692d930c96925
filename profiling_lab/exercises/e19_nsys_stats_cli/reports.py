# SPDX-License-Identifier: Apache-2.0
"""Reports of `nsys stats` as CSV, and the right answers to the questions of E19."""

from __future__ import annotations

import csv
import re
from pathlib import Path

Row = dict[str, str]

KERNELS, CALLS, RANGES = "cuda_gpu_kern_sum", "cuda_api_sum", "nvtx_gpu_proj_sum"
SIZES, TIMES = "cuda_gpu_mem_size_sum", "cuda_gpu_mem_time_sum"
TO_DEVICE = "[CUDA memcpy Host-to-Device]"
SYNC = "cudaStreamSynchronize"
_VERSION = re.compile(r"_v\d+$")


class ReportError(Exception):
    """A report that is missing or damaged: one sentence."""


def read(folder: Path, report: str) -> list[Row]:
    """The rows of `report`. nsys names the file `report.csv`, or puts the name of the recording in front."""
    paths = sorted(folder.glob(f"*{report}.csv"))
    if not paths:
        raise ReportError(f"there is no {report}.csv in {folder.name}")
    if len(paths) > 1:
        raise ReportError(f"{folder.name} has {len(paths)} files {report}.csv: keep those of one recording")
    try:
        with paths[0].open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ReportError(f"{paths[0].name} cannot be read: {error}") from None
    if not rows:
        raise ReportError(f"{paths[0].name} has no rows")
    return rows


def numbers(folder: Path) -> dict[str, float]:
    """The right numbers, by key of answer.toml. Raises ReportError."""
    try:
        kernels, calls = read(folder, KERNELS), read(folder, CALLS)
        layer = _layer(read(folder, RANGES))
        synced = [float(row["Total Time (ns)"]) for row in calls if _VERSION.sub("", row["Name"]) == SYNC]
        return {
            "kernels.hottest_ms": max(_ns(row) for row in kernels) / 1e6,
            "kernels.all_ms": sum(map(_ns, kernels)) / 1e6,
            "kernels.launches": sum(float(row["Instances"]) for row in kernels),
            "copies.to_device_mb": _of(read(folder, SIZES), "Total (MB)"),
            "copies.to_device_ms": _of(read(folder, TIMES), "Total Time (ns)") / 1e6,
            # Two rows are the same calls: nsys adds one for calls whose stack it recorded, a moment wider.
            "calls.sync_ms": min(synced, default=0.0) / 1e6,
            "ranges.layer_host_ms": float(layer["Total Range Time (ns)"]) / 1e6,
            "ranges.layer_gpu_ms": float(layer["Total Proj Time (ns)"]) / 1e6,
        }
    except (KeyError, ValueError, TypeError) as error:
        raise ReportError(
            f"a report in {folder.name} has other columns than nsys writes: {error!r}"
        ) from None


def names(folder: Path) -> dict[str, tuple[list[str], list[str]]]:
    """By key of answer.toml, the right names and all names. Raises ReportError."""
    kernels, ranges = read(folder, KERNELS), read(folder, RANGES)
    most = max(float(row["Instances"]) for row in kernels)
    all_kernels = [row["Name"] for row in kernels]
    return {
        "kernels.hottest": ([max(kernels, key=_ns)["Name"]], all_kernels),
        "kernels.most_launched": (
            [row["Name"] for row in kernels if float(row["Instances"]) == most],
            all_kernels,
        ),
        "ranges.layer": ([_layer(ranges)["Range"]], [row["Range"] for row in ranges]),
    }


def _ns(row: Row) -> float:
    return float(row["Total Time (ns)"])


def _of(rows: list[Row], column: str) -> float:
    return sum(float(row[column]) for row in rows if row["Operation"] == TO_DEVICE)


def _layer(rows: list[Row]) -> Row:
    """The range with most GPU time of those that contain no other range."""
    leaves = [row for row in rows if float(row["Avg Num Child"]) == 0]
    if not leaves:
        raise ReportError("no range of this recording is without another range inside")
    return max(leaves, key=lambda row: float(row["Total Proj Time (ns)"]))
