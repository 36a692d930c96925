# SPDX-License-Identifier: Apache-2.0
"""Note the energy counters of the GPUs that the program uses, with power, clocks, limits and temperature
(`record --energy`).

The counter gets a new value every 20 to 100 ms, so a reading may be that old. What is kept is the moment of
each change: between the begin of the last reading of the old value and the end of the first of the new one.
The sampler learns the counter's period, sleeps until shortly before the next change is due, and then looks
often.

It runs on a thread of its own that takes no signals. It never initialises CUDA: it waits until the program
has. Nothing here raises into the program: what fails becomes a reason.
"""

from __future__ import annotations

import ctypes
import json
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from profiling_lab.recording import gpu_facts, signals
from profiling_lab.recording.energy.nvml import NvmlError, NvmlGpu, found_by
from profiling_lab.recording.meta_names import ENERGY

SEARCH_S = 0.02
"""between readings while the period is not known"""
LOOK_S = 0.002
"""between readings around the time of the next change"""
LEAST_SLEEP_S = 0.01
"""between a change and the next reading"""
DUE_FRAC = 0.9
"""of the period: from here on the next change is due"""
SLOW_S = 1.0
"""between readings of what changes slowly, and between looks for GPUs that came into use"""
FLUSH_ROWS = 200
"""are written to the capture at once, so that a kill loses no more"""
MOST_ROWS = 500_000
"""14 hours of one GPU"""
_JOIN_S = 5.0
_THREAD = "profiling-lab energy"
OFF = "the program made no CUDA context, so there is no GPU to read"

_QUICK: dict[str, Callable[[Any, Any], int]] = {
    "power": lambda nvml, gpu: nvml.nvmlDeviceGetPowerUsage(gpu),
    "instant": lambda nvml, gpu: nvml.power_instant(gpu),
    "sm_clock": lambda nvml, gpu: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM),
    "limits": lambda nvml, gpu: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu),
}
_SLOW: dict[str, Callable[[Any, Any], int]] = {
    "power_limit": lambda nvml, gpu: nvml.nvmlDeviceGetEnforcedPowerLimit(gpu),
    "memory_clock": lambda nvml, gpu: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_MEM),
    "temperature": lambda nvml, gpu: nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU),
}
READINGS = (*_QUICK, *_SLOW)
COLUMNS = ("device", "time", "spread", "energy", *READINGS)


class EnergySampler:
    """The samples of one recording."""

    def __init__(self) -> None:
        self._failure = ""
        self._refused: dict[int, str] = {}
        self._gpus: dict[int, _Gpu] = {}
        self._rows: list[list[int | None]] = []
        self._written = self._pieces = 0
        self._searched_s = -SLOW_S
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def reason(self) -> str:
        """Why something is not recorded; "" if all is."""
        refused = "; ".join(f"GPU {device}: {why}" for device, why in self._refused.items())
        return self._failure or refused or ("" if self._gpus else OFF)

    def start(self) -> Callable[[], None]:
        """Begin. Returns a function that ends it."""
        try:
            with signals.blocked():
                thread = threading.Thread(target=self._run, name=_THREAD, daemon=True)
                thread.start()
            self._thread = thread
        except Exception as error:
            self._failure = f"the thread that reads the GPU could not start: {error}"

        def end() -> None:
            self._end()

        return end

    def facts(self) -> dict[str, str]:
        """End it, with a last reading. Returns the metadata that is not written yet."""
        if not self._end():
            self._failure = "NVML did not answer at the end of the recording"
            return {"energy_state": self.reason}
        self._poll()
        for gpu in self._gpus.values():
            gpu.close()
        return {"energy_state": self.reason or "on", **self._taken()}

    def _end(self) -> bool:
        """Whether the thread has ended."""
        is_first, thread = not self._ending.is_set(), self._thread
        self._ending.set()
        if is_first and thread is not None:
            thread.join(_JOIN_S)
        return thread is None or not thread.is_alive()

    def _run(self) -> None:
        from profiling_lab import _recorder

        _recorder.leave_out_this_thread()
        while not self._ending.wait(self._sleep_s()):
            self._poll()
            if len(self._rows) >= FLUSH_ROWS:
                _recorder.add_meta(self._taken())
            if self._written + len(self._rows) >= MOST_ROWS:
                self._failure = f"the samples ended after {MOST_ROWS:,} changes of the energy counter"
                return

    def _sleep_s(self) -> float:
        return min((gpu.sleep_s() for gpu in self._gpus.values()), default=SEARCH_S)

    def _poll(self) -> None:
        try:
            self._poll_all()
        except Exception as error:
            self._failure = f"{type(error).__name__}: {error}"

    def _poll_all(self) -> None:
        now_s = time.monotonic()
        if now_s - self._searched_s >= SLOW_S:
            self._searched_s = now_s
            self._look_for_gpus()
        for device, gpu in list(self._gpus.items()):
            try:
                if (row := gpu.poll(now_s)) is not None:
                    self._rows.append(row)
            except NvmlError as error:
                self._refused[device] = str(error)
                del self._gpus[device]

    def _look_for_gpus(self) -> None:
        described: list[dict[str, Any]] = []
        for device in devices_in_use():
            if device in self._gpus or device in self._refused:
                continue
            described = described or gpu_facts.gpus()
            facts = described[device]
            try:
                self._gpus[device] = _Gpu(device, facts["uuid"], facts["busLocation"])
            except NvmlError as error:
                self._refused[device] = str(error)

    def _taken(self) -> dict[str, str]:
        """The rows since the last call, as metadata with a name of their own."""
        rows, self._rows = self._rows, []
        if not rows:
            return {}
        self._written += len(rows)
        self._pieces += 1
        return {f"{ENERGY}{self._pieces}": json.dumps(rows, separators=(",", ":"))}


class _Gpu:
    """One GPU, by its CUDA number. Raises NvmlError if it has no energy counter."""

    def __init__(self, device: int, uuid: str, bus: str) -> None:
        self._device = device
        self._nvml = NvmlGpu(found_by(uuid, bus))
        self._read_ns = self._changed_ns = time.time_ns()
        self._energy_mj: int | None = None
        self._periods_ns: deque[int] = deque(maxlen=8)
        self._slow: dict[str, int | None] = dict.fromkeys(_SLOW)
        self._slow_s = -SLOW_S
        try:
            self._nvml.energy_mj()
        except NvmlError:
            self._nvml.close()
            raise

    def close(self) -> None:
        self._nvml.close()

    def sleep_s(self) -> float:
        if not self._periods_ns:
            return SEARCH_S
        due_s = max(DUE_FRAC * min(self._periods_ns) / 1e9, LEAST_SLEEP_S)
        return max(due_s - (time.time_ns() - self._changed_ns) / 1e9, LOOK_S)

    def poll(self, now_s: float) -> list[int | None] | None:
        """A row if the counter has changed. The first reading says nothing of when it changed."""
        before_ns, self._read_ns = self._read_ns, time.time_ns()
        energy_mj = self._nvml.energy_mj()
        after_ns = time.time_ns()  # a reading takes milliseconds where the program keeps the GIL
        is_first = self._energy_mj is None
        if energy_mj == self._energy_mj:
            return None
        self._energy_mj = energy_mj
        changed_ns = (before_ns + after_ns) // 2
        if is_first:
            return None
        if self._changed_ns < changed_ns:
            self._periods_ns.append(changed_ns - self._changed_ns)
        self._changed_ns = changed_ns
        if now_s - self._slow_s >= SLOW_S:
            self._slow_s = now_s
            self._slow = {name: self._read(read) for name, read in _SLOW.items()}
        quick = [self._read(read) for read in _QUICK.values()]
        spread_ns = (after_ns - before_ns) // 2
        return [self._device, changed_ns, spread_ns, energy_mj, *quick, *self._slow.values()]

    def _read(self, read: Callable[[Any, Any], int]) -> int | None:
        try:
            return int(self._nvml.ask(read))
        except NvmlError:  # this GPU or driver does not say it
            return None


def devices_in_use() -> list[int]:
    """CUDA numbers of the GPUs on which this process has a primary context: torch, the runtime and JAX use
    these. Looks only, and initialises nothing.
    """
    try:
        driver = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:
        return []
    count = ctypes.c_int()
    if driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return []  # the driver is not initialised
    found = []
    for device in range(count.value):
        flags, active = ctypes.c_uint(), ctypes.c_int()
        if driver.cuDevicePrimaryCtxGetState(device, ctypes.byref(flags), ctypes.byref(active)) == 0:
            found += [device] if active.value else []
    return found
