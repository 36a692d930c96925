# SPDX-License-Identifier: Apache-2.0
"""Charts of what benchmark_attention.py measured: rate, speed-up over a baseline, and the roofline.

    python benchmarks/visualize_results.py --input benchmark_results.json --output-dir plots/

Writes SVG files, which every browser and slide program opens; needs nothing but Python. Results of different
runs are not comparable, so only the last run of the input is drawn.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import defaultdict
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

COLOURS = ("#0b6e4f", "#1f4e9c", "#c2571a", "#7a3e9d", "#8a8a8a", "#b0343c", "#2a8f9e", "#5d6b1f")
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 860, 480, 78, 190, 56, 64
H200_TFLOPS, H200_TB_PER_S = 989.0, 4.8
"""Dense bf16 peak and memory bandwidth of an H200, from its data sheet."""

Points = list[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Chart:
    title: str
    x_label: str
    y_label: str
    lines: dict[str, Points]
    log_y: bool = False
    dots: bool = True


def nice_top(value: float) -> float:
    step = 10.0 ** math.floor(math.log10(value))
    return next(m * step for m in (1, 1.5, 2, 3, 4, 5, 6, 8, 10) if m * step >= value)


def draw(chart: Chart) -> str:
    """The chart as SVG: x on a logarithmic axis to base 2, one colour per line, the legend beside it."""
    xs = sorted({x for points in chart.lines.values() for x, _ in points})
    ys = [y for points in chart.lines.values() for _, y in points]
    low, high = (min(ys) * 0.8, max(ys) * 1.25) if chart.log_y else (0.0, nice_top(max(ys) * 1.02))

    def px(x: float) -> float:
        span = math.log2(xs[-1] / xs[0]) or 1.0
        return LEFT + (WIDTH - LEFT - RIGHT) * (math.log2(x / xs[0]) / span)

    def py(y: float) -> float:
        share = math.log(y / low) / math.log(high / low) if chart.log_y else (y - low) / (high - low)
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share

    ticks = [high * i / 5 for i in range(6)] if not chart.log_y else [
        10.0**e for e in range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)
    ]  # fmt: skip
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="30" font-size="19" font-weight="bold">{escape(chart.title)}</text>',
    ]
    for tick in ticks:
        y = py(tick)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#dddddd"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" font-size="13" text-anchor="end">{tick:g}</text>')
    for x in xs if len(xs) <= 12 else xs[:: len(xs) // 8]:
        parts.append(
            f'<text x="{px(x):.1f}" y="{HEIGHT - 42}" font-size="13" text-anchor="middle">{x:g}</text>'
        )
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(
        f'<text x="{middle}" y="{HEIGHT - 14}" font-size="14" text-anchor="middle">'
        f"{escape(chart.x_label)}</text>"
    )
    parts.append(f'<text x="{LEFT - 62}" y="{TOP - 8}" font-size="14">{escape(chart.y_label)}</text>')
    for i, (name, points) in enumerate(chart.lines.items()):
        colour = COLOURS[i % len(COLOURS)]
        path = " ".join(
            f"{'L' if j else 'M'}{px(x):.1f} {py(y):.1f}" for j, (x, y) in enumerate(sorted(points))
        )
        parts.append(f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="2.5"/>')
        if chart.dots:
            parts += [f'<circle cx="{px(x):.1f}" cy="{py(y):.1f}" r="4" fill="{colour}"/>' for x, y in points]
        y = TOP + 22 * i
        parts.append(f'<rect x="{WIDTH - RIGHT + 16}" y="{y}" width="14" height="14" fill="{colour}"/>')
        parts.append(f'<text x="{WIDTH - RIGHT + 36}" y="{y + 12}" font-size="14">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def read(path: Path) -> list[dict[str, Any]]:
    """The attention rates of the last run in a JSON array or a file of JSON lines."""
    text = path.read_text()
    rows = (
        json.loads(text)
        if text.lstrip().startswith("[")
        else [json.loads(line) for line in text.splitlines()]
    )
    rates = [row for row in rows if row["benchmark"] == "attention" and row["metric"] == "rate"]
    return [row for row in rates if row["run"] == rates[-1]["run"]]


def intensity(case: dict[str, Any]) -> float:
    """Flops per byte if every tensor moved once: four of them forward, eight backward."""
    flops = 4 * case["rows"] * (0.5 if case["causal"] else 1.0)
    return flops / 8 if case["direction"] == "forward" else 2.5 * flops / 16


def charts(rates: list[dict[str, Any]], baseline: str) -> dict[str, Chart]:
    groups: dict[tuple[Any, ...], dict[str, Points]] = defaultdict(lambda: defaultdict(list))
    roofline: dict[str, Points] = defaultdict(list)
    for row in rates:
        case = row["case"]
        key = (case["direction"], case["head_dim"], case["causal"])
        groups[key][row["provider"]].append((case["rows"], row["value"]))
        roofline[row["provider"]].append((intensity(case), row["value"]))
    found = {}
    for (direction, dim, causal), lines in groups.items():
        what = f"{direction}, head_dim {dim}, {'causal' if causal else 'no mask'}"
        name = f"{direction}_d{dim}_{'causal' if causal else 'full'}"
        found[f"rate_{name}"] = Chart(f"Attention {what}", "rows of a sequence", "TFLOP/s", dict(lines))
        base = dict(lines.get(baseline, []))
        ratios = {
            provider: [(x, y / base[x]) for x, y in points if x in base] for provider, points in lines.items()
        }
        if base:
            title = f"Speed relative to {baseline}: {what}"
            found[f"speedup_{name}"] = Chart(title, "rows of a sequence", "times as fast", ratios)
    ends = [x for points in roofline.values() for x, _ in points]
    ridge = H200_TFLOPS / H200_TB_PER_S
    corners = sorted({min(*ends, ridge / 2), ridge, max(*ends, 2 * ridge)})
    roof = {"roof of an H200": [(x, min(H200_TFLOPS, x * H200_TB_PER_S)) for x in corners]}
    best = {name: sorted(points) for name, points in roofline.items()}
    found["roofline"] = Chart(
        "Roofline", "flop per byte of input and output", "TFLOP/s", roof | best, log_y=True
    )
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--input", type=Path, required=True)
    parser.add_argument("--output-dir", type=Path, default=Path("plots"))
    parser.add_argument("--baseline", default="sdpa-cudnn")
    options = parser.parse_args()
    rates = read(options.input)
    if not rates:
        print(f"{options.input} has no rates of attention", file=sys.stderr)
        return 3
    options.output_dir.mkdir(parents=True, exist_ok=True)
    for name, chart in charts(rates, options.baseline).items():
        path = options.output_dir / f"{name}.svg"
        path.write_text(draw(chart))
        print(path)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
