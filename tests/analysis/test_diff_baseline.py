# SPDX-License-Identifier: Apache-2.0
"""Baselines: what is kept is what was measured, and a damaged one is one sentence."""

from __future__ import annotations

import dataclasses
import json
import random
from pathlib import Path

import numpy as np
import pytest
from builders import TraceBuilder
from hypothesis import given, settings
from hypothesis import strategies as st

from profiling_lab.analysis.diff.baseline import is_baseline, load_baseline, save_baseline
from profiling_lab.analysis.diff.diff import diff
from profiling_lab.analysis.diff.measure import measure
from profiling_lab.errors import LabError, UnreadableInputError
from profiling_lab.trace import Trace


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five steps of forward and backward on two streams, with an input, idle time and grids."""
    builder = TraceBuilder()
    for number in range(5):
        builder.now_ns = start_ns = max([builder.now_ns, *builder.gpu_free_ns.values()])
        builder.copy("HtoD", 1_000, stack="/app/train.py:5 main")
        builder.launch(
            "elementwise_kernel<4, add>", 20_000, blocks=64, stack="/app/model.py:8 f", peek=number
        )
        builder.launch("other", 15_000 + number, stream=9, stack="/app/model.py:9 f").gap(50_000)
        builder.launch("mul_bwd", 30_000, node=number, node_name="MulBackward0", thread=2)
        builder.range(f"ProfilerStep#{number}", start_ns, max(builder.gpu_free_ns.values()))
    builder.row("TARGET_INFO_GPU", vmId=0, id=0, name="Test GPU")
    return builder.write(tmp_path_factory.mktemp("baseline") / "run.sqlite")


def test_everything_comes_back(recording: Path, tmp_path: Path) -> None:
    path = tmp_path / "kept.json"
    with Trace.open(recording) as trace:
        captures = [measure(trace), measure(trace, own=())]
    save_baseline(captures, path)
    assert is_baseline(path) and not is_baseline(recording) and not is_baseline(tmp_path / "nowhere")
    for capture, kept in zip(captures, load_baseline(path), strict=True):
        assert kept.origin == dataclasses.replace(capture.origin, saved=str(path))
        for name in ("step_ns", "whole_ns", "twice_ns"):
            assert np.array_equal(getattr(kept, name), getattr(capture, name))
        used = capture.part_ns.any(axis=0)
        assert kept.places == tuple(p for p, some in zip(capture.places, used, strict=True) if some)
        assert np.array_equal(kept.part_ns, capture.part_ns[:, used])
        assert (kept.input_bytes, kept.devices) == (capture.input_bytes, capture.devices)


def test_one_that_was_formatted_is_still_one(recording: Path, tmp_path: Path) -> None:
    path = tmp_path / "kept.json"
    with Trace.open(recording) as trace:
        save_baseline([measure(trace)], path)
    path.write_text(json.dumps(json.loads(path.read_text()), indent=2))
    assert is_baseline(path) and len(load_baseline(path)) == 1


def test_a_real_pair_compares_the_same(captures: Path, tmp_path: Path) -> None:
    names = [captures / f"resnet50_num_workers_{n}.pt.trace.json.gz" for n in (0, 4)]
    before, after = (Trace.open(name) for name in names)
    save_baseline([measure(before)], tmp_path / "before.json")
    direct = diff([before], [after], gate="3%", budgets=["gaps<5%"])
    kept = diff(load_baseline(tmp_path / "before.json"), [after], gate="3%", budgets=["gaps<5%"])
    assert (kept.rows, kept.checks, kept.gate, kept.budgets) == (
        direct.rows,
        direct.checks,
        direct.gate,
        direct.budgets,
    )
    assert (tmp_path / "before.json").stat().st_size < 100_000


def test_no_baseline_is_half_written(recording: Path, tmp_path: Path) -> None:
    path = tmp_path / "kept.json"
    path.mkdir()  # it cannot be replaced
    with Trace.open(recording) as trace, pytest.raises(LabError, match="cannot be written"):
        save_baseline([measure(trace)], path)
    assert [child.name for child in tmp_path.iterdir()] == ["kept.json"]


@settings(max_examples=300)
@given(seed=st.integers(0, 1 << 30), changes=st.integers(1, 4))
def test_damage_is_said_or_harmless(seed: int, changes: int, damaged: tuple[Path, bytes]) -> None:
    path, content = damaged
    chance = random.Random(seed)
    text = bytearray(content)
    for _ in range(changes):
        at = chance.randrange(len(text))
        text[at : at + chance.randrange(3)] = bytes(
            chance.choice(b'0123456789-"[]{},.:ntf\xff\x00') for _ in range(chance.randrange(4))
        )
    path.write_bytes(text)
    try:
        captures = load_baseline(path)
    except LabError as error:
        assert "\n" not in str(error) and str(path) in str(error)
    else:
        for capture in captures:
            assert (capture.part_ns.sum(axis=1) + capture.twice_ns == capture.whole_ns).all()


@pytest.fixture(scope="module")
def damaged(recording: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    path = tmp_path_factory.mktemp("damaged") / "kept.json"
    with Trace.open(recording) as trace:
        save_baseline([measure(trace)], path)
    return path, path.read_bytes()


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"schema":"profiling-lab/baseline-1","captures":[]}'])
def test_files_that_are_not_baselines(tmp_path: Path, text: str) -> None:
    path = tmp_path / "kept.json"
    path.write_text(text)
    with pytest.raises(UnreadableInputError):
        load_baseline(path)
