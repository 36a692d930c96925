# SPDX-License-Identifier: Apache-2.0
"""torch.profiler's memory events as a history of the allocator."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

import profiling_lab
from profiling_lab.errors import NotEnoughDataError

REPO = Path(__file__).resolve().parents[2]
RECORDED = REPO / "profiling_lab" / "exercises" / "e10_memory_profiling" / "recorded" / "trace_cpu.json.gz"


@pytest.fixture(scope="module")
def as_on_a_gpu(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """A real recording of the CPU's memory, rewritten as that of a GPU; and its memory events in order."""
    trace = json.loads(gzip.decompress(RECORDED.read_bytes()))
    events = [event for event in trace["traceEvents"] if event["name"] == "[memory]"]
    for event in events:
        event["args"] |= {"Device Type": 1, "Device Id": 0}
    path = tmp_path_factory.mktemp("memory") / "trace.json"
    path.write_text(json.dumps(trace))
    return path, sorted(events, key=lambda event: event["ts"])


def test_the_peak_is_torchs_total(as_on_a_gpu: tuple[Path, list[dict[str, Any]]]) -> None:
    path, events = as_on_a_gpu
    peak = max(event["args"]["Total Allocated"] for event in events)
    with profiling_lab.open(path) as trace:
        table = trace.memory()
        (device,) = table.facts["devices"]
        assert device["peak_bytes"] == peak == sum(table["bytes"])
        assert device["largest_free_bytes"] is None and "largest free part" not in str(table)
        assert max(trace.memory_timeline(50)["allocated_bytes"]) == peak


def test_without_python_stacks_the_operator_is_named(as_on_a_gpu: tuple[Path, list[dict[str, Any]]]) -> None:
    with profiling_lab.open(as_on_a_gpu[0]) as trace:
        rows = {row["no_line_because"]: row["bytes"] for row in trace.memory().to_dicts()}
    # E10's console.txt says the same: 20.97 MB each
    assert rows["in aten::add"] == pytest.approx(20.97e6, rel=0.001)
    assert rows["in aten::log_softmax"] == pytest.approx(20.97e6, rel=0.001)


def test_what_was_there_before_is_one_sum(
    as_on_a_gpu: tuple[Path, list[dict[str, Any]]], tmp_path: Path
) -> None:
    trace = json.loads(as_on_a_gpu[0].read_text())
    for event in trace["traceEvents"]:
        if event["name"] == "[memory]":
            event["args"]["Total Allocated"] += 5000
    (tmp_path / "trace.json").write_text(json.dumps(trace))
    with profiling_lab.open(as_on_a_gpu[0]) as without, profiling_lab.open(tmp_path / "trace.json") as more:
        before, after = without.memory(), more.memory()
        assert after.facts["devices"][0]["peak_bytes"] == before.facts["devices"][0]["peak_bytes"] + 5000
        (older,) = [row for row in after.to_dicts() if "before the recording" in row["no_line_because"]]
        old = [row["bytes"] for row in before.to_dicts() if "before the recording" in row["no_line_because"]]
        assert older["bytes"] == 5000 + sum(old)


def test_events_without_addresses_are_no_history(
    as_on_a_gpu: tuple[Path, list[dict[str, Any]]], tmp_path: Path
) -> None:
    trace = json.loads(as_on_a_gpu[0].read_text())
    for event in trace["traceEvents"]:
        event.get("args", {}).pop("Addr", None)
    (tmp_path / "trace.json").write_text(json.dumps(trace))
    with profiling_lab.open(tmp_path / "trace.json") as opened, pytest.raises(NotEnoughDataError):
        opened.memory()
