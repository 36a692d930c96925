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


def newest() -> list[Line]:
    """The lines of the last run that timed the GPU machine's calls."""
    lines = [json.loads(line) for line in RESULTS.read_text().splitlines()]
    lines = [line for line in lines if line["case"]["mode"] != "host"]
    return [line for line in lines if line["run"] == lines[-1]["run"]]


def microseconds(lines: list[Line], metric: str) -> dict[Case, dict[str, float]]:
    found: dict[Case, dict[str, float]] = {}
    for line in lines:
        if line["metric"] == metric:
            case = line["case"]
            at = found.setdefault((case["op"], case["direction"], case["mode"], case["n"]), {})
            at[line["provider"]] = line["value"] / (1e3 if line["unit"] == "ns" else 1)
    return found


def figures() -> list[str]:
    lines = newest()
    one = lines[0]
    times, spread = microseconds(lines, "time"), microseconds(lines, "time_iqr")
    ratios = microseconds(lines, "over_best_peer")
    out = [
        f"Microseconds a call, median and in brackets the interquartile range; bf16; {one['gpu']}, driver "
        f"{one['driver']}, torch {one['torch']}, {one['date'][:10]}, commit {one['git'][:7]} "
        "([lines](../../benchmarks/results/small_calls.jsonl)). In a loop the host decides, in a CUDA graph "
        "the kernels do. Last column: ours over the quickest peer, the median of the rounds.",
    ]
    for op in dict.fromkeys(case[0] for case in times):
        peers = list(dict.fromkeys(who for case, found in times.items() if case[0] == op for who in found))
        out += ["", "| " + " | ".join([f"`{op}`", *peers, "over best"]) + " |"]
        out += ["|" + " --- |" * (len(peers) + 2)]
        for case, found in times.items():
            if case[0] != op:
                continue
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
