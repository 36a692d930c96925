# SPDX-License-Identifier: Apache-2.0
"""Real programs on an H200: the peak is torch's own, to the byte, and its lines are those of the program."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import profiling_lab

DATA = Path(__file__).resolve().parents[2] / "data" / "memory_h200"
TORCH = json.loads((DATA / "torch.json").read_text())
RECORDED = sorted(path.name.partition(".")[0] for path in DATA.glob("*.sqlite.gz"))
MIB = 1 << 20


def test_there_are_ten_programs_and_one_runs_out_of_memory() -> None:
    assert len(TORCH) >= 10 and "out_of_memory" in TORCH and "out_of_memory" in RECORDED


@pytest.mark.parametrize("name", TORCH)
def test_the_peak_of_a_snapshot(name: str) -> None:
    with profiling_lab.open(DATA / f"{name}.pickle.gz") as trace:
        table = trace.memory()
        (device,) = table.facts["devices"]
        assert sum(table["bytes"]) == device["peak_bytes"] == TORCH[name]["peak_bytes"]
        assert device["reserved_peak_bytes"] == TORCH[name]["reserved_peak_bytes"]
        assert device["is_complete"] and device["corrected_blocks"] == 0
        end = trace.memory(at="end")
        assert sum(end["bytes"]) == TORCH[name]["allocated_bytes"]


@pytest.mark.parametrize("name", RECORDED)
def test_the_peak_of_a_recording(name: str) -> None:
    with profiling_lab.open(DATA / f"{name}.sqlite.gz") as trace:
        table = trace.memory()
        (device,) = table.facts["devices"]
        assert sum(table["bytes"]) == device["peak_bytes"] == TORCH[name]["peak_bytes"]
        assert device["torch_peak_bytes"] == TORCH[name]["peak_bytes"]
        assert "this is torch's own peak (max_memory_allocated), to the byte" in str(table)


def test_kinds_and_lines_of_training() -> None:
    with profiling_lab.open(DATA / "eager.sqlite.gz") as trace:
        table = trace.memory()
        kinds = dict(table.facts["devices"][0]["kinds"])
        lines = {(row["line"], row["phase"]): row for row in table.to_dicts()}
    # 51,399,656 parameters of 4 bytes, each in blocks of at least 512; AdamW keeps twice as much.
    assert kinds["parameters"] == pytest.approx(4 * 51_399_656, rel=0.0001)
    assert kinds["optimizer state"] == pytest.approx(2 * kinds["parameters"], rel=0.01)
    assert kinds["activations"] > 400 * MIB and kinds["unknown"] < 1024
    assert kinds["workspace"] == 2 * 32 * MIB, "of the main thread and of the autograd engine's"
    forward, backward = lines[33, "forward"], lines[33, "backward"]
    assert forward["kind"] == "activations" and backward["linked"]
    assert (
        lines[58, "forward"]["kind"] == "parameters" and lines[67, "optimizer"]["kind"] == "optimizer state"
    )
    known = sum(row["bytes"] for row in lines.values() if row["line"] is not None)
    assert known == sum(row["bytes"] for row in lines.values()), "every block has a line"


def test_the_line_of_a_list_that_grows() -> None:
    with profiling_lab.open(DATA / "list_of_activations.sqlite.gz") as trace:
        first = trace.memory_growth()[0]
        assert (first["line"], first["per_step_bytes"], first["steps_grown"]) == (86, 8 * MIB, 6)
        (finding,) = trace.check(["memory_growth"])
        assert finding["line"] == 86 and finding["cause"] == "kept_tensors"


def test_what_an_error_would_have_needed() -> None:
    with profiling_lab.open(DATA / "out_of_memory.sqlite.gz") as trace:
        (oom,) = trace.memory().facts["devices"][0]["out_of_memory"]
    assert oom["requested_bytes"] == oom["needed_bytes"] == 32 * MIB and oom["line"] == 33
    assert oom["short_bytes"] == 0, "the driver had enough: the program limits itself to 1.2 GB"
    assert oom["fragmented"] and oom["largest_free_bytes"] == 12 * MIB
