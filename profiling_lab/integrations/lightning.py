# SPDX-License-Identifier: Apache-2.0
"""Record some steps of a Lightning Trainer.

from profiling_lab.integrations.lightning import RecordCallback
trainer = Trainer(..., callbacks=[RecordCallback("run.sqlite", steps="10:15")])
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from profiling_lab.integrations.steps import RecordedSteps


def _callback() -> Any:
    """Callback of the Lightning that the program uses: `lightning`, or the older `pytorch_lightning`."""
    names = ("lightning.pytorch", "pytorch_lightning")
    for name in sorted(names, key=lambda name: name not in sys.modules):
        try:
            return import_module(name).Callback
        except ImportError as error:
            missing = error
    raise missing


class RecordCallback(_callback()):  # type: ignore[misc]  # which one is known at run time alone
    """Records the steps A:B of each fit(), as RecordedSteps says; a step is a batch.

    `path` is the file of the last fit(), once it is complete.
    """

    def __init__(self, path: str | os.PathLike[str], steps: str = "10:15", **options: Any) -> None:
        super().__init__()
        self._steps = RecordedSteps(path, steps, **options)

    @property
    def path(self) -> Path | None:
        return self._steps.path

    def on_train_start(self, *_: Any) -> None:
        self._steps.begin()

    def on_train_batch_end(self, *_: Any) -> None:
        self._steps.step()

    def on_train_end(self, *_: Any) -> None:
        self._steps.end()

    def on_exception(self, *_: Any) -> None:
        self._steps.end()
