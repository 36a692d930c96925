# SPDX-License-Identifier: Apache-2.0
"""Charts of what benchmark_attention.py measured: rates, speed over a baseline, a summary, and the roofline.

    python benchmarks/visualize_results.py --input benchmark_results.json --output-dir plots/

Writes SVG files, which every browser and slide program opens; needs only Python. Results of different
runs are not comparable, so one run of the input is drawn, by default the last.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from svg_charts import Bars, Line, Panel, Point, draw_bars, draw_panels, shown

H200_TFLOPS, H200_TB_PER_S = 989.0, 4.8
"""Dense bf16 peak and memory bandwidth of an H200, from its data sheet."""

Key = tuple[object, ...]


@dataclass(slots=True)
class Run:
    """The rates of one run with their spread, and the GEMM timed with them."""

    rows: list[dict[str, Any]]
    spread_frac: dict[Key, float] = field(default_factory=dict)
    matmul_tflops: float | None = None

    def spread(self, row: dict[str, Any]) -> float:
        return self.spread_frac.get(identity(row), 0.0)


def identity(row: dict[str, Any]) -> Key:
    return (row["provider"], *sorted(row["case"].items()))


def read(path: Path, wanted: str | None) -> Run | None:
    """A run of a JSON array or a file of JSON lines; None where it holds no rates of attention."""
    text = path.read_text()
    whole = text.lstrip().startswith("[")
    found = json.loads(text) if whole else [json.loads(line) for line in text.splitlines()]
    found = [row for row in found if row["benchmark"] == "attention"]
    rates = [row for row in found if row["metric"] == "rate"]
    if not rates:
        return None
    chosen = wanted or rates[-1]["run"]
    found = [row for row in found if row["run"] == chosen]
    run = Run([row for row in found if row["metric"] == "rate"])
    times = {identity(row): row["value"] for row in found if row["metric"] == "time"}
    for row in found:
        if row["metric"] == "time_iqr" and times.get(identity(row)):
            run.spread_frac[identity(row)] = row["value"] / times[identity(row)]
        if row["metric"] == "matmul_rate":
            run.matmul_tflops = row["value"]
    return run if run.rows else None


def column_of(case: dict[str, Any]) -> Key:
    names = ("head_dim", "heads", "kv_heads", "dtype")
    return (*(case[name] for name in names), case.get("head_dim_v") or case["head_dim"])


def title_of(column: Key, causal: bool) -> str:
    dim, heads, kv_heads, dtype, dim_v = column
    text = f"head_dim {dim}" + (f" and {dim_v} of v" if dim_v != dim else "")
    text += f", {'causal' if causal else 'no mask'}"
    text += f", {heads} heads on {kv_heads}" if heads != kv_heads else f", {heads} heads"
    return text if dtype == "bfloat16" else f"{text}, {dtype}"


def panels(run: Run, direction: str, baseline: str | None) -> list[list[Panel]]:
    """A row of panels for each mask, a panel for each shape of heads: rates, or speeds over the baseline."""
    groups: dict[tuple[bool, Key], dict[str, dict[int, Point]]] = defaultdict(lambda: defaultdict(dict))
    for row in run.rows:
        case = row["case"]
        if case["direction"] == direction:
            point = Point(case["rows"], row["value"], run.spread(row) * row["value"] / 2)
            groups[case["causal"], column_of(case)][row["provider"]][case["rows"]] = point
    result = []
    for causal in (False, True):
        line_of_panels = []
        for mask, column in sorted(groups):
            if mask != causal:
                continue
            lines = groups[mask, column]
            if baseline is not None:
                base = lines.get(baseline, {})
                lines = {
                    name: {x: Point(x, p.y / base[x].y) for x, p in points.items() if x in base}
                    for name, points in lines.items()
                    if name != baseline
                }
            drawn = tuple(Line(name, tuple(points.values())) for name, points in lines.items() if points)
            if drawn:
                line_of_panels.append(Panel(title_of(column, causal), drawn))
        if line_of_panels:
            result.append(line_of_panels)
    return result


def summary(run: Run, baseline: str) -> list[Bars]:
    """The geometric mean of every provider's speed over the baseline, and the range, by direction."""
    base = {
        tuple(sorted(row["case"].items())): row["value"] for row in run.rows if row["provider"] == baseline
    }
    speeds: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in run.rows:
        below = base.get(tuple(sorted(row["case"].items())))
        if below and row["provider"] != baseline:
            speeds[row["case"]["direction"], row["provider"]].append(row["value"] / below)
    return [
        Bars(
            f"{shown(name)}: {direction}",
            math.exp(sum(map(math.log, s)) / len(s)),
            min(s),
            max(s),
            len(s),
            name,
        )
        for (direction, name), s in sorted(
            speeds.items(), key=lambda item: (item[0][0] != "forward", item[0])
        )
    ]


def intensity(case: dict[str, Any]) -> float:
    """Flops per byte if every tensor moved once: four of them forward, eight backward."""
    flops = 4 * case["rows"] * (0.5 if case["causal"] else 1.0)
    return flops / 8 if case["direction"] == "forward" else 2.5 * flops / 16


def roofline(run: Run) -> list[list[Panel]]:
    """Dots under two roofs, the data sheet's and the GEMM of the same run: a row of panels for each
    direction, a panel for each head_dim.
    """
    cases = [row["case"] for row in run.rows]
    ridge = H200_TFLOPS / H200_TB_PER_S
    ends = [intensity(case) for case in cases]
    left, right = min(*ends, ridge / 4), max(*ends, ridge * 4)
    roofs = [
        Line(
            "data sheet of an H200",
            tuple(Point(x, min(H200_TFLOPS, x * H200_TB_PER_S)) for x in (left, ridge, right)),
            dots=False,
        )
    ]
    if run.matmul_tflops is not None:
        flat = tuple(Point(x, run.matmul_tflops) for x in (run.matmul_tflops / H200_TB_PER_S, right))
        roofs.append(Line("matrix product 8192^3 of this run", flat, dots=False, dashed=True))
    result = []
    for direction in ("forward", "backward"):
        line_of_panels = []
        for dim in sorted({case["head_dim"] for case in cases if case["direction"] == direction}):
            dots: dict[str, list[Point]] = defaultdict(list)
            for row in run.rows:
                case = row["case"]
                if case["head_dim"] == dim and case["direction"] == direction:
                    dots[row["provider"]].append(Point(intensity(case), row["value"]))
            lines = [Line(name, tuple(points), joined=False) for name, points in dots.items()]
            line_of_panels.append(Panel(f"head_dim {dim}, {direction}", (*roofs, *lines)))
        if line_of_panels:
            result.append(line_of_panels)
    return result


def figures(run: Run, baseline: str) -> dict[str, str]:
    first = run.rows[0]
    base_note = f"{first['gpu']}, torch {first['torch']}, {first['date'][:10]}"
    note = f"{base_note}; medians, whiskers show half of the samples"
    found = {}
    for direction in ("forward", "backward"):
        if rates := panels(run, direction, None):
            found[f"rate_{direction}"] = draw_panels(
                f"Attention {direction}", note, rates, "rows of a sequence", "TFLOP/s", same_y=True
            )
        if speeds := panels(run, direction, baseline):
            found[f"speedup_{direction}"] = draw_panels(
                f"Attention {direction}: speed over {shown(baseline)}", base_note, speeds,
                "rows of a sequence", "times as fast", reference=1.0, same_y=True,
            )  # fmt: skip
    if bars := summary(run, baseline):
        title = f"Speed over {shown(baseline)}: geometric mean, and the range of all problems"
        found["summary"] = draw_bars(title, base_note, bars, reference=1.0)
    found["roofline"] = draw_panels(
        "Roofline",
        f"{base_note}; a dot per length, with and without a mask",
        roofline(run),
        "flop per byte of inputs and outputs",
        "TFLOP/s",
        log_y=True,
        same_y=True,
    )
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--input", type=Path, required=True)
    parser.add_argument("--output-dir", type=Path, default=Path("plots"))
    parser.add_argument("--baseline", default="sdpa-cudnn")
    parser.add_argument("--run", help="which run of the input (default: the last)")
    options = parser.parse_args()
    try:
        run = read(options.input, options.run)
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = f"{type(error).__name__}: {error}"
        print(f"{options.input} is no result of benchmark_attention.py: {reason}", file=sys.stderr)
        return 4
    if run is None:
        print(f"{options.input} has no rates of attention", file=sys.stderr)
        return 3
    options.output_dir.mkdir(parents=True, exist_ok=True)
    drawn = figures(run, options.baseline)
    for name, image in drawn.items():
        path = options.output_dir / f"{name}.svg"
        path.write_text(image)
        print(path)
    page = "".join(f'<p><img src="{escape(name)}.svg" alt="{escape(name)}"></p>\n' for name in drawn)
    (options.output_dir / "index.html").write_text(f"<!doctype html><title>Attention</title>\n{page}")
    print(options.output_dir / "index.html")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
