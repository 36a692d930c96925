# SPDX-License-Identifier: Apache-2.0
"""The GPUs that the programs of E12 and E13 measure: a simulated one, and this machine's by NVML and torch.

Both have the same methods. Work is launched and runs while the host goes on, as CUDA does it. Joules come
from a counter that changes once per period, power from a sensor that shows the average of the time before.
"""

from __future__ import annotations

import random
import time
from bisect import bisect_right
from collections.abc import Callable
from typing import Any

LEAST_PRODUCT_S = 1.5e-3
"""so that the products of a long phase fit into the queue of launches"""
MOST_LAUNCHES = 1000
SIZE, ROWS, COLUMNS = 8192, 32768, 4096


class SimulatedGPU:
    """A GPU whose time and power are computed: the same numbers on every machine.

    kernels: the seconds and the watts of one call of each, by name.
    """

    name = "simulated GPU"

    def __init__(
        self,
        kernels: dict[str, tuple[float, float]],
        *,
        seed: int = 0,
        period_s: float = 0.1,
        window_s: float = 1.0,
        idle_w: float = 120.0,
        load_w: float = 690.0,
    ) -> None:
        chance = random.Random(seed)
        self.kernels, self.period_s, self.window_s = kernels, period_s, window_s
        self.idle_w, self.load_w = idle_w, load_w
        self.workloads = {name: self._call(name) for name in kernels}
        self.shapes: dict[str, dict[str, int]] = {}
        self.launches = dict.fromkeys(kernels, 0)
        self._now_s = 5 + chance.random()
        self._offset_s = chance.random() * period_s
        # Of each busy interval: when it begins, when it ends, its power and the joules above idle before it.
        self._begins, self._ends, self._watts, self._sums = [0.0], [0.0], [idle_w], [0.0]

    def now(self) -> float:
        """The host's clock, in seconds."""
        return self._now_s

    def sleep(self, seconds: float) -> None:
        self._now_s += seconds

    def synchronize(self) -> None:
        """Wait until the GPU has done everything."""
        self._now_s = max(self._now_s, self._ends[-1]) + 2e-6

    def is_busy(self) -> bool:
        return self._ends[-1] > self._now_s

    def load(self, seconds: float) -> None:
        """Launch that much work."""
        self._launch(seconds, self.load_w)

    def energy_mj(self) -> int:
        """The counter, as of its last change, in millijoules."""
        self._now_s += 1e-3
        return int(1e3 * self._joules(self._update_s()))

    def power_w(self) -> float:
        """The average power of the window before now."""
        self._now_s += 1e-3
        return (self._joules(self._now_s) - self._joules(self._now_s - self.window_s)) / self.window_s

    def instant_w(self) -> float | None:
        """The power at this moment."""
        self._now_s += 1e-3
        number = bisect_right(self._begins, self._now_s) - 1
        return self._watts[number] if self._now_s < self._ends[number] else self.idle_w

    def _update_s(self) -> float:
        return (self._now_s - self._offset_s) // self.period_s * self.period_s + self._offset_s

    def _call(self, name: str) -> Callable[[], None]:
        def call() -> None:
            self.launches[name] += 1
            self._launch(*self.kernels[name])

        return call

    def _launch(self, seconds: float, watts: float) -> None:
        self._now_s += 5e-6
        above_j = (self._watts[-1] - self.idle_w) * (self._ends[-1] - self._begins[-1])
        self._sums.append(self._sums[-1] + above_j)
        self._begins.append(max(self._now_s, self._ends[-1]))
        self._ends.append(self._begins[-1] + seconds)
        self._watts.append(watts)

    def _joules(self, at_s: float) -> float:
        number = bisect_right(self._begins, at_s) - 1
        busy_s = min(at_s, self._ends[number]) - self._begins[number]
        return self.idle_w * at_s + self._sums[number] + (self._watts[number] - self.idle_w) * busy_s


class TorchGPU:
    """This machine's GPU. workloads: matmuls in three precisions, layer norm and GELU eager and fused.

    Other devices and sizes are for tests. Raises NvmlError if NVML cannot read the GPU.
    """

    def __init__(
        self, device: str = "cuda", size: int = SIZE, rows: int = ROWS, columns: int = COLUMNS
    ) -> None:
        import torch

        from profiling_lab.utils.nvml import gpu_of

        self._torch, self._on_gpu = torch, device == "cuda"
        self._nvml = gpu_of(torch.cuda.current_device() if self._on_gpu else 0)
        self.name = self._nvml.name()
        self._end = torch.cuda.Event() if self._on_gpu else None
        x = torch.randn(size, size, device=device)
        self._factor = x.bfloat16()
        self._product_s = 0.0
        matmuls = {"fp32": (x, False), "tf32": (x, True), "bf16": (self._factor, False)}
        self.workloads: dict[str, Callable[[], Any]] = {
            name: self._matmul(tensor, tf32) for name, (tensor, tf32) in matmuls.items()
        }
        self.shapes = {name: {"m": size, "n": size, "k": size} for name in matmuls}
        self._norms(torch.randn(rows, columns, device=device, dtype=torch.bfloat16))

    def _matmul(self, x: Any, tf32: bool) -> Callable[[], Any]:
        out = self._torch.empty_like(x)

        def call() -> Any:
            self._torch.backends.cuda.matmul.allow_tf32 = tf32
            return self._torch.mm(x, x, out=out)

        return call

    def _norms(self, x: Any) -> None:
        from torch.nn import functional

        def fused() -> Any:
            from profiling_lab.ops import layer_norm_gelu  # the other workloads do not need it

            return layer_norm_gelu(x, weight, bias)

        weight, bias = self._torch.ones_like(x[0]), self._torch.zeros_like(x[0])
        self.workloads["layer_norm_gelu eager"] = lambda: functional.gelu(
            functional.layer_norm(x, x.shape[-1:], weight, bias)
        )
        self.workloads["layer_norm_gelu fused"] = fused

    now, sleep = staticmethod(time.perf_counter), staticmethod(time.sleep)

    def synchronize(self) -> None:
        if self._on_gpu:
            self._torch.cuda.synchronize()

    def is_busy(self) -> bool:
        """Whether what `load` launched is still running."""
        return self._end is not None and not self._end.query()

    def load(self, seconds: float) -> None:
        """Launch bf16 matmuls for about that time."""
        if not self._product_s:
            self._calibrate()
        for _ in range(min(max(round(seconds / self._product_s), 1), MOST_LAUNCHES)):
            self._torch.mm(self._factor, self._factor)
        if self._end is not None:
            self._end.record()

    def _calibrate(self) -> None:
        while True:
            self._torch.mm(self._factor, self._factor)
            self.synchronize()
            began_s = self.now()
            for _ in range(20):
                self._torch.mm(self._factor, self._factor)
            self.synchronize()
            self._product_s = (self.now() - began_s) / 20
            if self._product_s >= LEAST_PRODUCT_S or not self._on_gpu:
                return
            size = 2 * len(self._factor)
            self._factor = self._torch.randn(size, size, device=self._factor.device, dtype=self._factor.dtype)

    def energy_mj(self) -> int:
        return self._nvml.energy_mj()

    def power_w(self) -> float:
        return self._nvml.read("power_w")

    def instant_w(self) -> float | None:
        """None: this driver does not tell it."""
        from profiling_lab.recording.energy.nvml import NvmlError

        try:
            return float(self._nvml.ask(lambda nvml, gpu: nvml.power_instant(gpu))) / 1e3
        except NvmlError:
            return None


def next_change(gpu: SimulatedGPU | TorchGPU, most_s: float = 5.0) -> tuple[float, int]:
    """Wait until the counter changes: when, and its new value. Raises RuntimeError if it does not."""
    before, end_s = gpu.energy_mj(), gpu.now() + most_s
    while (now := gpu.energy_mj()) == before:
        if gpu.now() > end_s:
            raise RuntimeError(f"the energy counter did not change within {most_s:g} s")
        gpu.sleep(5e-4)
    return gpu.now(), now


def simulated() -> SimulatedGPU:
    """The one that the programs use with --simulated, with the workloads of TorchGPU."""
    kernels = {
        "fp32": (20e-3, 480.0),
        "tf32": (3e-3, 560.0),
        "bf16": (1.6e-3, 690.0),
        "layer_norm_gelu eager": (0.4e-3, 450.0),
        "layer_norm_gelu fused": (0.15e-3, 500.0),
    }
    gpu = SimulatedGPU(kernels)
    gpu.shapes = {name: {"m": SIZE, "n": SIZE, "k": SIZE} for name in ("fp32", "tf32", "bf16")}
    return gpu
