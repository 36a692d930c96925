# SPDX-License-Identifier: Apache-2.0
"""The page of the demo before and after shows what the results and the recordings say, and claims no more."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import pytest
from generated_page import assert_current

REPO = Path(__file__).resolve().parents[2]
FOLDER = REPO / "docs" / "fast_ops"
PAGE = (REPO / "docs" / "fast_ops.md").read_text()
RESULTS = REPO / "benchmarks" / "results" / "train_fast_ops.jsonl"


def newest() -> dict[tuple[str, str, str, str], float]:
    """The last value of each metric of a whole case."""
    lines = [json.loads(line) for line in RESULTS.read_text().splitlines()]
    return {
        (line["case"]["model"], line["case"]["dtype"], line["provider"], line["metric"]): line["value"]
        for line in lines
        if line["metric"] != "loss"
    }


def test_page_and_picture_are_what_results_and_recordings_say(tmp_path: Path) -> None:
    assert_current("fast_ops_page.py", tmp_path)


def test_the_curve_is_the_same_within_the_noise_of_seeds_and_a_step_takes_less_time() -> None:
    found = newest()
    cases = {key[:2] for key in found}
    assert cases == {("demo", "fp32"), ("demo", "bf16"), ("demo with hidden_norm", "bf16")}
    for model, dtype in cases:
        changed = found[model, dtype, "after", "distance_to_before"]
        assert changed < found[model, dtype, "before", "distance_of_seeds"]
        assert found[model, dtype, "after", "step_time"] < found[model, dtype, "before", "step_time"]


def test_curves_of_two_seeds_of_each_case() -> None:
    lines = [json.loads(line) for line in RESULTS.read_text().splitlines()]
    curves = {
        (line["case"]["model"], line["case"]["dtype"], line["provider"], line["case"]["seed"])
        for line in lines
        if line["metric"] == "loss"
    }
    assert curves == {(*case[:2], p, s) for case in newest() for p in ("before", "after") for s in (0, 1)}


def test_heavy_layer_is_faster_than_its_formula_and_mostly_its_products() -> None:
    found: dict[tuple[int, str, str], dict[tuple[str, str], float]] = {}
    for line in map(json.loads, (RESULTS.parent / "heavy_layer.jsonl").read_text().splitlines()):
        case = line["case"]
        values = found.setdefault((case["rows"], case["dtype"], case["direction"]), {})
        values[line["provider"], line["metric"]] = line["value"]
    shapes, dtypes = (4096, 8192), ("bfloat16", "float16", "tf32")
    for rows, dtype, direction in itertools.product(shapes, dtypes, ("forward", "backward")):
        values = found[rows, dtype, direction]
        for peer in ("eager", "compile default"):
            assert values["fast", "time"] < values[peer, "time"], (rows, dtype, direction, peer)
        if (rows, direction) != (4096, "backward"):
            assert values["fast", "share_of_products"] >= 0.95


@pytest.mark.parametrize("name", ["before", "after"])
def test_the_page_links_each_recording_and_shows_its_heavy_line(name: str) -> None:
    (path,) = FOLDER.glob(f"{name}_*.sqlite")
    assert f"(fast_ops/{path.name})" in PAGE
    (shown,) = re.findall(rf"\$ profiling-lab lines {name}\.sqlite.*?```", PAGE, re.DOTALL)
    assert "model.py" in shown


@pytest.mark.parametrize("name", ["before", "after"])
def test_recordings_are_small_and_reveal_nothing_about_their_machine(name: str) -> None:
    (path,) = FOLDER.glob(f"{name}_*.sqlite")
    content = path.read_bytes()
    assert len(content) < 750_000
    for word in (b"/tmp/", b"/root/", b"/home/", b"/opt/"):
        assert word not in content


def test_links_lead_somewhere() -> None:
    targets = re.findall(r"\]\(([^)]+)\)", PAGE)
    assert targets
    for target in targets:
        assert (REPO / "docs" / target).exists(), target
