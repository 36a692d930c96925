# SPDX-License-Identifier: Apache-2.0
"""The real Trainers of Hugging Face and Lightning record steps by a callback, under the fake CUPTI."""

from __future__ import annotations

import sqlite3
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

STEPS = """
from profiling_lab.integrations.steps import RecordedSteps
import warnings
def train(steps, callback):
    callback.begin()
    for step in range(steps):
        fake.kernel(f"step{step}")
        callback.step()
    callback.end()
"""

HUGGING_FACE = """
import torch, transformers
from transformers import PretrainedConfig, PreTrainedModel, Trainer, TrainingArguments
from profiling_lab.integrations.huggingface import RecordCallback
class Model(PreTrainedModel):
    config_class = PretrainedConfig
    def __init__(self, config):
        super().__init__(config)
        self.layer, self.step = torch.nn.Linear(2, 1), -1
        self.post_init()
    def forward(self, x, labels=None):
        self.step += 1
        fake.kernel(f"step{self.step}")
        return {"loss": (self.layer(x) - labels).square().mean()}
data = [{"x": torch.ones(2), "labels": torch.zeros(1)}] * 64
arguments = TrainingArguments(
    OUT + ".d", max_steps=6, per_device_train_batch_size=2, report_to=[], use_cpu=True, save_strategy="no",
    disable_tqdm=True)
callback = RecordCallback(OUT, steps="2:4")
"""

LIGHTNING = """
import torch, warnings
from lightning.pytorch import LightningModule, Trainer
from profiling_lab.integrations.lightning import RecordCallback
class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)
    def training_step(self, batch, step):
        fake.kernel(f"step{step}")
        if step == FAILS: raise ValueError("mine")
        return self.layer(batch).square().mean()
    def configure_optimizers(self): return torch.optim.SGD(self.parameters(), lr=0.1)
FAILS = -1
data = torch.utils.data.DataLoader(torch.ones(12, 2), batch_size=2)
callback = RecordCallback(OUT, steps="2:4")
def fit():
    Trainer(max_epochs=1, accelerator="cpu", callbacks=[callback], logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False).fit(Model(), data)
"""


def kernels(path: Path) -> list[str]:
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as file:
        rows = file.execute(
            "SELECT s.value FROM CUPTI_ACTIVITY_KIND_KERNEL k JOIN StringIds s ON s.id = k.shortName"
            " WHERE s.value LIKE 'step%' ORDER BY k.start"
        )
        return [name for (name,) in rows]


def needs(module: str) -> None:
    if find_spec(module) is None:
        pytest.skip(f"{module} is not installed")


def test_the_steps_asked_for_are_written_as_soon_as_they_are_over(run: Any, tmp_path: Path) -> None:
    run(
        STEPS
        + """
callback = RecordedSteps(OUT, "2:4")
callback.begin()
for step in range(6):
    fake.kernel(f"step{step}")
    callback.step()
    assert (callback.path is not None) == (step >= 3), step
callback.end()
assert str(callback.path) == OUT
"""
    )
    assert kernels(tmp_path / "out.sqlite") == ["step2", "step3"]


def test_an_open_end_is_that_of_the_training(run: Any, tmp_path: Path) -> None:
    run(
        STEPS
        + """
train(5, RecordedSteps(OUT, "3:"))
"""
    )
    assert kernels(tmp_path / "out.sqlite") == ["step3", "step4"]


def test_what_cannot_be_recorded_is_a_warning_and_the_training_goes_on(run: Any, tmp_path: Path) -> None:
    (tmp_path / "out.sqlite").write_text("mine")
    run(
        STEPS
        + """
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    train(5, RecordedSteps(OUT, "1:2"))
assert len(told) == 1 and "nothing is recorded" in str(told[0].message), told
"""
    )
    assert (tmp_path / "out.sqlite").read_text() == "mine"


def test_hugging_face(run: Any, tmp_path: Path) -> None:
    needs("transformers")
    needs("accelerate")
    run(
        HUGGING_FACE
        + """
Trainer(Model(PretrainedConfig()), arguments, train_dataset=data, callbacks=[callback]).train()
assert str(callback.path) == OUT, callback.path
"""
    )
    assert kernels(tmp_path / "out.sqlite") == ["step2", "step3"]


def test_lightning(run: Any, tmp_path: Path) -> None:
    needs("lightning")
    run(
        LIGHTNING
        + """
fit()
assert str(callback.path) == OUT, callback.path
"""
    )
    assert kernels(tmp_path / "out.sqlite") == ["step2", "step3"]


def test_lightning_when_the_training_fails(run: Any, tmp_path: Path) -> None:
    needs("lightning")
    run(
        LIGHTNING
        + """
FAILS = 3
try: fit()
except ValueError as error: assert str(error) == "mine"
else: raise SystemExit("the program's own error is lost")
assert str(callback.path) == OUT, callback.path
"""
    )
    assert kernels(tmp_path / "out.sqlite") == ["step2", "step3"]
