# SPDX-License-Identifier: Apache-2.0
"""Memory of a recording that has kernels too: lines of backward, phases, kinds, growth, torch's own peak."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from memory_model.recordings import MIB, MemoryRecording, training

import profiling_lab
from profiling_lab.analysis.memory.peaks import memory_peaks
from profiling_lab.errors import NotEnoughDataError


def opened(recording: MemoryRecording, folder: Path, **how: Any) -> profiling_lab.api.TraceTables:
    return profiling_lab.open(recording.finish(**how).write(folder / "run.sqlite"))


@pytest.fixture
def trained() -> MemoryRecording:
    recording = MemoryRecording()
    training(recording, 6, keep=3 * MIB)
    return recording


def test_the_peak_is_that_of_the_allocator(trained: MemoryRecording, tmp_path: Path) -> None:
    with opened(trained, tmp_path) as trace:
        table = trace.memory()
        (device,) = table.facts["devices"]
        assert (
            device["peak_bytes"]
            == trained.allocator.peak
            == sum(table["bytes"])
            == device["torch_peak_bytes"]
        )
        assert "this is torch's own peak" in str(table)
        (peak,) = memory_peaks(trace.trace) or ()
        assert (peak.peak_bytes, peak.total_bytes) == (trained.allocator.reserved_peak, 80 << 30)


def test_kinds_by_what_was_seen_and_by_life(trained: MemoryRecording, tmp_path: Path) -> None:
    with opened(trained, tmp_path) as trace:
        held = dict(trace.memory().facts["devices"][0]["kinds"])
    assert held["parameters"] == 8 * MIB and held["optimizer state"] == 16 * MIB
    assert held["activations"] == 30 * MIB and held["temporary"] == 20 * MIB
    assert held["kept"] >= 5 * 3 * MIB and "unknown" not in held


def test_backward_has_the_forward_line_of_the_launch_that_follows(tmp_path: Path) -> None:
    recording = MemoryRecording()
    training(recording, 4)
    recording.malloc(200 * MIB)
    recording.launch("gemm_bwd", node=0, node_name="MmBackward0", thread=2)
    with opened(recording, tmp_path) as trace:
        (row,) = [row for row in trace.memory().to_dicts() if row["bytes"] == 200 * MIB]
        assert (row["file"], row["line"], row["phase"], row["linked"]) == (
            "/app/model.py",
            30,
            "backward",
            True,
        )
        assert "backward of /app/model.py:30 forward" in str(trace.memory())


def test_without_a_launch_after_it_an_allocation_stays_unknown(tmp_path: Path) -> None:
    recording = MemoryRecording()
    training(recording, 4)
    recording.malloc(200 * MIB)
    recording.builder.gap(10_000_000)
    recording.launch("gemm_bwd", node=0, node_name="MmBackward0", thread=2)
    with opened(recording, tmp_path) as trace:
        (row,) = [row for row in trace.memory().to_dicts() if row["bytes"] == 200 * MIB]
        assert row["line"] is None and row["linked"] is False and "autograd engine" in row["no_line_because"]


def test_growth_names_the_line_that_keeps(trained: MemoryRecording, tmp_path: Path) -> None:
    with opened(trained, tmp_path) as trace:
        table = trace.memory_growth()
        first = table[0]
        assert (first["line"], first["per_step_bytes"], first["grown_bytes"]) == (40, 3 * MIB, 12 * MIB)
        assert "/app/train.py:40 log holds 3.0 MiB more after each step" in table.header[-1]
        assert trace.memory_growth(limit=1).total_matched == len(table) > 1


def test_growth_needs_steps(tmp_path: Path) -> None:
    recording = MemoryRecording()
    recording.launch()
    recording.malloc(MIB, "/app/train.py:3 main")
    recording.launch()
    with (
        opened(recording, tmp_path) as trace,
        pytest.raises(NotEnoughDataError, match="growth needs 3 or more"),
    ):
        trace.memory_growth()


def test_a_full_ring_says_that_an_earlier_peak_may_be_higher(
    trained: MemoryRecording, tmp_path: Path
) -> None:
    events = len(trained.allocator.events)
    with opened(trained, tmp_path, most_events=events) as trace:
        (device,) = trace.memory().facts["devices"]
        assert device["is_cut"] and not device["is_complete"]
        assert f"only the last {events:,} events were kept" in str(trace.memory())


def test_another_peak_of_torch_is_said(trained: MemoryRecording, tmp_path: Path) -> None:
    peak, trained.allocator.peak = trained.allocator.peak, 5 * MIB  # the program reset it
    with opened(trained, tmp_path) as trace:
        (device,) = trace.memory().facts["devices"]
        assert device["peak_bytes"] == peak and device["torch_peak_bytes"] == 5 * MIB
        assert "torch's own peak is 5,242,880 bytes; it differs if the program reset" in str(trace.memory())


def test_without_torchs_counts_nothing_is_claimed(trained: MemoryRecording, tmp_path: Path) -> None:
    with opened(trained, tmp_path, counts=False) as trace:
        assert trace.memory().facts["devices"][0]["torch_peak_bytes"] is None
        assert "the history is complete" in str(trace.memory())
