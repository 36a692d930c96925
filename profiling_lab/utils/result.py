# SPDX-License-Identifier: Apache-2.0
"""The times and the memory of a function's calls."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from profiling_lab.errors import NotEnoughDataError
from profiling_lab.measure import CallTime, Timing
from profiling_lab.report import numbers


@dataclass(frozen=True, slots=True)
class ProfilingResult:
    """What was measured of `iterations` calls. All times are of one call; None is what is not known.

    wall: until the result was complete, on the GPU too. host: until the call returned; where the GPU is what
    takes the time, this is shorter. gpu_span: between CUDA events before and after the call, with the time
    in which the GPU idled: an upper limit of its work; None on the CPU. peak_memory_bytes: the most that
    torch's allocator had on the GPU during a call, with what it had before. throughput_ns: the time per call
    of calls in a row without a wait in between, where that was measured.
    """

    name: str
    device: str
    warmup: int
    wall: Timing
    host: Timing
    gpu_span: Timing | None = None
    peak_memory_bytes: int | None = None
    throughput_ns: float | None = None
    samples_per_call: int | None = None

    @classmethod
    def of(
        cls, name: str, device: str, warmup: int, calls: Sequence[CallTime], **known: int | float | None
    ) -> ProfilingResult:
        """The result of measured calls. Raises NotEnoughDataError if there is none."""
        if not calls:
            raise NotEnoughDataError(f"{name}: expected at least one measured call, found none")
        spans = [call.gpu_span_ns for call in calls if call.gpu_span_ns is not None]
        return cls(
            name,
            device,
            warmup,
            wall=Timing(name, tuple(call.wall_ns for call in calls)),
            host=Timing(name, tuple(call.host_ns for call in calls)),
            gpu_span=Timing(name, tuple(spans)) if len(spans) == len(calls) else None,
            **known,  # type: ignore[arg-type]
        )

    @property
    def iterations(self) -> int:
        return self.wall.n

    @property
    def median_ms(self) -> float:
        return self.wall.median_ns / 1e6

    @property
    def mean_ms(self) -> float:
        return statistics.fmean(self.wall.samples_ns) / 1e6

    @property
    def min_ms(self) -> float:
        return min(self.wall.samples_ns) / 1e6

    @property
    def max_ms(self) -> float:
        return max(self.wall.samples_ns) / 1e6

    @property
    def std_ms(self) -> float | None:
        """The standard deviation; a single call has none."""
        return statistics.stdev(self.wall.samples_ns) / 1e6 if self.iterations > 1 else None

    @property
    def host_ms(self) -> float:
        """The median of host."""
        return self.host.median_ns / 1e6

    @property
    def gpu_span_ms(self) -> float | None:
        """The median of gpu_span."""
        return None if self.gpu_span is None else self.gpu_span.median_ns / 1e6

    @property
    def calls_per_s(self) -> float | None:
        """Calls per second in a row (throughput_ns), otherwise one by one."""
        call_ns = self.throughput_ns or self.wall.median_ns
        return 1e9 / call_ns if call_ns else None

    @property
    def samples_per_s(self) -> float | None:
        rate = self.calls_per_s
        return None if rate is None or not self.samples_per_call else rate * self.samples_per_call

    def to_dict(self) -> dict[str, str | int | float | None]:
        """For JSON; times in milliseconds."""
        return {
            "name": self.name,
            "device": self.device,
            "warmup": self.warmup,
            "iterations": self.iterations,
            "median_ms": self.median_ms,
            "mean_ms": self.mean_ms,
            "min_ms": self.min_ms,
            "max_ms": self.max_ms,
            "std_ms": self.std_ms,
            "host_ms": self.host_ms,
            "gpu_span_ms": self.gpu_span_ms,
            "calls_per_s": self.calls_per_s,
            "samples_per_s": self.samples_per_s,
            "peak_memory_bytes": self.peak_memory_bytes,
        }

    def __str__(self) -> str:
        spread = f"{numbers.time(min(self.wall.samples_ns))} to {numbers.time(max(self.wall.samples_ns))}"
        lines = [
            f"{self.name} on {self.device}: {numbers.time(round(self.wall.median_ns))} a call, median of "
            f"{numbers.counted(self.iterations, 'call')} ({spread}) after {self.warmup} to warm up"
        ]
        if self.gpu_span is not None:
            lines.append(
                f"  the host took {numbers.time(round(self.host.median_ns))} of it until the call returned; "
                f"first to last GPU work at most {numbers.time(round(self.gpu_span.median_ns))}"
            )
        if self.peak_memory_bytes is not None:
            lines.append(f"  peak memory of torch's allocator: {numbers.size(self.peak_memory_bytes)}")
        if self.throughput_ns is not None:
            per_s = "" if self.samples_per_s is None else f", {self.samples_per_s:,.0f} samples/s"
            lines.append(f"  in a row: {numbers.time(round(self.throughput_ns))} a call{per_s}")
        return "\n".join(lines)
