# SPDX-License-Identifier: Apache-2.0
"""full_profiling_session on the CPU: tables, trace, and a model that is left as it was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from profiling_lab.errors import NotEnoughDataError, UsageError
from profiling_lab.utils import full_profiling_session


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 2)
        self.seen: list[tuple[bool, bool]] = []

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        self.seen.append((self.training, torch.is_grad_enabled()))
        return self.linear(x) * scale  # type: ignore[no-any-return]


LOADER = [(torch.randn(8, 4), "a label that has no device")] * 30


def test_the_session_of_the_chapter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    model = Model()
    profiler = full_profiling_session(model, LOADER, device="cpu")
    assert model.seen == [(False, False)] * 25, "5 to warm up, 20 profiled"
    assert model.training
    (linear,) = (row for row in profiler.key_averages() if row.key == "aten::linear")
    assert linear.count == 20
    out = capsys.readouterr().out
    assert "Top operations by CPU time, 20 batches" in out and "Top operations by memory" in out
    first = out.partition("Name ")[2].splitlines()[2].split()[0]
    assert first.startswith("aten::"), "operations, and not the Python frames around them"
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]


def test_without_a_gpu_the_cpu_is_profiled_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.warns(RuntimeWarning, match="sees no GPU: profiling the CPU"):
        full_profiling_session(Model(), LOADER[:2], steps=1, warmup=0, trace_path=tmp_path / "t.json")


def test_training_and_batches_by_name(tmp_path: Path) -> None:
    model, batches = Model(), []

    def train_step(model: Any, batch: Any) -> None:
        batches.append(batch)
        model(batch[0]).sum().backward()

    options: dict[str, Any] = {"warmup": 1, "steps": 2, "trace_path": tmp_path / "t.json"}
    full_profiling_session(model, LOADER, "cpu", train_step=train_step, **options)
    assert model.seen == [(True, True)] * 3 and batches[0][1] == "a label that has no device"
    model = Model()
    full_profiling_session(model, [{"x": torch.ones(1, 4), "scale": 2.0}], "cpu", **options)
    full_profiling_session(model, [torch.ones(1, 4)], "cpu", **options)
    assert len(model.seen) == 4


def test_the_mode_is_restored_if_the_model_fails(tmp_path: Path) -> None:
    model = Model()
    with pytest.raises(RuntimeError):
        full_profiling_session(model, [torch.ones(1, 5)], "cpu", trace_path=tmp_path / "t.json")
    assert model.training


def test_bad_input_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(NotEnoughDataError, match="expected batches, the dataloader has none left"):
        full_profiling_session(Model(), [], "cpu")
    with pytest.raises(UsageError, match="steps at least 1, not 5 and 0"):
        full_profiling_session(Model(), LOADER, "cpu", steps=0)


def test_a_trace_that_cannot_be_written_costs_only_the_trace(tmp_path: Path) -> None:
    with pytest.warns(RuntimeWarning, match="could not be written"):
        profiler = full_profiling_session(
            Model(), LOADER, "cpu", warmup=0, steps=1, trace_path=tmp_path / "none" / "t.json"
        )
    assert profiler.key_averages()


@pytest.mark.gpu
@pytest.mark.keeps_cupti
def test_on_a_gpu(tmp_path: Path, capsys: Any) -> None:
    full_profiling_session(Model(), LOADER, trace_path=tmp_path / "t.json")
    assert "Top operations by GPU time, 20 batches" in capsys.readouterr().out
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert any(event.get("cat") == "kernel" for event in events)
