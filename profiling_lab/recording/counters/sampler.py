# SPDX-License-Identifier: Apache-2.0
"""Read the sampled counters of each GPU in use on a thread of its own, and keep them in the capture.

CUPTI's PM sampling makes the GPU itself write a sample every PERIOD_NS; the thread fetches and decodes them
ten times a second. A sample takes about 30 us of this thread, and almost nothing of the program.
Nothing here raises into the program: what fails becomes a reason.
"""

from __future__ import annotations

import base64
import json
import os
import threading
import zlib
from collections.abc import Callable
from typing import Any

from profiling_lab.recording import libcupti, signals
from profiling_lab.recording.energy.sampler import devices_in_use
from profiling_lab.recording.meta_names import COUNTERS

PERIOD_NS = 100_000
EVERY_S = 0.1
"""between two looks; the GPU keeps about half a second"""
MOST_SAMPLES = 4096
"""decoded at once: with room for fewer than come between two looks, some are lost"""
MOST_BYTES = 1 << 30
"""of packed samples in one recording: about half an hour of one GPU"""
OFF = "the program made no CUDA context, so there is no GPU to sample"
_JOIN_S = 5.0
_THREAD = "profiling-lab counters"

_BUSY = "avg.pct_of_peak_sustained_elapsed"
# Per quantity its metric, the best one first: those of TriageCompute are collected at once with others.
CHOICES: dict[str, list[str]] = {
    "dram_read": ["dram__bytes_read.sum"],
    "dram_written": ["dram__bytes_write.sum"],
    "sm_active": [f"TPC.TriageCompute.sm__cycles_active.{_BUSY}", f"sm__cycles_active.{_BUSY}"],
    "issued": [f"TPC.TriageCompute.sm__inst_executed_realtime.{_BUSY}", f"sm__inst_executed.{_BUSY}"],
    "tensor": [
        f"TPC.TriageCompute.sm__pipe_tensor_cycles_active_realtime.{_BUSY}",
        f"sm__pipe_tensor_cycles_active.{_BUSY}",
    ],
    "pcie_read": ["PCI.TriageCompute.pcie__read_bytes.sum", "pcie__read_bytes.sum"],
    "pcie_written": ["PCI.TriageCompute.pcie__write_bytes.sum", "pcie__write_bytes.sum"],
    "nvlink_received": ["nvlrx__bytes_data_user.sum"],
    "nvlink_sent": ["nvltx__bytes_data_user.sum"],
}
"""bytes, and percent of what the units could do in the time of the sample"""


class CounterThread:
    """The samples of one recording."""

    def __init__(self) -> None:
        self._failure = ""
        self._at_end: str | None = None
        self._refused: dict[int, str] = {}
        self._gpus: dict[int, Any] = {}
        self._pieces = self._bytes = 0
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def reason(self) -> str:
        """Why something is not recorded; "" if all is."""
        if self._at_end is not None:
            return self._at_end
        refused = "; ".join(f"GPU {device}: {why}" for device, why in self._refused.items())
        lost = sum(gpu.overflows for gpu in self._gpus.values())
        late = f"samples were lost {lost} times: the reader came too late" if lost else ""
        return self._failure or refused or late or ("" if self._gpus else OFF)

    def start(self) -> Callable[[], None]:
        """Begin. Returns a function that ends it."""
        try:
            with signals.blocked():
                thread = threading.Thread(target=self._run, name=_THREAD, daemon=True)
                thread.start()
            self._thread = thread
        except Exception as error:
            self._failure = f"the thread that reads the counters could not start: {error}"

        def end() -> None:
            self._end()

        return end

    def facts(self) -> dict[str, str]:
        """End it, with what the GPUs still hold. Returns the metadata that is not written yet."""
        if not self._end():
            self._failure = "CUPTI did not answer at the end of the recording"
            return {"counters_state": self.reason}
        found: dict[str, str] = {}
        for device, gpu in self._gpus.items():
            try:
                gpu.stop()
                found |= self._taken(device, gpu)
            except Exception as error:
                self._failure = f"{type(error).__name__}: {error}"
        names = {device: dict(zip(CHOICES, gpu.metrics, strict=True)) for device, gpu in self._gpus.items()}
        self._at_end = self.reason
        self._gpus.clear()  # ends the sampling of each GPU
        state = {"counters_state": self._at_end or "on", "counters_metrics": json.dumps(names)}
        return found | state | {"counters_period_ns": str(PERIOD_NS)}

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
        while not self._ending.wait(EVERY_S):
            try:
                self._look_for_gpus(_recorder)
                for device, gpu in self._gpus.items():
                    _recorder.add_meta(self._taken(device, gpu))
            except Exception as error:
                self._failure = f"{type(error).__name__}: {error}"
                return
            if self._bytes > MOST_BYTES:
                self._failure = f"the samples ended after {MOST_BYTES >> 20} MB"
                return

    def _look_for_gpus(self, recorder: Any) -> None:
        for device in devices_in_use():
            if device in self._gpus or device in self._refused:
                continue
            try:
                self._gpus[device] = recorder.CounterSampler(
                    os.environ.get(libcupti.OVERRIDE, ""),
                    device,
                    list(CHOICES.values()),
                    PERIOD_NS,
                    MOST_SAMPLES,
                )
            except RuntimeError as error:
                self._refused[device] = str(error)

    def _taken(self, device: int, gpu: Any) -> dict[str, str]:
        """The samples since the last call, as metadata with a name of their own."""
        start, end, values = gpu.take()
        if not start:
            return {}
        used = [name for name, metric in zip(CHOICES, gpu.metrics, strict=True) if metric]
        packed = [base64.b64encode(zlib.compress(part, 1)).decode() for part in (start, end, values)]
        self._pieces += 1
        self._bytes += sum(map(len, packed))
        return {f"{COUNTERS}{self._pieces}": json.dumps([device, used, *packed])}
