# SPDX-License-Identifier: Apache-2.0
"""profiling-lab ranges"""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from builders import TraceBuilder

from profiling_lab.cli import main


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    builder = TraceBuilder()
    for number in range(2):
        begin = builder.now_ns
        builder.launch("gemm", 2000, stack="/app/model.py:5 Net.forward")
        builder.range("forward", begin, builder.now_ns - 1).gap(1000)
        builder.range(f"step {number}", begin, builder.now_ns - 1)
    return builder.write(tmp_path / "run.sqlite")


def test_table(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ranges", str(recording), "--limit", "2"]) == 0
    out, err = capsys.readouterr()
    lines = [line.strip() for line in out.splitlines()]
    at = next(i for i, line in enumerate(lines) if line.startswith("forward"))
    assert lines[at].split()[1:5] == ["4.000", "4.000", "2", "9.998"]
    assert lines[at + 1] == "100.0 % /app/model.py:5 Net.forward"
    assert lines[-1] == "2 of 3 rows; --limit 0 shows all" and err == ""


def test_tree(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["ranges", str(recording), "--tree", "--merge-numbers", "--lines", "0"])
    lines = capsys.readouterr().out.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("step *"))
    assert lines[at + 1].startswith("  forward")


def test_json(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["ranges", str(recording), "--format", "json"])
    envelope = json.loads(capsys.readouterr().out)
    assert envelope["trace"]["ranges"] == 4 and envelope["trace"]["domains"] == []
    rows = {row["key"]: row for row in envelope["data"]["rows"]}
    forward = rows["forward (push/pop)"]
    assert (forward["host_count"], forward["projected_count"], forward["busy_ns"]) == (2, 2, 4000)
    assert forward["projected_median_ns"] == 2000 and forward["file"] == "/app/model.py"
    assert set(rows) == {"forward (push/pop)", "step 0 (push/pop)", "step 1 (push/pop)"}


def test_other_forms(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["ranges", str(recording), "--format", "csv", "--tree"])
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["level"] for row in rows] == ["0", "1", "0", "1"]
    main(["ranges", str(recording), "--format", "md"])
    assert "| forward" in capsys.readouterr().out


def test_window_and_exit_codes(recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ranges", str(recording), "--nvtx", "step 0"]) == 0
    assert "step 1" not in capsys.readouterr().out
    assert main(["ranges", str(recording), "--nvtx", "epoch"]) == 3
    assert main(["ranges", str(TraceBuilder().launch("a", 1).write(tmp_path / "none.sqlite"))]) == 3
    assert "holds no range" in capsys.readouterr().err
