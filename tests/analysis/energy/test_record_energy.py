# SPDX-License-Identifier: Apache-2.0
"""What tools/energy/record_energy.py concludes from a recording; a GPU is not needed for that."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from made_traces.energy import Phase, recording, simulate

REPO = Path(__file__).resolve().parents[3]
PHASES = [Phase(1, 650, 90_000_000), Phase(2, 350, 60_000_000, 10_000_000), Phase(3, 220, 70_000_000)]


def test_bars_and_totals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(REPO / "tools" / "energy"))
    import record_energy

    run = simulate(PHASES, 26, 5)
    path = recording(run).write(tmp_path / "run.sqlite")
    busy_s = [(run.end_ns - run.start_ns)[run.line == line].sum() * 1e-9 for line in (1, 2, 3)]
    known = {f"part{line}": run.joules[line] / busy_s[line - 1] for line in (1, 2, 3)}
    found = record_energy.judged(path, known, 12.0, 2)
    assert [len(each["rows"]) for each in found] == [3, 3]
    assert all(row["holds"] for each in found for row in each["rows"])
    wrong = record_energy.judged(path, {name: 2 * watts for name, watts in known.items()}, 12.0, 2)
    assert not any(row["holds"] for each in wrong for row in each["rows"])
    of_steps, of_counter = record_energy.total_is_right(path)
    assert of_steps == pytest.approx(of_counter, rel=0.01)


def test_without_a_gpu_it_says_so(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(REPO / "tools" / "energy" / "record_energy.py"), "--out", str(tmp_path)],
        capture_output=True, text=True, check=False,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(REPO)},
    )  # fmt: skip
    assert done.returncode == 2 and "this needs a GPU" in done.stderr
