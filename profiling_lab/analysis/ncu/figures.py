# SPDX-License-Identifier: Apache-2.0
"""What ncu says of one launch, or of several of the same kernel: the few numbers that lead to a reason."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from profiling_lab.analysis.ncu.consistency import ACHIEVED, LIMITS, SECTORS_PER_REQUEST, THEORETICAL
from profiling_lab.analysis.ncu.report import DEVICE_NAME, DURATION, Launch
from profiling_lab.records import dataclass

SM = "sm__throughput.avg.pct_of_peak_sustained_elapsed"
MEMORY = "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed"
DRAM = "dram__throughput.avg.pct_of_peak_sustained_elapsed"
STORED_SECTORS = "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_st.ratio"
SECTIONS = ("SpeedOfLight", "LaunchStats", "Occupancy", "WarpStateStats")
"""They hold throughput, the limits of occupancy, and the reasons of stalls"""
# Additions and multiplications are one operation, fused ones two.
_SCALAR = {
    f"smsp__sass_thread_inst_executed_op_{letter}{name}_pred_on.sum": flops
    for letter in "hfd"
    for name, flops in (("add", 1), ("mul", 1), ("fma", 2))
}
_TENSOR = tuple(
    f"sm__ops_path_tensor_src_{kind}.sum" for kind in ("bf16_dst_fp32", "fp16", "tf32_dst_fp32", "fp64")
)
_FLOAT32 = tuple(name for name in _SCALAR if "_op_f" in name)
BASIC = (DEVICE_NAME, DURATION, DRAM, SECTORS_PER_REQUEST, *_FLOAT32)
"""What is asked for besides the sections"""
OPTIONAL = (STORED_SECTORS, *(name for name in _SCALAR if name not in _FLOAT32), *_TENSOR)
"""What is asked for where ncu lists it"""
_STALL = re.compile(r"^smsp__average_warps_issue_stalled_(?P<reason>\w+?)_per_issue_active\.ratio$")
_LIMIT = {"shared_mem": "shared memory"}


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one kernel, weighted by time over its launches. None: the report has no such metric."""

    kernel: str
    full_name: str
    launches: int
    ncu_ns: int | None
    """of all launches under ncu, whose caches start empty and whose clock may be another"""
    sm_frac: float | None
    memory_frac: float | None
    dram_frac: float | None
    occupancy_frac: float | None
    """achieved"""
    occupancy_limit_frac: float | None
    """theoretical: what the launch allows"""
    occupancy_limited_by: str
    """registers, shared memory, warps or blocks; '' where unknown"""
    stalls: tuple[tuple[str, float], ...]
    """reasons, the longest first, in cycles per issued instruction"""
    sectors_per_load: float | None
    """per request; 4 if 32 threads load neighbouring floats, up to 32"""
    sectors_per_store: float | None
    scalar_flops: float | None
    """of all launches, counted by the hardware, without tensor cores"""
    tensor_flops: float | None
    """None where the report has no counter of them: that is not zero"""

    @property
    def flops(self) -> float | None:
        if self.scalar_flops is None or self.tensor_flops is None:
            return None
        return self.scalar_flops + self.tensor_flops

    def per_s(self, flops: float | None) -> float | None:
        """While ncu measured."""
        return flops / (self.ncu_ns * 1e-9) if flops is not None and self.ncu_ns else None

    @property
    def flops_per_s(self) -> float | None:
        return self.per_s(self.flops)


def figures(launches: Sequence[Launch]) -> Figures:
    """Of launches of one kernel."""
    durations = [each.metrics.get(DURATION) for each in launches]
    known = [ns for ns in durations if ns is not None]

    def mean(name: str, scale: float = 1.0) -> float | None:
        return weighted(launches, lambda each: each.metrics.get(name), scale)

    limited = {limited_by(each) for each in launches}
    return Figures(
        kernel=launches[0].function,
        full_name=launches[0].kernel,
        launches=len(launches),
        ncu_ns=round(sum(known)) if len(known) == len(launches) else None,
        sm_frac=mean(SM, 0.01),
        memory_frac=mean(MEMORY, 0.01),
        dram_frac=mean(DRAM, 0.01),
        occupancy_frac=mean(ACHIEVED, 0.01),
        occupancy_limit_frac=mean(THEORETICAL, 0.01),
        occupancy_limited_by=limited.pop() if len(limited) == 1 else "",
        stalls=_stalls(launches),
        sectors_per_load=mean(SECTORS_PER_REQUEST),
        sectors_per_store=mean(STORED_SECTORS),
        scalar_flops=_counted(launches, _SCALAR, _FLOAT32),
        tensor_flops=_tensor_flops(launches),
    )


def weighted(
    launches: Sequence[Launch], value: Callable[[Launch], float | None], scale: float = 1.0
) -> float | None:
    """By time; equally where a launch has none. None if a launch lacks the value: a part is not the whole."""
    values = [value(each) for each in launches]
    found = [each for each in values if each is not None]
    if len(found) < len(values) or not found:
        return None
    times = [each.metrics.get(DURATION, 0.0) for each in launches]
    if not all(times):
        return scale * sum(found) / len(found)
    return scale * sum(v * t for v, t in zip(found, times, strict=True)) / sum(times)


def limited_by(launch: Launch) -> str:
    """What allows the fewest blocks per SM; '' if the report does not say, or occupancy is not limited."""
    if not launch.has(*LIMITS) or launch.metrics.get(THEORETICAL, 0.0) >= 100:
        return ""
    least = min(launch.value(name) for name in LIMITS)
    short = [name.partition("launch__occupancy_limit_")[2] for name in LIMITS if launch.value(name) == least]
    return " and ".join(_LIMIT.get(name, name) for name in short)


def _stalls(launches: Sequence[Launch]) -> tuple[tuple[str, float], ...]:
    """`selected` is no stall: the warp issues."""
    every = {name for each in launches for name in each.metrics}
    names = {name: match["reason"] for name in every if (match := _STALL.match(name))}
    found = []
    for name, reason in names.items():
        value = weighted(launches, lambda each, name=name: each.metrics.get(name))  # type: ignore[misc]
        if value is not None and reason != "selected":
            found.append((reason, value))
    return tuple(sorted(found, key=lambda pair: (-pair[1], pair[0])))


def _counted(launches: Sequence[Launch], flops_of: Mapping[str, int], needed: Sequence[str]) -> float | None:
    """Operations of all launches; None unless every one has these counters. Others a GPU may not have."""
    if not all(each.has(*needed) for each in launches):
        return None
    return sum(each.metrics.get(name, 0.0) * flops for each in launches for name, flops in flops_of.items())


def _tensor_flops(launches: Sequence[Launch]) -> float | None:
    there = [name for name in _TENSOR if launches[0].has(name)]
    return _counted(launches, dict.fromkeys(there, 1), there) if there else None
