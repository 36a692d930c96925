# SPDX-License-Identifier: Apache-2.0
"""profiling-lab steps"""

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
    for _ in range(3):
        begin = builder.now_ns
        builder.launch("gemm", 3000).copy("HtoD", 1000).gap(20_000)
        builder.range("training_step", begin, builder.now_ns)
    return builder.write(tmp_path / "run.sqlite")


def test_table(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["steps", str(recording), "--limit", "2"]) == 0
    out, err = capsys.readouterr()
    assert "steps: ranges named like a step (training_step); 3 steps, median" in out
    assert "training_step #1" in out and "2 of 3 rows" in out and err == ""
    assert "process" not in out, "one process on one GPU needs no column"


def test_json_sums_to_the_wall(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["steps", str(recording), "--format", "json"])
    envelope = json.loads(capsys.readouterr().out)
    assert envelope["trace"]["steps_by"] == "range" and envelope["trace"]["steps"] == 3
    for row in envelope["data"]["rows"]:
        parts = row["compute_ns"] + row["communication_ns"] + row["copy_ns"] + row["idle_ns"]
        assert parts == row["wall_ns"] == row["end_ns"] - row["start_ns"]
    assert len({row["key"] for row in envelope["data"]["rows"]}) == 3


def test_other_forms(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["steps", str(recording), "--format", "csv"])
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["compute_ns"] for row in rows] == ["3000"] * 3
    main(["steps", str(recording), "--format", "md"])
    assert "| training\\_step #1 |" in capsys.readouterr().out


@pytest.mark.parametrize(("pattern", "status"), [("(", 2), ("no such range", 3)])
def test_wrong_ranges(recording: Path, capsys: pytest.CaptureFixture[str], pattern: str, status: int) -> None:
    assert main(["steps", str(recording), "--steps-by", pattern]) == status
    assert capsys.readouterr().err.startswith("profiling-lab steps: ")


def test_a_trace_without_operations(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = TraceBuilder().call("cudaMalloc").write(tmp_path / "run.sqlite")
    assert main(["steps", str(path)]) == 3
    assert "holds no GPU operation" in capsys.readouterr().err


def test_host(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["steps", str(recording), "--host"]) == 0
    out = capsys.readouterr().out
    assert "data loading" in out and "in a CUDA call (runtime)" in out
    main(["steps", str(recording), "--host", "--format", "json"])
    for row in json.loads(capsys.readouterr().out)["data"]["rows"]:
        host_ns = [row[f"{part}_ns"] for part in ("runtime", "data_loading", "in_ranges", "other")]
        assert sum(host_ns) == row["idle_ns"] and row["memcpy_ns"] + row["memset_ns"] == row["copy_ns"]
    main(["steps", str(recording), "--host", "--format", "csv"])
    assert "in_ranges_ns" in capsys.readouterr().out.splitlines()[0]
