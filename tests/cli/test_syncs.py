# SPDX-License-Identifier: Apache-2.0
"""profiling-lab syncs"""

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
    builder = TraceBuilder().launch("gemm", 30_000)
    builder.copy("DtoH", 500, size_bytes=4, source=2, target=1, stack="/app/train.py:9 main")
    builder.call("cudaStreamSynchronize_v3020", call_ns=40_000, stack="/app/train.py:9 main").gap(40_000)
    builder.launch("gemm", 1000).call("cudaDeviceSynchronize_v3020", call_ns=7000)
    return builder.write(tmp_path / "run.sqlite")


def test_table(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["syncs", str(recording)]) == 0
    out, err = capsys.readouterr()
    assert "the host waited 2 times, 47.000 µs (once per thread; " in out
    lines = [line.strip() for line in out.splitlines()]
    at = lines.index("/app/train.py:9 main")
    assert lines[at - 1].startswith("value read  cudaStreamSynchronize") and err == ""
    assert lines[at + 1].startswith("device") and lines[at + 2] == "no line: no Python stack"


def test_json(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["syncs", str(recording), "--format", "json", "--limit", "1"])
    envelope = json.loads(capsys.readouterr().out)
    assert envelope["data"]["total_matched"] == 2 and envelope["trace"]["host_waits"] == 2
    (row,) = envelope["data"]["rows"]
    assert row["key"] == "value read/cudaStreamSynchronize//app/train.py:9"
    assert row["host_ns"] == 40_000 and row["idle_ns"] > 0 and row["threads"] == 1
    assert row["useful_ns"] == 23_500, "the rest of the kernel, and the copy"
    assert (row["file"], row["line"], row["function"]) == ("/app/train.py", 9, "main")


def test_other_forms(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["syncs", str(recording), "--format", "csv"])
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["what"] for row in rows] == ["value read", "device"] and rows[1]["line"] == ""
    main(["syncs", str(recording), "--format", "md"])
    assert "| value read<br>/app/train.py:9 main |" in capsys.readouterr().out


def test_window_and_exit_codes(recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["syncs", str(recording), "--range", "0us:8us"]) == 0
    assert "the host never waited" in capsys.readouterr().out
    assert main(["syncs", str(recording), "--step", "7"]) in (2, 3)
    assert main(["syncs", str(TraceBuilder().write(tmp_path / "none.sqlite"))]) == 3
    assert "neither API calls" in capsys.readouterr().err
