# SPDX-License-Identifier: Apache-2.0
"""The tables of measured links: a fit per collective, or every size."""

from __future__ import annotations

from dataclasses import dataclass

from profiling_lab.analysis.collectives.links import LinkFit, Links
from profiling_lab.errors import NotEnoughDataError
from profiling_lab.report.fields import Field, table_of
from profiling_lab.report.numbers import size
from profiling_lab.report.table import SPARE, Report, Unit


@dataclass(frozen=True, slots=True)
class _Fitted:
    """One kind on one number of ranks."""

    kind: str
    ranks: int
    sizes: int
    smallest_ns: int
    largest_bytes: int
    largest_bus_bytes_per_s: int
    fit: LinkFit | None

    @property
    def latency_ns(self) -> int | None:
        return None if self.fit is None else round(self.fit.latency_ns)

    @property
    def bus_bytes_per_s(self) -> int | None:
        return None if self.fit is None else round(self.fit.bus_bytes_per_s)

    @property
    def half_bytes(self) -> int | None:
        return None if self.fit is None else round(self.fit.half_bytes)


_KIND = (Field("kind", "collective"), Field("ranks", "ranks", Unit.COUNT))
_FITS = (
    *_KIND,
    Field("sizes", "sizes", Unit.COUNT, priority=SPARE),
    Field("latency_ns", "latency", Unit.NS, "latency"),
    Field("bus_bytes_per_s", "bus bandwidth", Unit.RATE),
    Field("off_frac", "fit off by", Unit.FRAC, value="fit.off_frac"),
    Field("most_off_frac", "at most", Unit.FRAC, value="fit.most_off_frac"),
    Field("half_bytes", "half at", Unit.BYTES),
    Field("smallest_ns", "smallest", Unit.NS, "latency"),
    Field("largest_bytes", "largest", Unit.BYTES, priority=SPARE),
    Field("largest_bus_bytes_per_s", "largest reaches", Unit.RATE),
)
_SIZES = (
    *_KIND,
    Field("size_bytes", "message", Unit.BYTES),
    Field("time_ns", "time", Unit.NS, "time"),
    Field("spread_ns", "spread", Unit.NS, "time"),
    Field("bus_bytes_per_s", "bus bandwidth", Unit.RATE),
    Field("calls", "calls", Unit.COUNT, priority=SPARE),
)


def links_report(links: Links, by: str = "kind") -> Report:
    """by: "kind", a fit per row, or "size", a measured time per row."""
    header = [str(links)]
    if by == "kind":
        rows = [_fitted(links, kind, ranks) for kind, ranks in links.measured]
        shown = " ".join(field.key for field in _FITS)
        table = table_of(_FITS, shown, rows, len(rows))
        largest = size(max(time.size_bytes for time in links.times))
        header += [
            f"  messages up to {largest}; fit: time = latency + bus bytes / bus bandwidth, off by: the "
            "median and the most of all sizes",
            "  half at: the message that gets half of the bandwidth",
        ]
    else:
        times = [time for kind, ranks in links.measured for time in links.of(kind, ranks)]
        times = list(dict.fromkeys(times))
        table = table_of(_SIZES, " ".join(field.key for field in _SIZES), times, len(times))
    about = {
        "gpu": links.gpu,
        "date": links.date,
        "backend": links.backend,
        "driver": links.driver,
        "torch": links.torch,
        "topology": links.topology,
        "by": by,
    }
    return Report("interconnect", about, tuple(header), table, {})


def _fitted(links: Links, kind: str, ranks: int) -> _Fitted:
    times = [time for time in links.times if (time.kind, time.ranks) == (kind, ranks)]
    times.sort(key=lambda time: time.size_bytes)
    try:
        fit = links.fit(kind, ranks)
    except NotEnoughDataError:
        fit = None
    last = times[-1]
    return _Fitted(kind, ranks, len(times), times[0].time_ns, last.size_bytes, last.bus_bytes_per_s, fit)
