# SPDX-License-Identifier: Apache-2.0
"""profiling-lab overlap"""

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
    builder = TraceBuilder().launch("gemm", 10_000, start_ns=2_000_000)
    builder.copy("HtoD", 8000, start_ns=2_006_000, stream=9)
    return builder.write(tmp_path / "run.sqlite")


def test_table_by_class(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["overlap", str(recording)]) == 0
    out, err = capsys.readouterr()
    assert "process 100, GPU 0: 2 streams, busy 14.000 µs of 14.000 µs" in out
    assert "several streams at once: 4.000 µs, 28.6 % of the busy time" in out
    assert "overlapped with compute µs" in out
    lines = [line.split() for line in out.splitlines()]
    assert ["compute", "1", "10.000", "71.4", "%", "-", "-", "6.000"] in lines
    assert ["copy", "HtoD", "1", "8.000", "57.1", "%", "4.000", "4.000", "4.000"] in lines and err == ""


def test_table_by_stream(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["overlap", str(recording), "--by", "stream", "--limit", "1"]) == 0
    out = capsys.readouterr().out
    assert "1 of 2 rows" in out and "overlapped with other streams" in out


def test_pairs(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["overlap", str(recording), "--by", "pair"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["gemm", "memcpy", "HtoD", "1", "4.000", "28.6", "%"] in lines
    main(["overlap", str(recording), "--by", "pair", "--format", "json"])
    (row,) = json.loads(capsys.readouterr().out)["data"]["rows"]
    assert (row["name"], row["other"], row["together_ns"]) == ("gemm", "memcpy HtoD", 4000)


def test_one_stream_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = TraceBuilder().launch("gemm", 1000).copy("HtoD", 1000).write(tmp_path / "run.sqlite")
    main(["overlap", str(path)])
    assert "all work is on one stream" in capsys.readouterr().out


def test_json(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["overlap", str(recording), "--format", "json"])
    envelope = json.loads(capsys.readouterr().out)
    compute, copy = envelope["data"]["rows"]
    assert compute["class"] == "compute" and compute["exposed_ns"] is None
    assert (copy["hidden_ns"], copy["exposed_ns"], copy["with_ns"]) == (4000, 4000, {"compute": 4000})
    assert envelope["trace"]["devices"][0]["level_ns"] == [0, 10_000, 4000]


def test_other_forms_and_errors(recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["overlap", str(recording), "--by", "stream", "--format", "csv"])
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [(row["stream"], row["shared_ns"]) for row in rows] == [("7", "4000"), ("9", "4000")]
    assert main(["overlap", str(recording), "--format", "md"]) == 0
    empty = TraceBuilder().call("cudaMalloc").write(tmp_path / "empty.sqlite")
    assert main(["overlap", str(empty)]) == 3
    assert "holds no GPU operation" in capsys.readouterr().err
