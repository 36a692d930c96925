# SPDX-License-Identifier: Apache-2.0
"""Line panels and bars as SVG text, for slides: one legend, axes of powers of two, whiskers for spread."""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape

PANEL_WIDTH, PANEL_HEIGHT, GAP, LEFT, RIGHT = 330, 230, 66, 78, 24
ROW_HEIGHT = PANEL_HEIGHT + 78
TICK, LABEL, LEGEND, TITLE = 13, 14, 15, 22
"""Font sizes that can still be read where the picture is as wide as a slide."""
LEGEND_LINE = 24
KNOWN = {
    "flash": "#0b7a53",
    "flash-deterministic": "#0b7a53",
    "flash-varlen": "#57b894",
    "flash-sm80": "#57b894",
    "flash-sm80-deterministic": "#57b894",
    "sdpa-cudnn": "#1f4e9c",
    "sdpa-cudnn-deterministic": "#1f4e9c",
    "sdpa-flash": "#c2571a",
    "sdpa-flash-deterministic": "#c2571a",
    "flash-attn-3": "#7a3e9d",
    "flash-attn-4": "#c01f4b",
    "flash-attn-4-deterministic": "#c01f4b",
    "flex-attention": "#2a8f9e",
}
SHOWN = {
    "flash": "flash_attention",
    "flash-deterministic": "flash_attention, deterministic",
    "flash-varlen": "flash_attention, variable lengths",
    "flash-sm80": "flash_attention, sm_80 path",
    "flash-sm80-deterministic": "flash_attention, sm_80 path, deterministic",
    "sdpa-cudnn": "cuDNN",
    "sdpa-cudnn-deterministic": "cuDNN, deterministic",
    "sdpa-flash": "FlashAttention-2",
    "sdpa-flash-deterministic": "FlashAttention-2, deterministic",
    "sdpa-math": "PyTorch math",
    "flash-attn-3": "FlashAttention-3",
    "flash-attn-4": "FlashAttention-4",
    "flash-attn-4-deterministic": "FlashAttention-4, deterministic",
    "flex-attention": "FlexAttention",
}
"""What people call them; PyTorch's backends are reached through scaled_dot_product_attention."""
OTHERS = ("#8a6d1f", "#5b6770", "#a2488f", "#4d7a1f", "#8a8a8a", "#1f2f3a")


@dataclass(frozen=True, slots=True)
class Point:
    x: float
    y: float
    spread: float = 0.0


@dataclass(frozen=True, slots=True)
class Line:
    name: str
    points: tuple[Point, ...]
    dots: bool = True
    joined: bool = True
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Panel:
    title: str
    lines: tuple[Line, ...]


@dataclass(frozen=True, slots=True)
class Bars:
    """A bar from 0 to `mean` with a whisker from `low` to `high`, over `count` values."""

    label: str
    mean: float
    low: float
    high: float
    count: int
    provider: str


def colour_of(name: str, names: list[str]) -> str:
    unknown = [other for other in names if other not in KNOWN]
    return KNOWN[name] if name in KNOWN else OTHERS[unknown.index(name) % len(OTHERS)]


def shown(name: str) -> str:
    return SHOWN.get(name, name)


def is_second(name: str) -> bool:
    """Whether it is another form of a provider and has its colour."""
    return name.endswith(("deterministic", "sm80"))


def is_dashed(line: Line) -> bool:
    return line.dashed or is_second(line.name)


def short(x: float) -> str:
    """512, 2k, 16k; other numbers as they are."""
    return f"{x / 1024:g}k" if x >= 1024 and x % 1024 == 0 else f"{x:g}"


def width_of(words: str, size: int) -> float:
    """About how wide the words are in Helvetica: capitals and m are wide, i and l are narrow."""
    narrow, wide = sum(c in " ,.:;'|filjtrI()" for c in words), sum(c.isupper() or c in "mw_" for c in words)
    return size * (0.55 * len(words) - 0.25 * narrow + 0.16 * wide)


def text(x: float, y: float, words: str, size: int = TICK, anchor: str = "start", more: str = "") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}"'
    return f"<text {place} {more}>{escape(words)}</text>"


def round_steps(low: float, high: float) -> list[float]:
    """Four to eight round numbers from below `low` to above `high`."""
    span = high - low or abs(high) or 1.0
    step = 10.0 ** math.floor(math.log10(span / 4))
    step = next(m * step for m in (1, 2, 2.5, 5, 10) if span / (m * step) <= 7)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(step * i, 10) for i in range(first, last + 1)]


class Axes:
    """Where a value is in a panel: x on powers of two, y linear or on powers of ten."""

    def __init__(
        self, lines: tuple[Line, ...], log_y: bool, reference: float | None, like: tuple[Line, ...] = ()
    ) -> None:
        """`like`: the lines whose y axis this shall be, if not its own."""
        self.xs = sorted({p.x for line in lines for p in line.points})
        points = [p for line in like or lines for p in line.points]
        low, high = min(p.y - p.spread for p in points), max(p.y + p.spread for p in points)
        if reference is not None:
            low, high = min(low, reference), max(high, reference)
        self.log_y = log_y
        if log_y:
            self.steps = [2.0**e for e in range(math.floor(math.log2(low)), math.ceil(math.log2(high)) + 1)]
            self.steps = self.steps[:: max(1, len(self.steps) // 7)]
        else:
            self.steps = round_steps(low if reference is not None else 0.0, high)

    def x(self, value: float) -> float:
        span = math.log2(self.xs[-1] / self.xs[0])
        share = math.log2(value / self.xs[0]) / span if span else 0.5
        return 14 + (PANEL_WIDTH - 28) * share

    def y(self, value: float) -> float:
        low, high = self.steps[0], self.steps[-1]
        span = math.log(high / low) if self.log_y else high - low
        share = (math.log(value / low) if self.log_y else value - low) / span if span else 0.5
        return PANEL_HEIGHT * (1 - share)

    def x_ticks(self) -> list[float]:
        if len(self.xs) <= 8:
            kept = [self.xs[0]]
            for x in self.xs[1:]:
                if self.x(x) - self.x(kept[-1]) > 32:
                    kept.append(x)
            return kept
        return [
            2.0**e for e in range(math.ceil(math.log2(self.xs[0])), math.floor(math.log2(self.xs[-1])) + 1)
        ][:: max(1, int(math.log2(self.xs[-1] / self.xs[0])) // 6)]


def draw_panel(
    panel: Panel, names: list[str], log_y: bool, reference: float | None, like: tuple[Line, ...]
) -> list[str]:
    axes = Axes(panel.lines, log_y, reference, like)
    parts = [text(0, -12, panel.title, LABEL, more='font-weight="bold"')]
    for step in axes.steps:
        y = axes.y(step)
        parts.append(f'<path d="M0 {y:.1f}H{PANEL_WIDTH}" stroke="#e3e3e3"/>')
        parts.append(text(-7, y + 4, f"{step:g}", TICK, "end"))
    for tick in axes.x_ticks():
        x = axes.x(tick)
        parts.append(f'<path d="M{x:.1f} {PANEL_HEIGHT}v5" stroke="#777777"/>')
        parts.append(text(x, PANEL_HEIGHT + 20, short(tick), TICK, "middle"))
    parts.append(f'<path d="M0 {PANEL_HEIGHT}H{PANEL_WIDTH}" stroke="#777777"/>')
    if reference is not None:
        y = axes.y(reference)
        parts.append(f'<path d="M0 {y:.1f}H{PANEL_WIDTH}" stroke="#222222" stroke-width="1.5"/>')
    for line in sorted(panel.lines, key=lambda line: line.name == "flash"):  # ours on top
        colour = colour_of(line.name, names)
        points = sorted(line.points, key=lambda p: p.x)
        path = " ".join(
            f"{'L' if i else 'M'}{axes.x(p.x):.1f} {axes.y(p.y):.1f}" for i, p in enumerate(points)
        )
        dash = ' stroke-dasharray="6 4"' if is_dashed(line) else ""
        width = 3 if line.name == "flash" else 2
        if line.joined:
            parts.append(f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="{width}"{dash}/>')
        for p in points if line.dots else ():
            x, y = axes.x(p.x), axes.y(p.y)
            if p.spread and not log_y:
                ends = f"M{x:.1f} {axes.y(p.y - p.spread):.1f}V{axes.y(p.y + p.spread):.1f}"
                parts.append(f'<path d="{ends}" stroke="{colour}" stroke-width="1.5"/>')
            fill = "white" if is_dashed(line) else colour
            paint = f'fill="{fill}" stroke="{colour}" stroke-width="1.5"'
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.4" {paint}/>')
    return parts


def frame(width: float, height: float, title: str, note: str, parts: list[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'width="{width:.0f}" height="{height:.0f}" font-family="Helvetica, Arial, sans-serif">'
    )
    back = f'<rect width="{width:.0f}" height="{height:.0f}" fill="white"/>'
    titles = [
        text(24, 34, title, TITLE, more='font-weight="bold"'),
        text(24, 56, note, TICK, more='fill="#555555"'),
    ]
    return "\n".join([head, back, *titles, *parts, "</svg>", ""])


def draw_panels(
    title: str,
    note: str,
    rows: list[list[Panel]],
    x_label: str,
    y_label: str,
    *,
    log_y: bool = False,
    reference: float | None = None,
    same_y: bool = False,
) -> str:
    """Panels in rows under one legend; every panel has its own y axis, so that none is flattened, or, with
    same_y, all have the same, so that they can be compared.
    """
    names = list(dict.fromkeys(line.name for row in rows for panel in row for line in panel.lines))
    dashed = {line.name for row in rows for panel in row for line in panel.lines if is_dashed(line)}
    like = tuple(line for row in rows for panel in row for line in panel.lines) if same_y else ()
    unjoined = {line.name for row in rows for panel in row for line in panel.lines if not line.joined}
    columns = max(len(row) for row in rows)
    width = max(LEFT + columns * (PANEL_WIDTH + GAP) - GAP + RIGHT, 24 + width_of(title, TITLE) + 24, 620)
    parts, x, y = [], 24.0, 86.0
    for name in names:
        needed = 56 + width_of(shown(name), LEGEND)
        if x + needed > width - 10:
            x, y = 24.0, y + LEGEND_LINE
        dash = ' stroke-dasharray="6 4"' if name in dashed else ""
        colour = colour_of(name, names)
        if name in unjoined:
            fill = "white" if name in dashed else colour
            mark = f'<circle cx="{x + 16:.0f}" cy="{y - 5:.0f}" r="5" fill="{fill}" stroke="{colour}" '
            parts.append(f'{mark}stroke-width="2"/>')
        else:
            parts.append(f'<path d="M{x:.0f} {y - 5:.0f}h24" stroke="{colour}" stroke-width="3"{dash}/>')
        parts.append(text(x + 30, y, shown(name), LEGEND))
        x += needed
    top = y + 48
    for i, row in enumerate(rows):
        for j, panel in enumerate(row):
            left = LEFT + j * (PANEL_WIDTH + GAP)
            down = top + i * ROW_HEIGHT
            parts.append(f'<g transform="translate({left} {down:.0f})">')
            parts += draw_panel(panel, names, log_y, reference, like)
            if i == len(rows) - 1:
                parts.append(text(PANEL_WIDTH / 2, PANEL_HEIGHT + 42, x_label, LABEL, "middle"))
            if j == 0:
                turned = f'transform="rotate(-90 -54 {PANEL_HEIGHT / 2})"'
                parts.append(text(-54, PANEL_HEIGHT / 2, y_label, LABEL, "middle", turned))
            parts.append("</g>")
    height = top + (len(rows) - 1) * ROW_HEIGHT + PANEL_HEIGHT + 58
    return frame(width, height, title, note, parts)


def draw_bars(title: str, note: str, bars: list[Bars], *, reference: float) -> str:
    """Horizontal bars with whiskers, and a line where the reference is."""
    steps = round_steps(0.0, max(max(bar.high for bar in bars), reference))
    names = list(dict.fromkeys(bar.provider for bar in bars))
    left, room, height = 300, 520, 32

    def px(value: float) -> float:
        return left + room * value / steps[-1]

    bottom = 80 + height * len(bars)
    parts = []
    for step in steps:
        parts.append(f'<path d="M{px(step):.1f} 76V{bottom}" stroke="#e3e3e3"/>')
        parts.append(text(px(step), bottom + 20, f"{step:g}", TICK, "middle"))
    for i, bar in enumerate(bars):
        y = 80 + height * i
        colour = colour_of(bar.provider, names)
        parts.append(text(left - 10, y + 17, bar.label, LABEL, "end"))
        shape = f'x="{left}" y="{y + 4}" width="{px(bar.mean) - left:.1f}" height="{height - 10}"'
        paint = (
            'fill-opacity="0.2" stroke-dasharray="6 4"' if is_second(bar.provider) else 'fill-opacity="0.8"'
        )
        parts.append(f'<rect {shape} fill="{colour}" stroke="{colour}" {paint}/>')
        middle = y + height / 2 - 1
        parts.append(
            f'<path d="M{px(bar.low):.1f} {middle}H{px(bar.high):.1f}M{px(bar.low):.1f} {middle - 4}v8'
            f'M{px(bar.high):.1f} {middle - 4}v8" stroke="#222222" stroke-width="1.5" fill="none"/>'
        )
        words = f"{bar.mean:.2f}  ({bar.low:.2f} to {bar.high:.2f}, {bar.count} problems)"
        parts.append(text(left + room + 14, y + 17, words, LABEL))
    parts.append(f'<path d="M{px(reference):.1f} 70V{bottom}" stroke="#222222" stroke-width="1.5"/>')
    return frame(left + room + 270, bottom + 40, title, note, parts)
