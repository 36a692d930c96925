# SPDX-License-Identifier: Apache-2.0
"""Write the figures in docs/notebook/small_calls.md from benchmarks/results: none is typed by hand.

python tools/small_calls_numbers.py            # rewrites the block between the marks
python tools/small_calls_numbers.py --check    # exit code 1 if the block is not what the results say
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[1]
RESULTS = REPO / "benchmarks" / "results" / "small_calls.jsonl"
PAGE = REPO / "docs" / "notebook" / "small_calls.md"
BEGIN, END = "<!-- figures: tools/small_calls_numbers.py -->", "<!-- end of figures -->"

DIRECTIONS = {"forward": "forward", "both": "forward and backward"}

Line = dict[str, Any]
Case = tuple[str, str, str, int]
"""Op, direction, mode and n."""


def newest() -> dict[str, list[Line]]:
    """By op the lines of the last run that timed its calls on the GPU machine."""
    lines = [json.loads(line) for line in RESULTS.read_text().splitlines()]
    lines = [line for line in lines if line["case"]["mode"] != "host"]
    last = {line["case"]["op"]: line["run"] for line in lines}
    return {op: [n for n in lines if n["case"]["op"] == op and n["run"] == run] for op, run in last.items()}


def microseconds(lines: list[Line], metric: str) -> dict[Case, dict[str, float]]:
    found: dict[Case, dict[str, float]] = {}
    for line in lines:
        if line["metric"] == metric:
            case = line["case"]
            at = found.setdefault((case["op"], case["direction"], case["mode"], case["n"]), {})
            at[line["provider"]] = line["value"] / (1e3 if line["unit"] == "ns" else 1)
    return found


def figures() -> list[str]:
    out = [
        "Microseconds a call, median and in brackets the interquartile range; bf16. In a loop the host "
        "decides, in a CUDA graph the kernels do. Last column: ours over the quickest peer, the median of "
        "the rounds."
    ]
    for op, lines in newest().items():
        one = lines[0]
        times, spread = microseconds(lines, "time"), microseconds(lines, "time_iqr")
        ratios = microseconds(lines, "over_best_peer")
        peers = list(dict.fromkeys(who for found in times.values() for who in found))
        out += [
            "",
            f"{one['gpu']}, driver {one['driver']}, torch {one['torch']}, {one['date'][:10]}, commit "
            f"{one['git'][:7]} ([lines](../../benchmarks/results/small_calls.jsonl)):",
            "",
            "| " + " | ".join([f"`{op}`", *peers, "over best"]) + " |",
            "|" + " --- |" * (len(peers) + 2),
        ]
        for case, found in times.items():
            where = {"stream": "in a loop", "graph": "in a graph"}[case[2]]
            cells = [f"{found[who]:.1f} ({spread[case][who]:.1f})" if who in found else "-" for who in peers]
            label = f"n = {case[3]}, {DIRECTIONS[case[1]]}, {where}"
            out += ["| " + " | ".join([label, *cells, f"{ratios[case]['ours']:.2f}"]) + " |"]
    return out


def main() -> int:
    text = PAGE.read_text()
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    new = "\n".join([before + BEGIN, *figures(), END]) + after
    if "--check" in sys.argv[1:]:
        return int(new != text)
    PAGE.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main())
