# SPDX-License-Identifier: Apache-2.0
"""The right points of a roofline, and made reports of ncu with new points each time."""

from __future__ import annotations

import csv
import io
import math
import random
from dataclasses import dataclass

from profiling_lab.analysis.ncu.consistency import CLOCK, CYCLES, RATE, READ, WRITTEN
from profiling_lab.analysis.ncu.report import DURATION, Launch, Report, ReportError

FLOPS = {
    f"smsp__sass_thread_inst_executed_op_{each}_pred_on.sum": count
    for each, count in (("fadd", 1), ("fmul", 1), ("ffma", 2))
}
MEMORY_PEAK, COMPUTE_PEAK = "peak_copy", "peak_fma"
NEAR_ROOF_FRAC = 0.55
"""a kernel with less of its roof is bound by something that this roofline does not show"""
FIRST = ("ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream")
HEADER = (*FIRST, "Block Size", "Grid Size", "Device", "CC")


@dataclass(frozen=True, slots=True)
class Peaks:
    """The measured roofs."""

    memory: float
    """bytes per second"""
    compute: float
    """FLOP per second"""

    @property
    def ridge(self) -> float:
        return self.compute / self.memory


@dataclass(frozen=True, slots=True)
class Point:
    """A kernel under the roofs."""

    kernel: str
    intensity: float
    """FLOP per byte of device memory; infinite for a kernel that needs none"""
    flops: float
    """FLOP per second"""
    share_frac: float
    """of the roof above it"""
    bound: str
    """"memory", "compute" or "neither" """
    ridge: float
    """where its roofs meet, in FLOP per byte"""


def work(launch: Launch) -> float:
    """The FLOP of a launch. A fused multiply-add is two."""
    return sum(count * launch.value(name) for name, count in FLOPS.items())


def moved(launch: Launch) -> float:
    return launch.total(READ, WRITTEN)


def peaks(report: Report) -> Peaks:
    """The roofs, from the two kernels that measure them. Raises ReportError."""
    copy, fma = report.last(MEMORY_PEAK), report.last(COMPUTE_PEAK)
    found = Peaks(moved(copy) / copy.duration_ns * 1e9, work(fma) / fma.duration_ns * 1e9)
    if not (found.memory > 0 and found.compute > 0):
        raise ReportError(f"{MEMORY_PEAK} moves no bytes, or {COMPUTE_PEAK} does no FLOP: there are no roofs")
    return found


def point(launch: Launch, roofs: Peaks) -> Point:
    flops, bytes_moved = work(launch), moved(launch)
    seconds = launch.duration_ns / 1e9
    intensity = flops / bytes_moved if bytes_moved else math.inf
    is_left = intensity < roofs.ridge
    share = bytes_moved / seconds / roofs.memory if is_left else flops / seconds / roofs.compute
    bound = "neither" if share < NEAR_ROOF_FRAC else "memory" if is_left else "compute"
    return Point(launch.function, intensity, flops / seconds, share, bound, roofs.ridge)


def points(report: Report) -> dict[str, Point]:
    """The last launch of each kernel that is no roof."""
    roofs = peaks(report)
    last = {launch.function: launch for launch in report.launches}
    return {
        name: point(launch, roofs) for name, launch in last.items() if name not in (MEMORY_PEAK, COMPUTE_PEAK)
    }


def made(chance: random.Random) -> str:
    """A report as ncu prints it, of a GPU that does not exist. Every kind of point is in it."""
    memory, compute = 10 ** chance.uniform(12, 12.7), 10 ** chance.uniform(13, 14)
    ridge = compute / memory
    wanted = [(MEMORY_PEAK, 0.0, 1.0), (COMPUTE_PEAK, math.inf, 1.0)]
    for number, (low, high, share) in enumerate(
        [(0.01, 0.5, 0.9), (0.01, 0.5, 0.3), (2.0, 50.0, 0.9), (2.0, 50.0, 0.3), (2.0, 50.0, 0.02)]
    ):
        intensity = ridge * chance.uniform(low, high)
        wanted.append(
            (f"kernel_{number}_{chance.randint(10, 99)}", intensity, share * chance.uniform(0.9, 1.1))
        )
    wanted += [
        ("only_moves", 0.0, chance.uniform(0.7, 0.95)),
        ("in_registers", math.inf, chance.uniform(0.7, 0.95)),
    ]
    others = wanted[2:]
    chance.shuffle(others)
    rows = []
    for number, (name, intensity, share) in enumerate([*wanted[:2], *others]):
        ns = chance.randint(50_000, 5_000_000)
        reachable = compute if intensity >= ridge else memory * intensity
        flops = share * reachable * ns / 1e9
        bytes_moved = 0.0 if math.isinf(intensity) else share * memory * ns / 1e9
        if 0 < intensity < math.inf:
            bytes_moved = flops / intensity
        rows.append(_row(number, name, ns, flops, bytes_moved, chance))
    text = io.StringIO()
    table = csv.writer(text, quoting=csv.QUOTE_ALL)
    names = list(rows[0][1])
    table.writerow([*HEADER, *names])
    table.writerow([""] * len(HEADER) + [rows[0][1][name][0] for name in names])
    for first, metrics in rows:
        table.writerow([*first, *(metrics[name][1] for name in names)])
    return "==PROF== Connected\n" + text.getvalue()


def _row(
    number: int, name: str, ns: int, flops: float, bytes_moved: float, chance: random.Random
) -> tuple[list[object], dict[str, tuple[str, str]]]:
    fused = chance.uniform(0.2, 0.8)
    reads = round(bytes_moved * chance.uniform(0.3, 0.8))
    counts = (flops * (1 - fused) / 3, flops * (1 - fused) * 2 / 3, flops * fused / 2)
    clock = 1.5e9
    metrics = {
        "device__attribute_display_name": ("", "A GPU that does not exist"),
        DURATION: ("us", f"{ns / 1e3:,.3f}"),
        CYCLES: ("cycle", f"{ns * clock / 1e9:,.0f}"),
        CLOCK: ("cycle/nsecond", "1.5"),
        READ: ("Kbyte", f"{reads / 1e3:,.3f}"),
        WRITTEN: ("Mbyte", f"{(bytes_moved - reads) / 1e6:,.6f}"),
        RATE: ("Gbyte/s", f"{bytes_moved / ns:,.6f}"),
        **{metric: ("inst", f"{count:,.0f}") for metric, count in zip(FLOPS, counts, strict=True)},
    }
    first = [number, 1, "roofline_kernels", "127.0.0.1", f"void {name}<int>(const float *)", 1, 7]
    return [*first, "(256, 1, 1)", "(4096, 1, 1)", 0, "9.0"], metrics
