# SPDX-License-Identifier: Apache-2.0
"""profiling-lab apis"""

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
    for line in (5, 6, 7, 7):
        builder.launch("void gemm<float>(int)", 9000, stack=f"/app/model.py:{line} Net.forward", peek=line)
    builder.call("cudaStreamSynchronize_v3020", call_ns=40_000, stack="/app/train.py:9 main")
    builder.call("cudaEventQuery_v3020", thread=5).launch("relu", 10, recorded=False)
    return builder.write(tmp_path / "run.sqlite")


def test_table(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["apis", str(recording), "--limit", "2"]) == 0
    out, err = capsys.readouterr()
    lines = [line.strip() for line in out.splitlines()]
    assert "6 API calls, 55.000 µs inside of them, summed over 2 threads" in lines
    assert "1 call of threads that only ask whether something has ended: they hold nothing up" in lines
    at = next(i for i, line in enumerate(lines) if line.startswith("cudaLaunchKernel"))
    assert lines[at + 1] == "50.0 % /app/model.py:7 Net.forward"
    assert lines[at + 3] == "25.0 % in 1 more place"
    assert lines[-1] == "2 of 3 rows; --limit 0 shows all" and err == ""


def test_lines_can_be_left_out(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["apis", str(recording), "--lines", "0"])
    assert "model.py" not in capsys.readouterr().out


def test_json(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["apis", str(recording), "--format", "json"])
    envelope = json.loads(capsys.readouterr().out)
    assert envelope["command"] == "apis" and envelope["trace"]["watchdog_polls"] == 1
    rows = {row["key"]: row for row in envelope["data"]["rows"]}
    assert rows["cudaStreamSynchronize"]["kind"] == "waits"
    assert rows["cudaStreamSynchronize"]["deviation_ns"] is None
    assert rows["cudaEventQuery"]["kind"] == "polls"
    launch = rows["cudaLaunchKernel"]
    assert (launch["count"], launch["total_ns"], launch["median_ns"]) == (4, 12_000, 3000)
    assert (launch["file"], launch["line"], launch["line_share_frac"]) == ("/app/model.py", 7, 0.5)
    assert sum(place["count"] for place in launch["lines"]) == 4


def test_launch(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["apis", str(recording), "--launch"]) == 0
    out = capsys.readouterr().out
    assert "4 kernels with the call that launched them" in out and "1 kernel without a recorded call" in out
    main(["apis", str(recording), "--launch", "--format", "json"])
    (row,) = json.loads(capsys.readouterr().out)["data"]["rows"]
    assert row["key"] == "100/100/0/cudaLaunchKernel/void gemm<float>(int)"
    assert row["launch_count"] == 4 and row["call_median_ns"] == 3000
    assert row["kernel_total_ns"] == 36_000 and row["queue_count"] == 3


@pytest.mark.parametrize("launch", [[], ["--launch"]])
def test_other_forms(recording: Path, capsys: pytest.CaptureFixture[str], launch: list[str]) -> None:
    main(["apis", str(recording), "--format", "csv", *launch])
    keys = [row["key"] for row in csv.DictReader(io.StringIO(capsys.readouterr().out))]
    assert any("cudaLaunchKernel" in key for key in keys)
    main(["apis", str(recording), "--format", "md", *launch])
    assert "| ---: |" in capsys.readouterr().out


def test_window_and_exit_codes(recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["apis", str(recording), "--range", "0us:8us"]) == 0
    assert "window: " in capsys.readouterr().out
    assert main(["apis", str(recording), "--range", "8us"]) == 2
    assert main(["apis", str(TraceBuilder().write(tmp_path / "empty.sqlite"))]) == 3
    (tmp_path / "text").write_text("hello")
    assert main(["apis", str(tmp_path / "text")]) == 4
    assert "is not a trace" in capsys.readouterr().err
