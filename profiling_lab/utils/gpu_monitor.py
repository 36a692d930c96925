# SPDX-License-Identifier: Apache-2.0
"""GPUMonitor: power, clocks, utilisation and memory of a GPU while a block runs."""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from profiling_lab.errors import UsageError
from profiling_lab.recording.energy.nvml import READINGS, NvmlError, NvmlGpu
from profiling_lab.utils.devices import allocator, gpu_index
from profiling_lab.utils.nvml import gpu_of

PROCESS_MEMORY = "process_memory_bytes"
COLUMNS = (*READINGS, PROCESS_MEMORY)
NVML = "NVML"
_THREAD = "profiling-lab GPUMonitor"
T = TypeVar("T")
_JOIN_TIMEOUT_S = 5.0


@dataclass(slots=True)
class GPUSample:
    """One sample. A value that could not be read has no key in `values`."""

    time_s: float
    """since the monitor began"""
    values: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class _Failure:
    reason: str  # the first
    times: int = 0

    def __str__(self) -> str:
        return self.reason if self.times <= 1 else f"{self.reason} ({self.times} times)"


class GPUMonitor:
    """Samples a GPU every `interval` seconds while the `with` block runs, and at its start and end.

    device: the number that torch gives the GPU, or cuda:N; default: torch's current GPU, or 0. It stands for
    the same GPU under CUDA_VISIBLE_DEVICES. get_summary() may be called in the block and after it; `samples`
    are the single values. What NVML cannot say does not stop the program: it is None, with the reason under
    "unavailable".

    Utilisation is the share of time in which any kernel ran, not how much of the GPU it used. NVML's power
    is an average over up to a second: for shorter work look at energy_j, from the GPU's own counter.

    Raises UsageError for an interval that is not above 0, and a device that is not a GPU's.
    """

    def __init__(self, interval: float = 0.1, device: object = None) -> None:
        if not 0 < interval <= threading.TIMEOUT_MAX:
            raise UsageError(f"GPUMonitor: interval must be a number of seconds above 0, not {interval}")
        self.interval = interval
        self.samples: list[GPUSample] = []
        self._index = gpu_index("GPUMonitor", device)
        self._gpu: NvmlGpu | None = None
        self._failures: dict[str, _Failure] = {}
        self._facts: dict[str, str | None] = {}
        self._limits: set[str] | None = None
        self._energy_j: list[float] = []
        self._began_s = self._ended_s = 0.0
        self._running = False
        self._thread: threading.Thread | None = None
        self._ending = threading.Event()
        self._process = 0

    def __enter__(self) -> GPUMonitor:
        self.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self.stop()

    def start(self) -> None:
        """Begin, with a first sample. A monitor that was stopped begins anew."""
        if self._running:
            return
        self.samples, self._failures, self._limits, self._energy_j = [], {}, None, []
        self._running, self._process = True, os.getpid()
        self._ending = threading.Event()  # a thread of an earlier run that still waits for NVML has its own
        self._gpu = self._attempt(NVML, lambda: gpu_of(self._index))
        if (gpu := self._gpu) is not None:
            self._facts = {"name": self._attempt("name", gpu.name), "uuid": self._attempt("uuid", gpu.uuid)}
        self._began_s = time.perf_counter()  # to find the GPU took its time
        self._sample()
        self._thread = self._attempt("samples in between", self._started_thread)

    def stop(self) -> None:
        """End, with a last sample. A second call does nothing."""
        if not self._running or self._process != os.getpid():  # a forked child has no thread of ours
            return
        self._running = False
        self._ending.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join(_JOIN_TIMEOUT_S)
        if thread is not None and thread.is_alive():  # it ends with the program
            self._failures["last sample"] = _Failure("NVML does not answer")
        else:
            self._sample()
            if self._gpu is not None:
                self._gpu.close()
        self._ended_s = time.perf_counter()
        self._gpu = None

    def get_summary(self) -> dict[str, Any]:
        """What was seen, for print or JSON.

        Each of gpu_utilization_percent, memory_utilization_percent, gpu_memory_used_bytes (the whole GPU, all
        processes), process_memory_bytes (tensors of this process, by torch's allocator), power_w,
        sm_clock_mhz, memory_clock_mhz and temperature_c is {"mean", "min", "max"} or None. energy_j: from
        start to now or the end, and mean_power_w from it; clock_limits: what limited the clocks in any
        sample, such as "power cap"; unavailable: name -> reason.
        """
        samples = list(self.samples)
        duration_s = (time.perf_counter() if self._running else self._ended_s) - self._began_s
        used_j = self._energy_j[-1] - self._energy_j[0] if len(self._energy_j) > 1 else None
        if used_j is not None and used_j < 0:  # the driver was loaded again, and its counter began anew
            used_j = None
        values = {name: [s.values[name] for s in samples if name in s.values] for name in COLUMNS}
        return {
            "device": f"cuda:{self._index}",
            "name": self._facts.get("name"),
            "uuid": self._facts.get("uuid"),
            "samples": len(samples),
            "interval_s": self.interval,
            "duration_s": duration_s,
            **{name: _spread(column) for name, column in values.items()},
            "energy_j": used_j,
            "mean_power_w": None if used_j is None or duration_s <= 0 else used_j / duration_s,
            "clock_limits": None if self._limits is None else sorted(self._limits),
            "unavailable": {name: str(failure) for name, failure in dict(self._failures).items()},
        }

    summary = get_summary

    def _started_thread(self) -> threading.Thread:
        thread = threading.Thread(target=self._run, args=(self._ending,), name=_THREAD, daemon=True)
        thread.start()
        return thread

    def _run(self, ending: threading.Event) -> None:
        while not ending.wait(self.interval):
            self._sample()

    def _sample(self) -> None:
        sample = GPUSample(time.perf_counter() - self._began_s)
        reads: dict[str, Callable[[], float | None]] = {PROCESS_MEMORY: self._process_memory}
        if (gpu := self._gpu) is not None:
            reads |= {name: partial(gpu.read, name) for name in READINGS}
            if (limits := self._attempt("clock_limits", gpu.limits)) is not None:
                self._limits = (self._limits or set()) | limits
            if (energy_j := self._attempt("energy_j", lambda: gpu.energy_mj() / 1e3)) is not None:
                self._energy_j = [*self._energy_j[:1], energy_j]
        for name, read in reads.items():
            if (value := self._attempt(name, read)) is not None:
                sample.values[name] = value
        self.samples.append(sample)

    def _process_memory(self) -> float:
        """Bytes in tensors of this process."""
        cuda = allocator()
        if cuda is None:
            raise NvmlError("torch has not used a GPU in this process")
        return float(cuda.memory_allocated(self._index))

    def _attempt(self, name: str, read: Callable[[], T]) -> T | None:
        """Nothing that goes wrong in a reading may end the thread or reach the program."""
        try:
            return read()
        except Exception as error:
            reason = str(error) if isinstance(error, NvmlError) else f"{type(error).__name__}: {error}"
            failure = self._failures.setdefault(name, _Failure(reason))
            failure.times += 1
            return None


def _spread(values: list[float]) -> dict[str, float] | None:
    if not values:
        return None
    return {"mean": statistics.fmean(values), "min": min(values), "max": max(values)}
