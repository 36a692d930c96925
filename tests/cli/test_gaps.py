# SPDX-License-Identifier: Apache-2.0
"""profiling-lab gaps"""

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
    for i in range(3):
        begin = builder.now_ns
        builder.launch("gemm", 3000, stack="/app/train.py:7 main").gap(90_000)
        builder.launch("relu", 1000, stack="/app/train.py:9 main").call("cudaStreamSynchronize")
        builder.range(f"ProfilerStep#{i}", begin, builder.now_ns)
    return builder.write(tmp_path / "run.sqlite")


def test_table(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gaps", str(recording)]) == 0
    out, err = capsys.readouterr()
    assert "most of the time goes to idle" in out and "the host waited for the GPU 3 times" in out
    assert "before /app/train.py:9" in out and "after /app/train.py:7: " in out and err == ""
    assert "per step µs" in out


def test_json_sums_to_the_idle_time(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["gaps", str(recording), "--format", "json", "--limit", "0"])
    envelope = json.loads(capsys.readouterr().out)
    rows = envelope["data"]["rows"]
    assert sum(row["idle_ns"] for row in rows) == envelope["trace"]["idle_ns"]
    assert sum(envelope["trace"]["parts_ns"].values()) == envelope["trace"]["span_ns"]
    assert len({row["key"] for row in rows}) == len(rows)
    assert (rows[0]["cause"], rows[0]["line"], rows[0]["exact"]) == ("host code", 9, False)
    assert rows[0]["after"][0]["line"] == 7


def test_own_code_decides_the_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stack = "/app/train.py:7 main > /app/net.py:3 forward"
    builder = TraceBuilder().launch("gemm", 3000, stack=stack).gap(90_000).launch("relu", 1000, stack=stack)
    run = str(builder.write(tmp_path / "run.sqlite"))
    for own in ("train.py", "net.py"):
        assert main(["gaps", run, "--own", own, "--format", "csv"]) == 0
        rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
        assert rows and {row["file"] for row in rows} == {f"/app/{own}"}


def test_markdown_and_limit(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["gaps", str(recording), "--format", "md", "--limit", "1"])
    assert "--limit 0 shows all" in capsys.readouterr().out


def test_errors(recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gaps", str(recording), "--steps-by", "nothing"]) == 3
    assert main(["gaps", str(tmp_path / "none.sqlite")]) == 4
    assert "there is no such file" in capsys.readouterr().err


def test_gap_by_gap(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gaps", str(recording), "--by", "gap", "--limit", "2"]) == 0
    out = capsys.readouterr().out
    assert "mostly" in out and "2 of 5 rows" in out and "before /app/train.py:9" in out
    main(["gaps", str(recording), "--by", "gap", "--limit", "0", "--format", "json"])
    envelope = json.loads(capsys.readouterr().out)
    rows = envelope["data"]["rows"]
    assert sum(row["idle_ns"] for row in rows) == envelope["trace"]["idle_ns"]
    assert [row["idle_ns"] for row in rows] == sorted((row["idle_ns"] for row in rows), reverse=True)
    for row in rows:
        assert sum(part["idle_ns"] for part in row["parts"]) == row["idle_ns"]
    assert (rows[0]["cause"], rows[0]["until"]["line"]) == ("host code", 9)
    assert [part["cause"] for part in rows[0]["parts"]] == ["host code", "inside a CUDA call"]


def test_the_longest_gap_of_a_window(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["gaps", str(recording), "--by", "gap", "--step", "1", "--format", "json"])
    envelope = json.loads(capsys.readouterr().out)
    assert sum(row["idle_ns"] for row in envelope["data"]["rows"]) == envelope["trace"]["idle_ns"]
