# SPDX-License-Identifier: Apache-2.0
"""The roofline plot as SVG: rows with FLOPs as points under their roofs, the others as bars of bandwidth."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape

from profiling_lab.analysis.roofline.peaks import Peaks, peaks_of
from profiling_lab.analysis.roofline.roofline import RooflineResult, RoofRow, gpu_name, roofline
from profiling_lab.errors import NotEnoughDataError
from profiling_lab.report import numbers
from profiling_lab.report.numbers import amount
from profiling_lab.report.roofline.peaks import peaks_text
from profiling_lab.report.roofline.table import limit_text, row_name
from profiling_lab.trace import Trace

_WIDTH, _HEIGHT = 860, 460
_LEFT, _RIGHT, _TOP, _BOTTOM = 100, 40, 20, 50
_BARS, _BAR_HEIGHT = 12, 22
_COLORS = {"forward": "#2563eb", "backward": "#c2410c", "recompute": "#7c3aed", "optimizer": "#15803d"}
_OTHER_COLOR = "#475569"
_POINTS = 40
_MOST_ROOFS = 4

_STYLE = """
body { font: 14px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 900px; color: #1e293b; }
h1 { font-size: 1.3em; } h2 { font-size: 1.1em; }
svg text { font: 12px system-ui, sans-serif; fill: #334155; }
svg .grid { stroke: #e2e8f0; } svg .roof { stroke: #0f172a; stroke-width: 1.5; fill: none; }
table { border-collapse: collapse; } td, th { padding: 2px 10px 2px 0; text-align: right; }
td:first-child, th:first-child { text-align: left; }
"""


BEGINNING = '<!doctype html><html lang="en"><meta charset="utf-8"><title>Roofline of '
ROWS_ON_THE_PAGE = 60


def section(trace: Trace, own: tuple[str, ...]) -> str:
    """A section of the report's page; '' for a recording without counted work."""
    try:
        result = roofline(trace, peaks_of(gpu_name(trace)), own=own, limit=ROWS_ON_THE_PAGE)
    except NotEnoughDataError:
        return ""
    return (
        f'<section id="roofline"><h2>How far from the roof</h2><p class="lead">{escape(_lead(result))}</p>'
        f"{points(result)}{bars(result)}</section>\n"
    )


def _lead(result: RooflineResult) -> str:
    peaks = result.peaks
    roof = f"Roof of {peaks.gpu}, {peaks.source}: {peaks_text(peaks)}." if peaks else "The roof is unknown."
    return f"{roof} Work is modelled from shapes; the area of a point is its GPU time."


def page(result: RooflineResult, name: str) -> str:
    """A self-contained HTML page."""
    return (
        f"{BEGINNING}{escape(name)}</title>"
        f"<style>{_STYLE}</style><h1>Roofline of {escape(name)}</h1><p>{escape(_lead(result))}</p>"
        f"{points(result)}{bars(result)}{_table(result)}</html>\n"
    )


def points(result: RooflineResult) -> str:
    """Rows with FLOPs, over their intensity; '' if there are none."""
    rows = [row for row in result.rows if row.intensity and row.flops_per_s][:_POINTS]
    if not rows:
        return ""
    peaks = result.peaks
    x = _Axis([row.intensity or 1 for row in rows] + _ridges(peaks, rows), _LEFT, _WIDTH - _RIGHT)
    rates = [row.flops_per_s or 1 for row in rows] + [rate for _, rate in _roofs(peaks, rows)]
    y = _Axis(rates, _HEIGHT - _BOTTOM, _TOP)
    parts = [*_grid(x, y), *_roof_lines(peaks, rows, x, y)]
    longest = max(row.gpu_ns for row in rows)
    for row in sorted(rows, key=lambda row: -row.gpu_ns):
        radius = 3 + 15 * math.sqrt(row.gpu_ns / longest)
        parts.append(
            f'<circle cx="{x(row.intensity or 1):.1f}" cy="{y(row.flops_per_s or 1):.1f}" r="{radius:.1f}" '
            f'fill="{_color(row)}" fill-opacity="0.55" stroke="{_color(row)}">'
            f"<title>{escape(_hint(row, result))}</title></circle>"
        )
    legend = _legend({row.phase for row in rows})
    return _svg(_HEIGHT, [*parts, *legend], "Achieved FLOP/s over FLOPs per byte, with the roofs")


def bars(result: RooflineResult) -> str:
    """Rows without FLOPs: their bandwidth; '' if there are none."""
    rows = [row for row in result.rows if row.flops is None and row.bytes_per_s][:_BARS]
    if not rows:
        return ""
    roof = result.peaks.memory_bytes_per_s if result.peaks else 0.0
    most = max([roof, *(float(row.bytes_per_s or 0) for row in rows)])
    left, width = 300, _WIDTH - 300 - 110
    parts = []
    for i, row in enumerate(rows):
        rate, at = float(row.bytes_per_s or 0), 20 + i * _BAR_HEIGHT
        parts.append(
            f'<rect x="{left}" y="{at - 12}" width="{width * rate / most:.1f}" height="{_BAR_HEIGHT - 6}" '
            f'fill="{_color(row)}" fill-opacity="0.7"><title>{escape(_hint(row, result))}</title></rect>'
            f'<text x="{left - 8}" y="{at}" text-anchor="end">{escape(_short(row_name(row, result.by)))} '
            f"{escape(row.phase)}</text>"
            f'<text x="{_WIDTH}" y="{at}" text-anchor="end">{numbers.rate(round(rate))}</text>'
        )
    height = 30 + len(rows) * _BAR_HEIGHT
    if roof:
        x = f"{left + width * roof / most:.1f}"
        parts.append(f'<line class="roof" x1="{x}" x2="{x}" y1="4" y2="{height - 14}"/>')
    title = "Bandwidth of rows without counted FLOPs, against the memory's rate"
    return f"<h2>{title}</h2>{_svg(height, parts, title)}"


class _Axis:
    """A logarithmic axis from whole powers of ten to whole powers of ten."""

    def __init__(self, values: Sequence[float], first: float, last: float) -> None:
        known = [value for value in values if value > 0]
        self.low = math.floor(math.log10(min(known)))
        self.high = max(math.ceil(math.log10(max(known) * 1.05)), self.low + 1)
        self._first, self._last = first, last

    def __call__(self, value: float) -> float:
        share = (math.log10(value) - self.low) / (self.high - self.low)
        return self._first + min(max(share, 0.0), 1.0) * (self._last - self._first)

    @property
    def ticks(self) -> list[float]:
        return [10.0**power for power in range(self.low, self.high + 1)]


def _roofs(peaks: Peaks | None, rows: Sequence[RoofRow]) -> list[tuple[str, float]]:
    """The arithmetic roofs of these rows, the highest first."""
    used = {row.math for row in rows}
    known = [(name, rate) for name, rate in (peaks.flops_per_s if peaks else {}).items() if name in used]
    return sorted(known, key=lambda roof: -roof[1])[:_MOST_ROOFS]


def _ridges(peaks: Peaks | None, rows: Sequence[RoofRow]) -> list[float]:
    return [rate / peaks.memory_bytes_per_s for _, rate in _roofs(peaks, rows)] if peaks else []


def _roof_lines(peaks: Peaks | None, rows: Sequence[RoofRow], x: _Axis, y: _Axis) -> Iterator[str]:
    for name, rate in _roofs(peaks, rows):
        assert peaks is not None
        memory = peaks.memory_bytes_per_s
        first = max(10.0**x.low, 10.0**y.low / memory)
        ridge = rate / memory
        path = [(first, first * memory), (ridge, rate), (10.0**x.high, rate)]
        where = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in path)
        yield f'<polyline class="roof" points="{where}"/>'
        yield (
            f'<text x="{_WIDTH - _RIGHT}" y="{y(rate) - 5:.1f}" text-anchor="end">{escape(name)} '
            f"{amount(rate, 'FLOP/s')}</text>"
        )


def _grid(x: _Axis, y: _Axis) -> Iterator[str]:
    bottom = _HEIGHT - _BOTTOM
    for value in x.ticks:
        at = f"{x(value):.1f}"
        yield f'<line class="grid" x1="{at}" x2="{at}" y1="{_TOP}" y2="{bottom}"/>'
        yield f'<text x="{at}" y="{bottom + 18}" text-anchor="middle">{value:g}</text>'
    for value in y.ticks:
        at = f"{y(value):.1f}"
        yield f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{at}" y2="{at}"/>'
        rate = amount(value, "FLOP/s")
        yield f'<text x="{_LEFT - 8}" y="{y(value) + 4:.1f}" text-anchor="end">{rate}</text>'
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    yield f'<text x="{middle}" y="{_HEIGHT - 10}" text-anchor="middle">FLOPs per byte</text>'


def _legend(phases: set[str]) -> Iterator[str]:
    at = _LEFT + 12
    for phase in (name for name in _COLORS if name in phases):
        yield f'<circle cx="{at}" cy="{_TOP + 8}" r="5" fill="{_COLORS[phase]}" fill-opacity="0.7"/>'
        yield f'<text x="{at + 10}" y="{_TOP + 12}">{phase}</text>'
        at += 30 + 8 * len(phase)


def _svg(height: int, parts: Sequence[str], title: str) -> str:
    return (
        f'<svg class="roofline" role="img" viewBox="0 0 {_WIDTH} {height}" width="100%" '
        f'xmlns="http://www.w3.org/2000/svg"><title>{escape(title)}</title>{"".join(parts)}</svg>'
    )


def _table(result: RooflineResult) -> str:
    titles = (result.by, "phase", "time", "FLOP/s", "bandwidth", "of the roof", "limited by")
    head = "".join(f"<th>{escape(title)}</th>" for title in titles)
    rows = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in _cells(row, result)) + "</tr>"
        for row in result.rows
    )
    return f"<h2>Rows</h2><table><tr>{head}</tr>{rows}</table>"


def _cells(row: RoofRow, result: RooflineResult) -> tuple[str, ...]:
    return (
        row_name(row, result.by),
        row.phase,
        numbers.time(row.gpu_ns),
        amount(row.flops_per_s, "FLOP/s") or "-",
        "-" if row.bytes_per_s is None else numbers.rate(row.bytes_per_s),
        "-" if row.roof_frac is None else numbers.share(row.roof_frac),
        limit_text(row),
    )


def _hint(row: RoofRow, result: RooflineResult) -> str:
    return ", ".join(cell for cell in _cells(row, result) if cell not in ("", "-"))


def _color(row: RoofRow) -> str:
    return _COLORS.get(row.phase, _OTHER_COLOR)


def _short(name: str) -> str:
    return name if len(name) <= 34 else f"…{name[-33:]}"
