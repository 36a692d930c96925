# SPDX-License-Identifier: Apache-2.0
"""What the links between GPUs reach: measured times of collectives by size, and the line through them.

The usual model of a transfer is t = alpha + bytes / beta: a latency, and a bandwidth for what each link
carries. NCCL changes algorithm and protocol with the size, so no one line fits: expected times are
interpolated between measured ones, and the fit says how far it is off.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from profiling_lab.analysis import measured_file
from profiling_lab.analysis.ranks.kinds import bus_bytes
from profiling_lab.errors import NotEnoughDataError, UnreadableInputError
from profiling_lab.trace.columns import I64

SCHEMA = "profiling-lab-links/1"
FEWEST_SIZES = 3
"""of a fit: two are a line by themselves"""
F64 = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class LinkTime:
    """One collective of one size, as measured."""

    kind: str
    ranks: int
    size_bytes: int
    """the message of one rank, as `collectives` has it (kinds.bus_bytes)"""
    time_ns: int
    spread_ns: int
    calls: int

    @property
    def bus_bytes_per_s(self) -> int:
        return round(bus_bytes(self.kind, self.size_bytes, self.ranks) * 1e9 / self.time_ns)


@dataclass(frozen=True, slots=True)
class LinkFit:
    """t = latency_ns + bus bytes / bus_bytes_per_s, by least squares of the relative error."""

    kind: str
    ranks: int
    latency_ns: float
    bus_bytes_per_s: float
    off_frac: float
    """by how much the fit misses a measured time: the median over the sizes"""
    most_off_frac: float

    def time_ns(self, size_bytes: float) -> float:
        """Of a message."""
        return self.latency_ns + bus_bytes(self.kind, 1, self.ranks) * size_bytes * 1e9 / self.bus_bytes_per_s

    @property
    def half_bytes(self) -> float:
        """The message that gets half of the bandwidth: latency and transfer take the same time."""
        return self.latency_ns * 1e-9 * self.bus_bytes_per_s / bus_bytes(self.kind, 1, self.ranks)


@dataclass(frozen=True, slots=True)
class Links:
    """All that was measured on one machine or job."""

    gpu: str
    date: str
    backend: str
    """nccl or gloo, with its version where it is known"""
    driver: str
    torch: str
    topology: str
    """what joins the GPUs, as `nvidia-smi topo -m` calls it: NV18, PIX, SYS; '' where it is unknown"""
    times: tuple[LinkTime, ...]

    def __str__(self) -> str:
        """`2 x NVIDIA H200, NV18, nccl 2.28.9, driver 580.1: measured 2026-11-24`"""
        ranks = max(time.ranks for time in self.times)
        driver = f"driver {self.driver}" if self.driver else ""
        facts = ", ".join(filter(None, (f"{ranks} x {self.gpu}", self.topology, self.backend, driver)))
        return f"{facts}: measured {self.date[:10]}"

    def of(self, kind: str, ranks: int) -> tuple[LinkTime, ...]:
        """The times of a kind, by size. For send and receive the ranks of the group do not matter."""
        found = [time for time in self.times if time.kind == kind]
        if kind == "SendRecv" and found:
            nearest = min({time.ranks for time in found}, key=lambda n: (abs(n - ranks), n))
            ranks = nearest
        return tuple(sorted((t for t in found if t.ranks == ranks), key=lambda t: t.size_bytes))

    def expected_ns(self, kind: str, ranks: int, size_bytes: I64) -> F64 | None:
        """How long messages of these sizes take; None where such collectives were not measured.

        Between measured sizes along a line of logarithms. A message smaller than all takes as long as the
        smallest, a larger one has the bandwidth of the largest.
        """
        times = self.of(kind, ranks)
        if not times:
            return None
        sizes, ns = (np.array([getattr(t, name) for t in times], float) for name in ("size_bytes", "time_ns"))
        asked = np.maximum(size_bytes.astype(np.float64), 1.0)
        inside = np.exp(np.interp(np.log(asked), np.log(sizes), np.log(ns)))
        return np.asarray(inside * np.maximum(asked / sizes[-1], 1.0))

    def fit(self, kind: str, ranks: int) -> LinkFit:
        """Raises NotEnoughDataError where there are fewer than three sizes."""
        times = self.of(kind, ranks)
        if len(times) < FEWEST_SIZES:
            raise NotEnoughDataError(
                f"a fit needs {FEWEST_SIZES} sizes, there are {len(times)} of {kind} on {ranks} ranks"
            )
        bus = np.array([bus_bytes(kind, t.size_bytes, ranks) for t in times])
        ns = np.array([t.time_ns for t in times], float)
        columns = np.stack([1 / ns, bus / ns], axis=1)
        latency, per_byte = np.linalg.lstsq(columns, np.ones_like(ns), rcond=None)[0].tolist()
        if latency < 0:
            share = bus / ns
            latency, per_byte = 0.0, float(share.sum() / (share**2).sum())
        if per_byte <= 0:
            raise NotEnoughDataError(f"larger messages of {kind} did not take longer: there is no bandwidth")
        off = np.abs((latency + per_byte * bus) / ns - 1)
        return LinkFit(kind, ranks, latency, 1e9 / per_byte, float(np.median(off)), float(off.max()))

    @property
    def measured(self) -> tuple[tuple[str, int], ...]:
        """Kinds and numbers of ranks, in the order in which they were measured."""
        return tuple(dict.fromkeys((time.kind, time.ranks) for time in self.times))


def save(links: Links, path: Path) -> None:
    measured_file.write(path, SCHEMA, asdict(links))


def load(path: Path) -> Links:
    """Raises UnreadableInputError if the file is not one that `save` wrote."""
    data = measured_file.read(path)
    try:
        if data.pop("schema") != SCHEMA:
            raise KeyError
        times = tuple(LinkTime(**time) for time in data.pop("times"))
        links = Links(times=times, **data)
        if not times or not all(map(_is_time, times)):
            raise ValueError
    except (AttributeError, KeyError, TypeError, ValueError):
        raise UnreadableInputError(
            f"{path} does not hold times of links: expected what `profiling-lab interconnect -o FILE` writes"
        ) from None
    return links


def _is_time(time: LinkTime) -> bool:
    numbers = (time.ranks, time.size_bytes, time.time_ns)
    is_number = all(type(number) in (int, float) and math.isfinite(number) for number in numbers)
    return is_number and isinstance(time.kind, str) and min(numbers) > 0 and time.ranks > 1
