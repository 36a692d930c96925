# SPDX-License-Identifier: Apache-2.0
"""profiling-lab kernels"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from builders import TraceBuilder

from profiling_lab.cli import main


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    builder = TraceBuilder().launch(
        "gemm", 9000, stack="/app/train.py:8 main > /app/model.py:5 Net.forward", peek=0
    )
    builder.launch("gemm", 1000, stack="/app/train.py:8 main > /app/model.py:6 Net.forward", peek=1)
    builder.launch("relu", 20_000, node=0, node_name="MmBackward0", thread=2, peek=0)
    for i in range(12):
        builder.launch(f"small_{i}", 10 - i % 2)
    return builder.write(tmp_path / "run.sqlite")


def test_stacks_are_listed_under_their_kernel(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kernels", str(recording), "--limit", "2"]) == 0
    out, err = capsys.readouterr()
    lines = [line.strip() for line in out.splitlines()]
    at = lines.index("100.0 % backward: /app/model.py:Net.forward() line 6")
    assert lines[at - 1].startswith("relu") and lines[at + 1] == "from /app/train.py:main() line 8"
    assert lines[at + 2].startswith("gemm")
    assert lines[at + 3] == "90.0 % forward: /app/model.py:Net.forward() line 5"
    assert lines[-1] == "2 of 14 rows; --limit 0 shows all" and err == ""


def test_stacks_can_be_left_out(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["kernels", str(recording), "--depth", "0"])
    assert "model.py" not in capsys.readouterr().out
    main(["kernels", str(recording), "--stacks", "1", "--depth", "1"])
    out = capsys.readouterr().out
    assert "and 1 more place\n" in out and "train.py" not in out


def test_json(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["kernels", str(recording), "--format", "json"])
    envelope = json.loads(capsys.readouterr().out)
    assert envelope["data"]["total_matched"] == 14 and envelope["data"]["truncated"] is True
    first = envelope["data"]["rows"][0]
    assert (first["key"], first["kind"], first["total_ns"], first["count"]) == ("relu", "kernel", 20_000, 1)
    assert first["stacks"][0]["frames"][0] == {"function": "Net.forward", "file": "/app/model.py", "line": 6}


@pytest.mark.parametrize("form", ["csv", "md"])
def test_other_forms(recording: Path, capsys: pytest.CaptureFixture[str], form: str) -> None:
    assert main(["kernels", str(recording), "--format", form, "--limit", "0"]) == 0
    out = capsys.readouterr().out
    assert out.count("small") >= 12


def test_a_file_that_is_not_a_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("hello")
    assert main(["kernels", str(path)]) == 4
    assert "is not a trace" in capsys.readouterr().err


def test_statistics_and_phases_are_columns(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["kernels", str(recording), "--depth", "0"])
    assert "median" not in capsys.readouterr().out
    assert main(["kernels", str(recording), "--depth", "0", "--stats", "--phases", "--group-by", "line"]) == 0
    out = capsys.readouterr().out
    (head,) = (line for line in out.splitlines() if line.startswith("kernel"))
    for title in ("line", "average", "median", "min", "max", "std", "queued", "call", "queue", "kernel"):
        assert title in head
    assert "/app/model.py:5" in out and "call, queue, kernel: " in out
    assert "no line: no Python stack" in out, "of the small ones"


def test_occupancy_needs_grids(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The kernels of this recording have none: that is said for each, and nothing is estimated."""
    assert main(["kernels", str(recording), "--occupancy", "--format", "json"]) == 0
    row = json.loads(capsys.readouterr().out)["data"]["rows"][0]
    assert "occupancy_estimate_frac" not in row or row["occupancy_estimate_frac"] is None


def test_shapes_of_inputs_that_were_not_recorded(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kernels", str(recording), "--group-by", "shape"]) == 3
    assert "--pytorch=autograd-shapes-nvtx" in capsys.readouterr().err


def test_json_has_all_statistics(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["kernels", str(recording), "--format", "json", "--phases"])
    rows = {row["key"]: row for row in json.loads(capsys.readouterr().out)["data"]["rows"]}
    gemm = rows["gemm"]
    assert (gemm["median_ns"], gemm["deviation_ns"], gemm["launch_count"]) == (5000, 5657, 2)
    assert rows["relu"]["deviation_ns"] is None and gemm["kernel_total_ns"] == 10_000


def test_totals_are_those_of_the_whole_table(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for part in ((), ("--range", "0ns:15us"), ("--group-by", "short", "--stats")):
        tables = []
        for flags in ((), ("--totals",)):
            assert main(["kernels", str(recording), "--limit", "0", "--format", "json", *part, *flags]) == 0
            tables.append(json.loads(capsys.readouterr().out))
        whole, totals = tables
        for row in whole["data"]["rows"]:
            row["stacks"] = []
        assert totals["data"] == whole["data"]
        for name in ("gpu_ns", "operations", "window"):
            assert totals["coverage"][name] == whole["coverage"][name]
        assert totals["coverage"]["attributed_ns"] is None, "not asked for is unknown, not zero"


def test_totals_read_neither_calls_nor_stacks(
    recording: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from profiling_lab.trace.nsys.source import SqliteSource

    def refuse(_: object) -> None:
        raise AssertionError("calls were read")

    monkeypatch.setattr(SqliteSource, "call_table", refuse)
    assert main(["kernels", str(recording), "--totals"]) == 0
    assert "which lines launched it was not asked" in capsys.readouterr().out


@pytest.mark.parametrize("flags", [["--group-by", "line"], ["--group-by", "shape"], ["--phases"]])
def test_totals_have_nothing_that_belongs_to_calls(
    recording: Path, capsys: pytest.CaptureFixture[str], flags: list[str]
) -> None:
    assert main(["kernels", str(recording), "--totals", *flags]) == 2
    assert "totals alone have no lines" in capsys.readouterr().err
