# SPDX-License-Identifier: Apache-2.0
"""profiling-lab copies"""

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
    builder = TraceBuilder().launch("gemm", 9000)
    for line in (5, 5, 6):
        builder.copy(
            "HtoD", 100_000, size_bytes=2_500_000, source=0, target=2, stack=f"/app/train.py:{line} main"
        )
    builder.memset(700, memory=2)
    builder.row("TARGET_INFO_GPU", vmId=0, id=0, name="NVIDIA H100")
    return builder.write(tmp_path / "run.sqlite")


def test_table(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["copies", str(recording), "--limit", "2"]) == 0
    out, err = capsys.readouterr()
    assert "3 copies of 7.2 MiB and 1 memset, 300.700 µs together, summed" in out
    assert "63.0 GB/s (PCIe 5 x16, figure of the standard)" in out and "pinned memory avoids both" in out
    lines = [line.strip() for line in out.splitlines()]
    row = lines[lines.index("/app/train.py:5 main") - 1]
    assert "PAGEABLE -> device" in row and "25.0 GB/s" in row and "39.7 %" in row
    assert "2 of 3 rows" in out and err == ""


def test_by_memory(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["copies", str(recording), "--by", "memory", "--lines", "1"])
    out = capsys.readouterr().out
    assert "66.7 % /app/train.py:5 main" in out and "33.3 % in 1 more place" in out


def test_json(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["copies", str(recording), "--format", "json", "--peak", "50"])
    envelope = json.loads(capsys.readouterr().out)
    assert envelope["trace"]["copied_bytes"] == 7_500_000 and envelope["trace"]["pageable_ns"] == 300_000
    first = envelope["data"]["rows"][0]
    assert first["key"] == "memcpy HtoD/pageable/device//app/train.py:5" and first["pageable"] is True
    assert (first["bytes_per_s"], first["peak_bytes_per_s"]) == (25_000_000_000, 50_000_000_000)
    assert first["of_peak_frac"] == 0.5 and first["large_count"] == 2
    assert (first["size_total_bytes"], first["median_ns"]) == (5_000_000, 100_000)


def test_other_forms(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["copies", str(recording), "--format", "csv"])
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["line"] for row in rows] == ["5", "6", ""] and rows[2]["bytes_per_s"] == ""
    main(["copies", str(recording), "--format", "md"])
    assert "PAGEABLE -&gt; device" in capsys.readouterr().out


def test_window_and_exit_codes(recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["copies", str(recording), "--device", "0"]) == 0
    assert main(["copies", str(recording), "--device", "3"]) == 2
    assert main(["copies", str(TraceBuilder().launch("a", 1).write(tmp_path / "none.sqlite"))]) == 0
    assert "0 copies of 0 B and 0 memsets" in capsys.readouterr().out, "none is an answer, as with waits"
    assert main(["copies", str(TraceBuilder().call("cudaMalloc").write(tmp_path / "empty.sqlite"))]) == 3
    with pytest.raises(SystemExit) as wrong:
        main(["copies", str(recording), "--peak", "-1"])
    assert wrong.value.code == 2
