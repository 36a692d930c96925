# SPDX-License-Identifier: Apache-2.0
"""The table of small calls shows what the results say, for every op and its peers."""

from __future__ import annotations

import json
from pathlib import Path

from generated_page import assert_current

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results" / "small_calls.jsonl"


def test_table_is_what_the_results_say(tmp_path: Path) -> None:
    assert_current("small_calls_numbers.py", tmp_path)


def test_the_last_run_of_every_op_has_both_directions_and_modes() -> None:
    lines = [json.loads(line) for line in RESULTS.read_text().splitlines()]
    last = {line["case"]["op"]: line["run"] for line in lines}
    cases = [line["case"] for line in lines if line["run"] == last[line["case"]["op"]]]
    for op in ("layer_norm_gelu", "heavy_layer", "attention", "decode"):
        found = {(c["direction"], c["mode"], c["n"]) for c in cases if c["op"] == op}
        directions = ("forward",) if op == "decode" else ("forward", "both")
        assert found == {
            (d, mode, n) for d in directions for mode in ("stream", "graph") for n in (1, 4, 16, 64, 256)
        }, op
