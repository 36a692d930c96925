# SPDX-License-Identifier: Apache-2.0
"""profiling-lab memory, on snapshots of a model of torch's allocator."""

from __future__ import annotations

import csv
import io
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from memory_model.fake_allocator import FakeAllocator, OutOfMemoryError, frame

import profiling_lab
from profiling_lab.cli import main

MIB = 1 << 20


def at(line: int, function: str = "forward") -> list[dict[str, Any]]:
    """The frames of an allocation."""
    return [frame("linear", "/usr/lib/python3.11/site-packages/torch/nn/functional.py", 5),
            frame(function, "/home/u/model.py", line), frame("<module>", "/home/u/train.py", 9)]  # fmt: skip


def written(folder: Path, allocator: FakeAllocator) -> str:
    path = folder / "snapshot.pickle"
    path.write_bytes(pickle.dumps(allocator.snapshot()))
    return str(path)


@pytest.fixture
def snapshot(tmp_path: Path) -> str:
    """Weights, activations that the engine frees, a list that keeps a tensor of each of five steps."""
    allocator = FakeAllocator()
    allocator.malloc(5 * MIB, at(10, "__init__"))
    for _ in range(5):
        made = [allocator.malloc(30 * MIB, at(30)), allocator.malloc(9 * MIB, [])]
        allocator.malloc(3 * MIB, at(40, "log"))
        for address in made:
            allocator.free(address, [])
    return written(tmp_path, allocator)


def test_the_peak_by_line(snapshot: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["memory", snapshot, "--limit", "3"]) == 0
    out = capsys.readouterr().out
    assert "allocated at its peak" in out and "the history is complete, so the peak is torch's own" in out
    lines = out.splitlines()
    assert any("/home/u/model.py:30 forward" in line and "activations" in line and "30.0 MiB" in line
               for line in lines)  # fmt: skip
    assert any("/home/u/model.py:40 log" in line and "15.0 MiB" in line for line in lines)
    assert "3 of 4 rows" in out


def test_json_sums_to_the_peak(snapshot: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["memory", snapshot, "--format", "json", "--limit", "0"])
    envelope = json.loads(capsys.readouterr().out)
    (device,) = envelope["trace"]["devices"]
    rows = envelope["data"]["rows"]
    assert sum(row["bytes"] for row in rows) == device["peak_bytes"] == device["allocated_bytes"]
    assert sum(row["share_frac"] for row in rows) == pytest.approx(1, abs=1e-5)
    assert device["is_complete"] is True and device["torch_peak_bytes"] is None
    assert (
        rows[0]["file"] == "/home/u/model.py" and rows[0]["line"] == 30 and rows[0]["kind"] == "activations"
    )
    unknown = next(row for row in rows if row["line"] is None)
    assert "autograd engine" in unknown["no_line_because"] and unknown["phase"] == "unknown"


def test_by_kind_and_at_the_end(snapshot: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["memory", snapshot, "--by", "kind"])
    out = capsys.readouterr().out
    assert "30.0 MiB /home/u/model.py:30 forward" in out
    main(["memory", snapshot, "--at", "end", "--format", "csv"])
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [(row["line"], row["blocks"]) for row in rows] == [("40", "5"), ("10", "1")]


def test_at_a_time(snapshot: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["memory", snapshot, "--at", "1us", "--format", "json"])
    (row,) = json.loads(capsys.readouterr().out)["data"]["rows"]
    assert row["line"] == 10
    assert main(["memory", snapshot, "--at", "noon"]) == 2
    assert "--at expects peak, end, or a time such as 1.5s" in capsys.readouterr().err


def test_the_timeline_reaches_the_peak(snapshot: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["memory", snapshot, "--timeline", "7"]) == 0
    assert "###" in capsys.readouterr().out
    with profiling_lab.open(snapshot) as trace:
        table = trace.memory_timeline(7)
        assert len(table) == 7
        assert max(table["allocated_bytes"]) == trace.memory().facts["devices"][0]["peak_bytes"]


def test_growth_needs_steps(snapshot: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["memory", snapshot, "--growth"]) == 3
    assert "record --memory" in capsys.readouterr().err


def test_what_an_error_would_have_needed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    allocator = FakeAllocator(100 * MIB)
    allocator.malloc(60 * MIB, at(20))
    with pytest.raises(OutOfMemoryError):
        allocator.malloc(70 * MIB, at(50))
    assert main(["memory", written(tmp_path, allocator)]) == 0
    out = capsys.readouterr().out
    assert "out of memory at /home/u/model.py:50 forward: 70.0 MiB requested" in out
    assert "which had 40.0 MiB: 30.0 MiB too little" in out and "too little even in one piece" in out


def test_an_error_by_fragmentation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    allocator = FakeAllocator(100 * MIB)
    blocks = [allocator.malloc(2 * MIB, at(20)) for _ in range(50)]
    for address in blocks[::2]:
        allocator.free(address)
    with pytest.raises(OutOfMemoryError):
        allocator.malloc(40 * MIB, at(50))
    main(["memory", written(tmp_path, allocator), "--at", "end"])
    out = capsys.readouterr().out
    assert "the allocator had 50.0 MiB free, but at most 2.0 MiB in one piece: fragmentation" in out
    assert (
        "50.0 % of the reserved memory is free: 50.0 MiB, of that 50.0 MiB in segments that are in use" in out
    )


def test_a_history_that_begins_late_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    allocator = FakeAllocator(history=False)
    allocator.malloc(4 * MIB)
    allocator.history = True
    allocator.malloc(MIB, at(30))
    main(["memory", written(tmp_path, allocator)])
    out = capsys.readouterr().out
    assert "note: the history begins after the first allocation" in out
    assert "unknown: allocated before the recording of memory began" in out


def test_a_trace_without_memory(capsys: pytest.CaptureFixture[str]) -> None:
    trace = Path(__file__).parents[1] / "data" / "fake_recording.sqlite"
    assert main(["memory", str(trace)]) == 3
    assert "has no history of torch's allocator: it needs `profiling-lab record --memory`" in (
        capsys.readouterr().err
    )
