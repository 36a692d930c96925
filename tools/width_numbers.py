# SPDX-License-Identifier: Apache-2.0
"""layer_norm_gelu over the width of its rows, from benchmarks/results: the picture and tables of its page.

python tools/width_numbers.py            # rewrites docs/notebook/layer_norm_gelu_widths.svg and .md
python tools/width_numbers.py --check    # exit code 1 if they are not what the results say
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPO / "benchmarks"))
from svg_charts import Line, Panel, Point, draw_panels, short  # noqa: E402

RESULTS = REPO / "benchmarks" / "results" / "layer_norm_gelu_widths.jsonl"
LIMITS = RESULTS.with_name("layer_norm_gelu_limits.jsonl")
PAGE = REPO / "docs" / "notebook" / "layer_norm_gelu_widths.md"
PICTURE = PAGE.with_suffix(".svg")
BEGIN, END = "<!-- figures: tools/width_numbers.py -->", "<!-- end of figures -->"
BEGIN_LIMITS = "<!-- limits: tools/width_numbers.py -->"
BEGIN_CHANGE = "<!-- before and after: tools/width_numbers.py -->"
ALL_WIDTHS, CHANGE = "NVIDIA H200", "NVIDIA H100 80GB HBM3"
"""The GPU on which all widths were measured, and the one with the kernels of before next to those of now."""

LEAST_SHARE = 0.1

GOALS = {
    ("forward", True): 0.85, ("backward", True): 0.80, ("forward", False): 0.70, ("backward", False): 0.60
}  # fmt: skip
"""By direction, and whether d is a multiple of 8."""

Shares = dict[str, dict[int, float]]
"""By provider and width."""


def read(gpu: str) -> tuple[dict[str, str], dict[tuple[str, str], Shares]]:
    """The machine, and the last share of the copy rate of each case, by dtype and direction."""
    found: dict[tuple[str, str], Shares] = defaultdict(lambda: defaultdict(dict))
    facts: dict[str, str] = {}
    for text in RESULTS.read_text().splitlines():
        line = json.loads(text)
        if line["metric"] == "share_of_copy" and line["gpu"] == gpu:
            case = line["case"]
            found[case["dtype"], case["direction"]][line["provider"]][case["d"]] = line["value"]
            facts = {key: line[key] for key in ("gpu", "driver", "torch", "date", "git")}
    return facts, found


def best_peer(shares: Shares) -> dict[int, float]:
    widths = {d for name, of in shares.items() if name != "ours" for d in of}
    return {d: max(of[d] for name, of in shares.items() if name != "ours" and d in of) for d in widths}


def line_of(name: str, shares: dict[int, float], dashed: bool = False) -> Line:
    return Line(name, tuple(Point(d, share) for d, share in sorted(shares.items())), dashed=dashed)


def picture(found: dict[tuple[str, str], Shares], facts: dict[str, str]) -> str:
    rows = []
    for direction in ("forward", "backward"):
        row = []
        for dtype in dict.fromkeys(dtype for dtype, _ in found):
            ours = found[dtype, direction]["ours"]
            lines = (
                line_of("ours, d a multiple of 8", {d: s for d, s in ours.items() if d % 8 == 0}),
                line_of("ours, other d", {d: s for d, s in ours.items() if d % 8}, dashed=True),
                line_of("best peer", best_peer(found[dtype, direction])),
            )
            row.append(Panel(f"{direction}, {dtype}", tuple(line for line in lines if line.points)))
        rows.append(row)
    machine = f"{facts['gpu']}, torch {facts['torch']}, {facts['date'][:10]}"
    note = f"2^27 elements, peers 2^28, {machine}; 1 is a copy's rate"
    title = "layer_norm_gelu over the width d of a row"
    return draw_panels(title, note, rows, "d", "share of the copy rate", reference=1.0, same_y=True)


def worst(shares: dict[int, float]) -> str:
    d = min(shares, key=lambda width: shares[width])
    return f"{shares[d]:.2f} (d = {short(d)})"


def names(widths: list[int], shares: dict[int, float]) -> str:
    return ", ".join(f"{short(d)} ({shares[d]:.2f})" for d in sorted(widths)) or "none"


def machine(facts: dict[str, str], results: Path = RESULTS) -> str:
    return (
        f"{facts['gpu']}, driver {facts['driver']}, torch {facts['torch']}, {facts['date'][:10]}, commit "
        f"{facts['git'][:7]} ([lines](../../benchmarks/results/{results.name})):"
    )


def figures() -> list[str]:
    facts, found = read(ALL_WIDTHS)
    out = [
        machine(facts),
        "",
        "| | widths | least share | goal | below the goal | below the best peer |",
        "|" + " --- |" * 6,
    ]
    for (dtype, direction), shares in found.items():
        peers = best_peer(shares)
        for aligned in (True, False):
            ours = {d: s for d, s in shares["ours"].items() if (d % 8 == 0) == aligned}
            if not ours:
                continue
            goal = GOALS[direction, aligned]
            missed = [d for d, share in ours.items() if share < goal]
            behind = [d for d, share in ours.items() if share < peers.get(d, 0.0)]
            what = f"{direction}, {dtype}, {'d a multiple of 8' if aligned else 'other d'}"
            cells = [what, str(len(ours)), worst(ours), f"{goal:.2f}", names(missed, ours)]
            out.append("| " + " | ".join([*cells, names(behind, peers)]) + " |")
    return out


def change() -> list[str]:
    facts, found = read(CHANGE)
    providers = ("before", "ours", "eager")
    sides = [found["bfloat16", direction] for direction in ("forward", "backward")]
    out = [
        machine(facts),
        "",
        "| d | forward: before | then | eager | backward: before | then | eager |",
        "|" + " --- |" * 7,
    ]
    for d in sorted(sides[0]["ours"]):
        cells = [f"{shares[provider][d]:.3f}" for shares in sides for provider in providers]
        out.append("| " + " | ".join([str(d), *cells]) + " |")
    return out


def limits() -> list[str]:
    """Of each kernel of LEAST_SHARE of its pass and more."""
    kernels: dict[tuple[str, int, str, str], dict[str, float]] = defaultdict(dict)
    for text in LIMITS.read_text().splitlines():
        facts = json.loads(text)
        case = facts["case"]
        direction = "forward" if "forward" in case["kernel"] else "backward"
        kernels[case["dtype"], case["d"], direction, case["kernel"]][facts["metric"]] = facts["value"]
    passes: dict[tuple[str, int, str], float] = defaultdict(float)
    for (*which, _), values in kernels.items():
        passes[which[0], which[1], which[2]] += values["time"]
    columns = ("memory", "issue", "loads_and_stores", "instructions")
    out = [
        machine(facts, LIMITS),
        "",
        "| | kernel | time | memory | issue | loads and stores | instructions for an element |",
        "|" + " --- |" * 7,
    ]
    for (dtype, d, direction, kernel), values in kernels.items():
        if values["time"] < LEAST_SHARE * passes[dtype, d, direction]:
            continue
        shares = [f"{values[column]:.0f} %" for column in columns[:-1]]
        cells = [f"{direction}, {dtype}, d = {d}", f"`{kernel}`", f"{values['time'] / 1e3:.0f} us", *shares]
        out.append("| " + " | ".join([*cells, f"{values[columns[-1]]:.0f}"]) + " |")
    return out


def with_lines(page: str, begin: str, lines: list[str]) -> str:
    """The page with what is between `begin` and the next END replaced."""
    before, rest = page.split(begin)
    return "\n".join([before + begin, *lines, END]) + rest.split(END, 1)[1]


def main() -> int:
    facts, found = read(ALL_WIDTHS)
    text, drawn = PAGE.read_text(), picture(found, facts)
    new = with_lines(with_lines(text, BEGIN, figures()), BEGIN_CHANGE, change())
    new = with_lines(new, BEGIN_LIMITS, limits())
    if "--check" in sys.argv[1:]:
        return int(new != text or drawn != PICTURE.read_text())
    PAGE.write_text(new)
    PICTURE.write_text(drawn)
    return 0


if __name__ == "__main__":
    sys.exit(main())
