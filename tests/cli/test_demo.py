# SPDX-License-Identifier: Apache-2.0
"""`profiling-lab demo`: the order of its story, its numbers, and a conclusion that follows from the data."""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path

import pytest
from exercises.training_trace import training_trace

from profiling_lab.cli import main
from profiling_lab.demo.cost import Cost, read_cost, write_cost
from profiling_lab.demo.story import tell
from profiling_lab.demo.training import training_script
from profiling_lab.errors import NotEnoughDataError
from profiling_lab.exercises import find
from profiling_lab.exercises.exercise import Need
from profiling_lab.trace import Trace

COST = Cost("slow", 2, plain_step_ns=24_310_000, recorded_step_ns=24_820_000, rounds=5, steps_per_round=10)


@pytest.fixture
def without_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Need, "missing", lambda self: "no NVIDIA GPU was found")


def told(path: Path, form: str = "table") -> str:
    stream = io.StringIO()
    with Trace.open(path) as trace:
        tell(trace, form, stream)
    return stream.getvalue()


def recorded(path: Path, culprit: str = "slow") -> Path:
    training_trace(path, culprit)
    write_cost(path, COST)
    return path


def test_story_is_told_in_order(tmp_path: Path) -> None:
    text = told(recorded(tmp_path / "run.sqlite"))
    parts = [
        "Recorded: 2 steps of train_model.py --heavy slow on Test GPU: 26 kernels, 2.230 ms of GPU time",
        "Cost:     24.31 ms per step without the recorder, 24.82 ms with it (+2.1 %; medians of 5 rounds",
        "Top CUDA kernels by time",
        "1. heavy_layer_slow_kernel (35.9 % of GPU time; 2 launches",
        "   └── Python: model.py:HeavyLayer.forward() line ",
        "train_model.py:training_step() line ",
        "GPU time by line",
        "100.0 % of the GPU time has a Python line.",
        "Conclusion: HeavyLayer is the bottleneck: 44.8 % of GPU time",
    ]
    places = [text.find(part) for part in parts]
    assert -1 not in places and places == sorted(places), dict(zip(parts, places, strict=True))


def test_line_table_has_the_phases_kernels_and_share(tmp_path: Path) -> None:
    text = told(recorded(tmp_path / "run.sqlite"))
    row = next(
        line for line in text.splitlines() if line.startswith("model.py:") and "HeavyLayer.forward" in line
    )
    assert row.split()[1:] == ["HeavyLayer.forward", "800.000", "200.000", "0", "4", "44.8", "%"]


def test_what_has_no_line_is_said_with_its_reason(tmp_path: Path) -> None:
    training_trace(tmp_path / "run.sqlite", form="nsys")
    text = told(tmp_path / "run.sqlite")
    assert "55.2 % of the GPU time has a Python line. Without a line:" in text
    assert re.search(r"1\.000 ms \(44\.8 %\): no Python stack recorded for the call", text)


@pytest.mark.parametrize(
    ("culprit", "layer"), [("slow", "HeavyLayer"), ("loop", "HeavyLayer"), ("fast", "feed_forward_layer")]
)
def test_conclusion_follows_from_the_data(tmp_path: Path, culprit: str, layer: str) -> None:
    assert f"Conclusion: {layer} is the bottleneck" in told(recorded(tmp_path / "run.sqlite", culprit))


def test_recording_of_another_program_has_no_cost_and_no_script(tmp_path: Path) -> None:
    training_trace(tmp_path / "other.sqlite")
    text = told(tmp_path / "other.sqlite")
    assert "Recorded: other.sqlite on Test GPU" in text and "Cost:" not in text


def test_recording_without_stacks_is_not_enough(tmp_path: Path) -> None:
    from builders import TraceBuilder

    path = TraceBuilder().launch("gemm", 1000).write(tmp_path / "bare.sqlite")
    with pytest.raises(NotEnoughDataError):
        told(path)


def test_json_carries_the_same_facts(tmp_path: Path) -> None:
    envelope = json.loads(told(recorded(tmp_path / "run.sqlite"), "json"))
    assert envelope["schema"] == "profiling-lab/1" and envelope["command"] == "demo"
    data = envelope["data"]
    assert data["cost"]["plain_step_ns"] == COST.plain_step_ns
    assert data["cost"]["overhead_frac"] == pytest.approx(COST.overhead_frac, abs=1e-6)
    assert data["kernels"][0]["short_name"] == "heavy_layer_slow_kernel"
    assert data["conclusion"]["layer"] == data["layers"][0]["key"] == "HeavyLayer"
    assert data["conclusion"]["is_bottleneck"] is True
    assert sum(row["gpu_ns"] for row in data["lines"]) == envelope["coverage"]["attributed_ns"]


def test_cost_survives_in_the_recording(tmp_path: Path) -> None:
    path = recorded(tmp_path / "run.sqlite")
    with Trace.open(path) as trace:
        assert read_cost(trace) == COST


def test_shipped_recording_is_from_the_h200_and_tells_the_story() -> None:
    path = find("python-backtrace").folder / "recorded" / "demo_h200.sqlite"
    text = told(path)
    assert "on NVIDIA H200" in text and "Cost:" in text
    assert "Conclusion: HeavyLayer is the bottleneck" in text
    with Trace.open(path) as trace:
        from profiling_lab.report import bottleneck

        assert bottleneck.find(trace).coverage.attributed_frac >= 0.95


def test_without_a_gpu_it_says_so_trains_and_analyses(
    without_gpu: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("No GPU to record here (no NVIDIA GPU was found)")
    losses = [float(line.split("loss ")[1].split(",")[0]) for line in lines if line.startswith("epoch ")]
    assert len(losses) == 3 and losses[0] > losses[-1]
    assert any(line.startswith("Conclusion: ") for line in lines)
    assert "exercise start python-backtrace" in lines[-1]


def test_json_without_a_gpu_keeps_stdout_for_data(
    without_gpu: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", "--format", "json"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["command"] == "demo"
    assert "epoch 1: loss" in shown.err


def test_output_needs_a_gpu(without_gpu: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--output", str(tmp_path / "run.sqlite")]) == 2
    assert "no NVIDIA GPU was found" in capsys.readouterr().err


def test_training_script_leaves_no_modules_behind() -> None:
    before = list(sys.path)
    with training_script() as script:
        assert Path(script.__file__ or "").name == "train_model.py" and "model" in sys.modules
        folder = Path(script.__file__ or "").parent
    assert sys.path == before and not folder.exists()
    assert "train_model" not in sys.modules and "model" not in sys.modules


@pytest.mark.gpu
@pytest.mark.parametrize("heavy", ["slow", "loop", "fast"])
def test_on_a_gpu_the_culprit_is_named(
    heavy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.sqlite"
    assert main(["demo", "--heavy", heavy, "--output", str(path), "--format", "json"]) == 0
    envelope = json.loads(capsys.readouterr().out)
    layer = envelope["data"]["conclusion"]["layer"]
    assert (layer == "HeavyLayer") == (heavy != "fast"), envelope["data"]["layers"][:3]
    assert envelope["coverage"]["attributed_frac"] >= 0.95
    assert main(["demo", "--output", str(path)]) == 2, "an existing file is never overwritten"
