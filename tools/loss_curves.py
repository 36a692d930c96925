# SPDX-License-Identifier: Apache-2.0
"""Curves of loss as one SVG: a panel per case, above the curves, below how far they are from each other."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape

Points = Sequence[tuple[float, float]]

WIDTH, LEFT, RIGHT, GAP = 320, 52, 20, 20
TOP, UPPER, BETWEEN, LOWER, BOTTOM = 48, 190, 34, 120, 64
COLORS = {"before": "#4477aa", "after": "#cc6633", "seeds": "#888888"}
FONT = 'font-family="system-ui, sans-serif" font-size="12"'


@dataclass(frozen=True, slots=True)
class Panel:
    """One case. `curves` are (provider, seed) to points; provider is "before" or "after"."""

    title: str
    curves: dict[tuple[str, int], Points]

    def distance(self, one: tuple[str, int], other: tuple[str, int]) -> Points:
        pairs = zip(self.curves[one], self.curves[other], strict=True)
        return [(x, abs(a - b)) for (x, a), (_, b) in pairs]

    def distances(self) -> Iterator[tuple[str, Points]]:
        """How far two seeds are from each other, and what the change did to each."""
        seeds = sorted({seed for _, seed in self.curves})
        yield "seeds", self.distance(("before", seeds[0]), ("before", seeds[1]))
        for seed in seeds:
            yield "after", self.distance(("before", seed), ("after", seed))


def drawing(panels: Sequence[Panel]) -> str:
    """The whole picture."""
    width = len(panels) * (LEFT + WIDTH + RIGHT) + (len(panels) - 1) * GAP
    height = TOP + UPPER + BETWEEN + LOWER + BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" {FONT}>',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for index, panel in enumerate(panels):
        parts.append(f'<g transform="translate({index * (LEFT + WIDTH + RIGHT + GAP) + LEFT} {TOP})">')
        parts += _panel(panel)
        parts.append("</g>")
    parts += _legend(height - 18)
    return "\n".join([*parts, "</svg>", ""])


def _panel(panel: Panel) -> Iterator[str]:
    yield _text(WIDTH / 2, -18, panel.title, anchor="middle", weight="600")
    last = max(x for points in panel.curves.values() for x, _ in points)

    def across(x: float) -> float:
        return x / last * WIDTH

    losses = [y for points in panel.curves.values() for _, y in points]
    low, high = math.floor(min(losses)), math.ceil(max(losses))
    step = max(1, (high - low) // 5)

    def upper(y: float) -> float:
        return UPPER * (high - y) / (high - low)

    yield from _axis(upper, [(y, f"{y:g}") for y in range(low, high + 1, step)], 0, UPPER, "loss, nats")
    for (provider, _), points in sorted(panel.curves.items(), reverse=True):
        dash = ' stroke-dasharray="5 4"' if provider == "after" else ""
        yield _line(points, across, upper, COLORS[provider], dash)

    top = UPPER + BETWEEN
    found = [(kind, [(x, max(y, 1e-12)) for x, y in points]) for kind, points in panel.distances()]
    values = [y for _, points in found for _, y in points]
    floor = max(math.floor(math.log10(min(values))), -7)
    ceiling = math.ceil(math.log10(max(values)))

    def lower(y: float) -> float:
        return top + LOWER * (ceiling - max(math.log10(y), floor)) / (ceiling - floor)

    ticks = [(10.0**power, f"1e{power}") for power in range(floor, ceiling + 1)]
    yield from _axis(lower, ticks, top, LOWER, "distance, nats")
    for kind, points in found:
        yield _line(points, across, lower, COLORS[kind])
    for x in range(0, int(last) + 1, 100):
        yield _text(across(x), top + LOWER + 16, str(x), anchor="middle")
    yield _text(WIDTH / 2, top + LOWER + 32, "step", anchor="middle")


def _axis(
    scale: Callable[[float], float], ticks: Sequence[tuple[float, str]], top: float, height: float, name: str
) -> Iterator[str]:
    for value, label in ticks:
        y = scale(value)
        yield f'<line x1="0" x2="{WIDTH}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e4e4e4"/>'
        yield _text(-6, y + 4, label, anchor="end")
    yield f'<rect y="{top}" width="{WIDTH}" height="{height}" fill="none" stroke="#aaaaaa"/>'
    yield _text(4, top - 5, name)


def _line(
    points: Points,
    across: Callable[[float], float],
    down: Callable[[float], float],
    color: str,
    more: str = "",
) -> str:
    path = " ".join(f"{across(x):.1f},{down(y):.1f}" for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="1.6"{more}/>'


def _legend(y: float) -> Iterator[str]:
    entries = (
        ("before", "before, two seeds", ""),
        ("after", "after, the same two seeds; below, its distance to before", ' stroke-dasharray="5 4"'),
        ("seeds", "distance of the two seeds before", ""),
    )
    x = float(LEFT)
    for kind, label, more in entries:
        ends = f'x1="{x:.1f}" x2="{x + 26:.1f}" y1="{y - 4}" y2="{y - 4}"'
        yield f'<line {ends} stroke="{COLORS[kind]}" stroke-width="2"{more}/>'
        yield _text(x + 32, y, label)
        x += 60 + 6.6 * len(label)


def _text(x: float, y: float, text: str, *, anchor: str = "start", weight: str = "400") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}" fill="#333333">'
        f"{escape(text)}</text>"
    )
