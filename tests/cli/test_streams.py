# SPDX-License-Identifier: Apache-2.0
"""profiling-lab streams"""

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
    builder = TraceBuilder().launch("gemm", 9000, stack="/app/model.py:5 Net.forward")
    builder.copy("HtoD", 4000, stream=9, stack="/app/train.py:3 main").launch("relu", 50, device=1)
    return builder.write(tmp_path / "run.sqlite")


def test_table(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["streams", str(recording), "--limit", "2"]) == 0
    out, err = capsys.readouterr()
    lines = [line.strip() for line in out.splitlines()]
    assert any(line.startswith("GPU 0 of pid 100: 2 streams in ") for line in lines)
    assert "100.0 % /app/model.py:5 Net.forward" in lines
    assert lines[-1] == "2 of 3 rows; --limit 0 shows all" and err == ""


def test_json(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["streams", str(recording), "--format", "json"])
    envelope = json.loads(capsys.readouterr().out)
    first, second = envelope["trace"]["devices"]
    assert sum(first["level_ns"]) == first["span_ns"] and second["streams"] == 1
    rows = {row["key"]: row for row in envelope["data"]["rows"]}
    assert rows["100/0/7"]["busy_ns"] == 9000 and rows["100/0/9"]["copies"] == 1
    assert rows["100/0/9"]["line"] == 3 and rows["100/0/7"]["priority"] is None


def test_other_forms(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["streams", str(recording), "--format", "csv"])
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["stream"] for row in rows] == ["7", "9", "7"]
    main(["streams", str(recording), "--format", "md"])
    assert "| stream |" in capsys.readouterr().out


def test_window_and_exit_codes(recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["streams", str(recording), "--device", "1"]) == 0
    assert "GPU 0" not in capsys.readouterr().out
    assert main(["streams", str(recording), "--device", "5"]) == 2
    assert main(["streams", str(TraceBuilder().call("cudaMalloc").write(tmp_path / "none.sqlite"))]) == 3
    assert "no GPU operation" in capsys.readouterr().err
