# SPDX-License-Identifier: Apache-2.0
"""Joules of a block or a function, from the GPU's own energy counter.

with measure_energy() as used:
    train_epoch()
joules, error = used.joules, used.error_j

As a script it compares matmuls in several dtypes: python -m profiling_lab.utils.energy_benchmark
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from profiling_lab.errors import LabError, UsageError
from profiling_lab.recording.energy.nvml import NvmlError, NvmlGpu
from profiling_lab.utils.devices import allocator, gpu_index
from profiling_lab.utils.nvml import gpu_of

_POLL_S = 0.001
_MOST_WAIT_S = 5.0
"""for the counter to change"""
_BATCH_S = 0.1
"""of calls between two looks at the clock"""


@dataclass(slots=True)
class Energy:
    """Filled in when the block has ended."""

    joules: float = 0.0
    error_j: float = 0.0
    """the energy of one period of the counter: the ends of the block may be off by that"""
    seconds: float = 0.0

    @property
    def mean_w(self) -> float:
        return self.joules / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True)
class EnergyResult:
    """One function; joules are per call."""

    name: str
    calls: int
    seconds: float
    joules: float
    error_j: float
    mean_w: float
    idle_w: float
    """before it ran"""
    tflops_per_w: float | None
    """None: its FLOPs were not given"""

    @property
    def above_idle_j(self) -> float:
        """Without what the GPU would have used anyway."""
        return self.joules - self.idle_w * self.seconds / self.calls


@contextmanager
def measure_energy(device: object = None) -> Iterator[Energy]:
    """What the GPU uses while the block runs, other processes on it included.

    It begins right after a change of the counter and ends with the first change after the GPU has finished,
    so a block should take many periods, of 20 to 100 ms each. device: as in GPUMonitor. Raises LabError
    without a counter.
    """
    with _gpu(device) as gpu:
        used = Energy()
        earlier_s, _ = _change(gpu)
        began_s, before_mj = _change(gpu)
        yield used
        _finish()
        ended_s, after_mj = _change(gpu)
        used.joules, used.seconds = (after_mj - before_mj) / 1e3, ended_s - began_s
        used.error_j = used.mean_w * (began_s - earlier_s)


@contextmanager
def _gpu(device: object) -> Iterator[NvmlGpu]:
    try:
        gpu = gpu_of(gpu_index("measure_energy", device))
        try:
            yield gpu
        finally:
            gpu.close()
    except NvmlError as error:
        raise LabError(f"the energy counter cannot be read: {error}") from None


def _change(gpu: NvmlGpu) -> tuple[float, int]:
    """The next change of the counter: when, and its new value in millijoules."""
    before, end_s = gpu.energy_mj(), time.perf_counter() + _MOST_WAIT_S
    while (now := gpu.energy_mj()) == before:
        if time.perf_counter() > end_s:
            raise NvmlError(f"it did not change within {_MOST_WAIT_S:.0f} s")
        time.sleep(_POLL_S)
    return time.perf_counter(), now


def _finish() -> None:
    if (cuda := allocator()) is not None:
        cuda.synchronize()


class EnergyBenchmark:
    """Joules per call of several functions, one after the other.

    least_s: how long each is repeated. The longer, the smaller the share of the counter's period.
    """

    def __init__(self, least_s: float = 5.0, device: object = None) -> None:
        if not 0 < least_s < float("inf"):
            raise UsageError(f"EnergyBenchmark: least_s must be a number of seconds above 0, not {least_s}")
        self.results: list[EnergyResult] = []
        self._least_s, self._device = least_s, device

    def measure(self, name: str, function: Callable[[], object], flops: float | None = None) -> EnergyResult:
        """Repeat a function. flops: of one call, for TFLOP/s per watt. Raises what measure_energy raises."""
        function()
        _finish()
        with measure_energy(self._device) as idle:
            time.sleep(min(self._least_s / 4, 1.0))
        calls, batch = 0, 1
        with measure_energy(self._device) as used:
            began_s = time.perf_counter()
            while time.perf_counter() - began_s < self._least_s:
                batch_s = time.perf_counter()
                for _ in range(batch):
                    function()
                _finish()
                calls += batch
                batch *= 2 if time.perf_counter() - batch_s < _BATCH_S else 1
        result = EnergyResult(
            name=name,
            calls=calls,
            seconds=used.seconds,
            joules=used.joules / calls,
            error_j=used.error_j / calls,
            mean_w=used.mean_w,
            idle_w=idle.mean_w,
            tflops_per_w=None if flops is None or not used.joules else flops * calls / used.joules / 1e12,
        )
        self.results.append(result)
        return result

    def print_results(self) -> None:
        head = f"{'':24} {'J per call':>12} {'+/-':>10} {'above idle':>12} {'W':>6} {'TFLOP/s per W':>14}"
        sys.stdout.write(f"{head}\n")
        for one in self.results:
            rate = "-" if one.tflops_per_w is None else f"{one.tflops_per_w:.3f}"
            sys.stdout.write(
                f"{one.name:24} {one.joules:12.4g} {one.error_j:10.2g} {one.above_idle_j:12.4g} "
                f"{one.mean_w:6.0f} {rate:>14}\n"
            )

    def save_results(self, path: str | Path) -> None:
        """As JSON."""
        text = json.dumps([asdict(one) for one in self.results], indent=1)
        Path(path).write_text(text + "\n", encoding="utf-8")


def main() -> int:
    import torch

    if not torch.cuda.is_available():
        sys.stderr.write(f"energy_benchmark needs a GPU, and torch {torch.__version__} sees none\n")
        return 3
    size, bench = 8192, EnergyBenchmark()
    for name, dtype, tf32 in (
        ("float32", torch.float32, False),
        ("tf32", torch.float32, True),
        ("bfloat16", torch.bfloat16, False),
    ):
        torch.backends.cuda.matmul.allow_tf32 = tf32
        x = torch.randn(size, size, device="cuda", dtype=dtype)
        try:
            bench.measure(f"{size} x {size}, {name}", lambda x=x: torch.mm(x, x), 2.0 * size**3)  # type: ignore[misc]
        except LabError as error:
            sys.stderr.write(f"{error}\n")
            return error.exit_code
    bench.print_results()
    return 0


if __name__ == "__main__":
    sys.exit(main())
