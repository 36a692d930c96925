# SPDX-License-Identifier: Apache-2.0
"""Find what a true report of ncu cannot say: numbers that contradict each other or the launch.

ncu measures different metrics in different passes over one kernel, so two numbers of a true report agree
within some per cent, not exactly. A number that was typed in does not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection

from profiling_lab.analysis.ncu.report import DURATION, Launch, Report
from profiling_lab.records import dataclass

PASSES_FRAC = 0.15
"""the difference that two passes over the same kernel may have"""
SHORT_NS = 5_000.0
"""below this duration the start of a kernel is a large part of it, and rates do not hold"""
READ, WRITTEN, RATE = "dram__bytes_read.sum", "dram__bytes_write.sum", "dram__bytes.sum.per_second"
CYCLES, CLOCK = "sm__cycles_elapsed.max", "sm__cycles_elapsed.avg.per_second"
THEORETICAL, ACHIEVED = (
    "sm__maximum_warps_per_active_cycle_pct",
    "sm__warps_active.avg.pct_of_peak_sustained_active",
)
LIMITS = tuple(f"launch__occupancy_limit_{each}" for each in ("blocks", "registers", "shared_mem", "warps"))
LOADS = tuple(f"l1tex__t_{each}_pipe_lsu_mem_global_op_ld.sum" for each in ("sectors", "requests"))
SECTORS_PER_REQUEST = "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio"
WARP_SIZE, WARPS_OF_SM, MAX_SECTORS = 32, "device__attribute_max_warps_per_multiprocessor", 32


@dataclass(frozen=True, slots=True)
class Law:
    """Two ways to one number."""

    what: str
    needs: tuple[str, ...]
    one: Callable[[Launch], float]
    other: Callable[[Launch], float]
    slack_frac: float = 0.0
    from_ns: float = 0.0
    """the duration from which it holds"""


def theoretical_pct(launch: Launch) -> float:
    """The occupancy that the limits of the launch allow, in per cent."""
    warps = math.ceil(launch.threads / WARP_SIZE)
    most = launch.metrics.get(WARPS_OF_SM, 64.0)
    return 100 * min(most, min(launch.value(name) for name in LIMITS) * warps) / most


LAWS = (
    Law("grid size", ("launch__grid_size",), lambda k: k.blocks, lambda k: k.value("launch__grid_size")),
    Law("block size", ("launch__block_size",), lambda k: k.threads, lambda k: k.value("launch__block_size")),
    Law(
        "thread count", ("launch__thread_count",),
        lambda k: k.blocks * k.threads, lambda k: k.value("launch__thread_count"),
    ),
    Law(
        "cycles over clock rate, and the duration", (DURATION, CYCLES, CLOCK),
        lambda k: k.value(CYCLES) / k.value(CLOCK) * 1e9, lambda k: k.duration_ns, PASSES_FRAC, SHORT_NS,
    ),
    Law(
        "bytes of device memory, and their rate times the duration", (DURATION, READ, WRITTEN, RATE),
        lambda k: k.total(READ, WRITTEN), lambda k: k.value(RATE) * k.duration_ns / 1e9,
        PASSES_FRAC, SHORT_NS,
    ),
    Law(
        "sectors over requests, and sectors per request", (*LOADS, SECTORS_PER_REQUEST),
        lambda k: k.value(LOADS[0]), lambda k: k.value(LOADS[1]) * k.value(SECTORS_PER_REQUEST), 0.02,
    ),
    Law(
        "theoretical occupancy, and the limits of the launch", (*LIMITS, THEORETICAL),
        theoretical_pct, lambda k: k.value(THEORETICAL), 0.01,
    ),
)  # fmt: skip


def contradictions(
    report: Report, *, program: str = "", functions: Collection[str] = (), needs: Collection[str] = ()
) -> list[str]:
    """What is wrong with a report, one sentence each; empty if its numbers belong to one another.

    program: the name of the process that every launch must come from; functions: kernels that must be there;
    needs: metrics that every launch of these kernels must have.
    """
    there = {launch.function for launch in report.launches}
    found = [f"{report.source} has no launch of {name}" for name in functions if name not in there]
    for launch in report.launches:
        where = f"launch {launch.number} ({launch.function})"
        if program and launch.process.rpartition("/")[2] != program:
            found.append(f"{where} is of the program {launch.process!r}, not of {program}")
        if launch.function in functions:
            missing = [name for name in (DURATION, *needs) if not launch.has(name)]
            if missing:
                found.append(f"{where} has no metric {', '.join(dict.fromkeys(missing))}")
        found += [f"{where}: {text}" for text in _of_launch(launch)]
    return found + _of_all(report)


def _of_launch(launch: Launch) -> list[str]:
    found = []
    if launch.metrics.get(DURATION, 1.0) <= 0:
        found.append("a duration of zero")
    for law in LAWS:
        if not launch.has(*law.needs) or launch.metrics.get(DURATION, math.inf) < law.from_ns:
            continue
        try:
            one, other = law.one(launch), law.other(launch)
        except ZeroDivisionError:
            found.append(f"{law.what}: a rate of zero")
            continue
        if abs(one - other) > law.slack_frac * max(abs(one), abs(other)) + 1e-6:
            found.append(f"{law.what} contradict each other ({one:.4g} and {other:.4g})")
    if launch.has(*LOADS) and launch.value(LOADS[0]) > MAX_SECTORS * launch.value(LOADS[1]):
        found.append("more sectors than its requests can touch")
    if launch.has(THEORETICAL, ACHIEVED) and launch.value(ACHIEVED) > 1.02 * launch.value(THEORETICAL):
        found.append("more achieved than theoretical occupancy")
    negative = [name for name, value in launch.metrics.items() if value < 0]
    return [*found, *(f"{name} is negative" for name in negative)]


def _of_all(report: Report) -> list[str]:
    found, seen = [], {}  # type: tuple[list[str], dict[tuple[float, ...], int]]
    numbers = [(launch.process, launch.number) for launch in report.launches]
    if len(set(numbers)) != len(numbers):
        found.append("two launches have the same ID: the report was put together from others")
    devices = {launch.device for launch in report.launches}
    if len(devices) > 1:
        found.append(f"the launches ran on different GPUs: {', '.join(sorted(devices))}")
    for launch in report.launches:
        if launch.has(DURATION, CYCLES):  # two runs never take the same time to the nanosecond and cycle
            key = (launch.value(DURATION), launch.value(CYCLES), *launch.metrics.values())
            if key in seen:
                found.append(f"launches {seen[key]} and {launch.number} are the same row twice")
            seen[key] = launch.number
    return found
