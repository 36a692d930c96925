# SPDX-License-Identifier: Apache-2.0
"""The page of the demo before and after shows what the results say, and claims no more."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from package_root import PACKAGE_ROOT

REPO = Path(__file__).resolve().parents[2]
PAGE = (REPO / "docs" / "fast_ops.md").read_text()
RESULTS = REPO / "benchmarks" / "results" / "train_fast_ops.jsonl"


def newest() -> dict[tuple[str, str, str, str], float]:
    lines = [json.loads(line) for line in RESULTS.read_text().splitlines()]
    return {
        (line["case"]["model"], line["case"]["dtype"], line["provider"], line["metric"]): line["value"]
        for line in lines
        if line["run"] == lines[-1]["run"] and line["metric"] != "loss"
    }


def test_page_and_picture_are_what_the_results_say(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(REPO / "docs" / "fast_ops_page.py"), "--check"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(PACKAGE_ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"run python docs/fast_ops_page.py; not current: {done.stderr}"


def test_the_curve_is_the_same_within_the_noise_of_seeds_and_a_step_takes_less_time() -> None:
    found = newest()
    cases = {key[:2] for key in found}
    assert cases == {("demo", "fp32"), ("demo", "bf16")}
    for model, dtype in cases:
        changed = found[model, dtype, "after", "distance_to_before"]
        assert changed < found[model, dtype, "before", "distance_of_seeds"]
        assert found[model, dtype, "after", "step_time"] < found[model, dtype, "before", "step_time"]


def test_links_lead_somewhere() -> None:
    targets = re.findall(r"\]\(([^)]+)\)", PAGE)
    assert targets
    for target in targets:
        assert (REPO / "docs" / target).exists(), target
