# SPDX-License-Identifier: Apache-2.0
"""Record some steps of a Hugging Face Trainer.

from profiling_lab.integrations.huggingface import RecordCallback
trainer = Trainer(..., callbacks=[RecordCallback("run.sqlite", steps="10:15")])
"""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from typing import Any

from profiling_lab.integrations.steps import RecordedSteps

_Callback: Any = import_module("transformers").TrainerCallback


class RecordCallback(_Callback):  # type: ignore[misc]  # type checks do not need transformers
    """Records the steps A:B of each train(), as RecordedSteps says; a step ends with an optimizer's step.

    `path` is the file of the last train(), once it is complete.
    """

    def __init__(self, path: str | os.PathLike[str], steps: str = "10:15", **options: Any) -> None:
        self._steps = RecordedSteps(path, steps, **options)

    @property
    def path(self) -> Path | None:
        return self._steps.path

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self._steps.end()  # after a train() that failed
        self._steps.begin()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self._steps.step()

    def on_train_end(self, *_: Any, **__: Any) -> None:
        self._steps.end()
