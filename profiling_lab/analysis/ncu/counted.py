# SPDX-License-Identifier: Apache-2.0
"""The kernels of a report, with the operations of a recording that they are about, for rules of counters.

A recording's kernel is the report's where name, grid and block are the same; where the recording has no
shapes, the name. Every figure is None where the report does not have what it takes: that is not zero.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from profiling_lab.analysis.ncu.consistency import LOADS, SECTORS_PER_REQUEST
from profiling_lab.analysis.ncu.figures import Figures, figures, weighted
from profiling_lab.analysis.ncu.report import Launch, Report, function_name
from profiling_lab.analysis.roofline.peaks import vendor_peaks
from profiling_lab.trace.columns import OperationKind
from profiling_lab.trace.trace import Trace

USE = "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.pct"
ISSUED = "smsp__issue_active.avg.pct_of_peak_sustained_active"
THREADS = "smsp__thread_inst_executed_per_inst_executed.ratio"
WAVEFRONTS = "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum"
SHARED_LOADS = ("smsp__sass_inst_executed_op_shared_ld.sum", "smsp__inst_executed_op_shared_ld.sum")
REDUCTIONS = "l1tex__t_sectors_pipe_lsu_mem_global_op_red.sum"
DRAM_RATE = "dram__bytes.sum.per_second"


@dataclass(frozen=True)
class Counted:
    """One kernel with one grid and block."""

    launches: tuple[Launch, ...]
    rows: npt.NDArray[np.intp]
    """its operations in the recording"""

    @property
    def name(self) -> str:
        return self.launches[0].function

    @property
    def threads(self) -> int:
        """of one launch"""
        return self.launches[0].blocks * self.launches[0].threads

    @cached_property
    def figures(self) -> Figures:
        return figures(self.launches)

    def _mean(self, value: Callable[[Launch], float | None]) -> float | None:
        return weighted(self.launches, value)

    def _metric(self, name: str, scale: float = 1.0) -> float | None:
        return weighted(self.launches, lambda each: each.metrics.get(name), scale)

    @property
    def sectors_per_load(self) -> float | None:
        """Of 32 bytes, for each request of a warp. None without a load."""
        ratio = self._metric(SECTORS_PER_REQUEST)
        return self._mean(lambda each: _over(each, LOADS[0], LOADS[1])) if ratio is None else ratio

    @property
    def sector_use_frac(self) -> float | None:
        """What of the loaded sectors the threads asked for."""
        return self._metric(USE, 0.01)

    @property
    def passes_per_shared_load(self) -> float | None:
        """1 without bank conflicts. None also where nothing is loaded from shared memory."""
        found = (self._mean(lambda each, name=name: _over(each, WAVEFRONTS, name)) for name in SHARED_LOADS)  # type: ignore[misc]
        return next((each for each in found if each is not None), None)

    @property
    def threads_per_instruction(self) -> float | None:
        return self._metric(THREADS)

    @property
    def issued_frac(self) -> float | None:
        """The cycles in which a scheduler had an instruction to issue."""
        return self._metric(ISSUED, 0.01)

    @property
    def reductions_per_thread(self) -> float | None:
        """Sectors of atomics without a result, for each thread that was launched."""
        found = self._metric(REDUCTIONS)
        return None if found is None else found / self.threads

    @property
    def dram_frac(self) -> float | None:
        """Of the rate of device memory: ncu's own share, or the rate over the data sheet's."""
        if self.figures.dram_frac is not None:
            return self.figures.dram_frac
        rate, peaks = self._metric(DRAM_RATE), vendor_peaks(self.launches[0].device)
        return rate / peaks.memory_bytes_per_s if rate is not None and peaks is not None else None

    @property
    def fp32_frac(self) -> float | None:
        """Of the data sheet's rate of float32, without tensor cores."""
        rate, peaks = self.figures.per_s(self.figures.scalar_flops), vendor_peaks(self.launches[0].device)
        most = None if peaks is None else peaks.flops_per_s.get("float32")
        return rate / most if rate is not None and most else None


def _over(launch: Launch, numerator: str, denominator: str) -> float | None:
    if not launch.has(numerator, denominator) or not launch.metrics[denominator]:
        return None
    return launch.metrics[numerator] / launch.metrics[denominator]


def counted(trace: Trace, report: Report) -> tuple[Counted, ...]:
    """The kernels of the report that this part of the recording has, the longest first."""
    operations, shapes = trace.operations, trace.launch_shapes
    short = np.array([*map(function_name, operations.names), ""])
    is_kernel = operations.kind == OperationKind.KERNEL
    groups: dict[tuple[object, ...], list[Launch]] = {}
    for launch in report.launches:
        groups.setdefault((launch.function, launch.grid, launch.block), []).append(launch)
    found = []
    for (function, grid, block), launches in groups.items():
        mine = is_kernel & (short == function)[operations.name]
        if shapes is not None:
            fits = [(shape.grid, shape.block) == (grid, block) for shape in shapes.shapes]
            mine &= np.array([*fits, False], dtype=bool)[shapes.number]
        if mine.any():
            found.append(Counted(tuple(launches), np.flatnonzero(mine)))
    return tuple(sorted(found, key=lambda each: -int(operations.duration_ns[each.rows].sum())))
