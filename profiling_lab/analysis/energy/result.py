# SPDX-License-Identifier: Apache-2.0
"""What `energy` found: its rows, and the GPUs."""

from __future__ import annotations

from profiling_lab.analysis.coverage import Coverage
from profiling_lab.records import dataclass


@dataclass(frozen=True, slots=True)
class EnergyRow:
    """One line in one phase; or all others, or idle time. Sums over the GPUs."""

    key: str
    function: str
    file: str
    line: int
    phase: str
    """forward, backward, recompute, optimizer, unknown; '' for other lines and idle time"""
    gpu_ns: int
    """where several kernels ran at once, they share the time"""
    joules: float | None
    """None: the recording does not tell it"""
    error_j: float | None
    needs_s: float | None
    """of one that is not told: the length of a recording that would"""

    @property
    def power_w(self) -> float | None:
        return None if self.joules is None or not self.gpu_ns else self.joules / (self.gpu_ns * 1e-9)


@dataclass(frozen=True, slots=True)
class Spread:
    """Of the samples."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class DeviceEnergy:
    """One GPU of one process."""

    pid: int
    device: int
    joules: float
    ns: int
    """the time for which the energy is known"""
    idle_ns: int
    steps: int
    """whole steps in that time"""
    step_j: float | None
    """of a step, the mean; None if there is none"""
    step_error_j: float | None
    """it may be off by this, because the counter changes seldom"""
    samples: int
    period_ns: int
    """from one change of the counter to the next"""
    spread_ns: int
    lag_ns: int
    why_no_lines: str
    """'' if lines were fitted"""
    power_limit_w: Spread | None
    sm_clock_mhz: Spread | None
    memory_clock_mhz: Spread | None
    temperature_c: Spread | None
    limits: tuple[tuple[str, float], ...] | None
    """what limited the clocks, and in which share of the samples; None: not known"""

    @property
    def mean_w(self) -> float:
        return self.joules / (self.ns * 1e-9)


@dataclass(frozen=True, slots=True)
class EnergyResult:
    """Rows by joules, the largest first; those that are not told follow, by time."""

    rows: tuple[EnergyRow, ...]
    devices: tuple[DeviceEnergy, ...]
    step_how: str
    samples_per_step: int | None
    flops_per_step: int | None
    """of the counted step; None without `record --work`"""
    coverage: Coverage
    total_matched: int

    @property
    def joules(self) -> float:
        return sum(each.joules for each in self.devices)

    @property
    def step_j(self) -> float | None:
        """Of all GPUs."""
        known = [each.step_j for each in self.devices if each.step_j is not None]
        return sum(known) if len(known) == len(self.devices) else None

    @property
    def sample_j(self) -> float | None:
        return (
            None if self.step_j is None or not self.samples_per_step else self.step_j / self.samples_per_step
        )

    @property
    def flops_per_j(self) -> float | None:
        """The same number as FLOP/s per watt."""
        return None if not self.step_j or self.flops_per_step is None else self.flops_per_step / self.step_j
