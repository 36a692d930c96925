# SPDX-License-Identifier: Apache-2.0
"""Whether another process uses the GPU during a measurement.

In a container NVML numbers processes as the host does, so this process may not find itself in its lists. What
was on the GPU before this process came to it is another process in any case: so ask first, then use the GPU.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from profiling_lab.recording.energy.nvml import NvmlError, NvmlGpu
from profiling_lab.utils.nvml import gpu_of

BUSY_PERCENT = 5
"""a desktop alone takes some"""


@dataclass(frozen=True, slots=True)
class Sharing:
    """What is known of other processes on a GPU."""

    processes: dict[int, int] = field(default_factory=dict)
    """process -> the most of the SMs' time, in per cent, that it had in an interval of NVML's"""
    busy_before_percent: int | None = None
    """how busy the GPU was before this process used it; None if NVML did not say"""
    unknown: str = ""
    """why there are no numbers of processes; '' if there are"""

    @property
    def is_shared(self) -> bool | None:
        """None: unknown."""
        if self.processes or (self.busy_before_percent or 0) >= BUSY_PERCENT:
            return True
        return None if self.unknown else False

    @property
    def sentence(self) -> str:
        """'' if the GPU is not shared."""
        if self.processes:
            who = ", ".join(f"process {pid} ({percent} %)" for pid, percent in sorted(self.processes.items()))
            return f"the GPU is shared: meanwhile {who} used it too"
        if self.is_shared:
            return (
                f"the GPU is shared: it was busy {self.busy_before_percent} % of the time before this began"
            )
        return (
            f"whether other processes used the GPU is unknown: {self.unknown}"
            if self.is_shared is None
            else ""
        )


class OtherProcesses:
    """Begin before this process uses the GPU, and `ask` at the end. NVML's failures do no harm."""

    def __init__(self, cuda_index: int) -> None:
        self._gpu: NvmlGpu | None = None
        self._there: set[int] = set()
        self._busy: int | None = None
        self._unknown = ""
        try:
            self._gpu = gpu_of(cuda_index)
            self._busy = round(self._gpu.read("gpu_utilization_percent"))
        except NvmlError as error:
            self._unknown = str(error)
        try:
            self._there = _processes(self._gpu) if self._gpu is not None else set()
        except NvmlError as error:
            self._unknown = str(error)
        self.began_us = time.time_ns() // 1000

    def begin(self) -> None:
        """What was used before now is not part of the measurement."""
        self.began_us = time.time_ns() // 1000

    def ask(self) -> Sharing:
        if self._gpu is None or self._unknown:
            return Sharing({}, self._busy, self._unknown)
        try:
            used = _used_since(self._gpu, self.began_us)
        except NvmlError as error:
            return Sharing({}, self._busy, str(error))
        return Sharing({pid: used[pid] for pid in used.keys() & self._there if used[pid] > 0}, self._busy)

    def close(self) -> None:
        if self._gpu is not None:
            self._gpu.close()


def _processes(gpu: NvmlGpu) -> set[int]:
    """Those that compute there now. Raises NvmlError."""
    return {each.pid for each in gpu.ask(lambda nvml, gpu: nvml.nvmlDeviceGetComputeRunningProcesses(gpu))}


def _used_since(gpu: NvmlGpu, microseconds: int) -> dict[int, int]:
    """The most of the SMs' time that each process had in an interval of NVML's. Raises NvmlError."""
    used: dict[int, int] = {}
    for sample in gpu.ask(lambda nvml, gpu: nvml.nvmlDeviceGetProcessUtilization(gpu, microseconds)):
        used[sample.pid] = max(used.get(sample.pid, 0), sample.sm_percent)
    return used
