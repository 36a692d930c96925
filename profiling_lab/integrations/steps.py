# SPDX-License-Identifier: Apache-2.0
"""Record some steps of a library's training loop, which calls step() after each step."""

from __future__ import annotations

import os
import warnings
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from profiling_lab.errors import LabError
from profiling_lab.recording import Recorder, Schedule, record
from profiling_lab.recording import step as step_ended


class RecordedSteps:
    """Records steps `A:B` of a run (the first is 0) into a file, which is written when step B begins.

    steps: as in `profiling-lab record --steps`; without B it records until end(). options: those of Recorder.
    With several ranks each writes its own file, as with record(). Failures become a RuntimeWarning, and the
    training continues. Raises UsageError for invalid steps.
    """

    def __init__(self, path: str | os.PathLike[str], steps: str, **options: Any) -> None:
        self._template = path
        self._schedule = Schedule.of_steps(steps, step_by="calls")
        self._options = options
        self._last = int(steps.partition(":")[2] or 0)
        self._steps = 0
        self._running: AbstractContextManager[Recorder] | None = None
        self._recorder: Recorder | None = None

    @property
    def path(self) -> Path | None:
        """The file, once it is complete."""
        summary = None if self._recorder is None else self._recorder.summary
        return None if summary is None else summary.path

    def begin(self) -> None:
        """The training begins."""
        self._steps = 0
        running = record(self._template, schedule=self._schedule, **self._options)
        try:
            self._recorder = running.__enter__()
            self._running = running
        except LabError as error:
            warnings.warn(f"nothing is recorded: {error}", RuntimeWarning, stacklevel=3)

    def step(self) -> None:
        """A step has ended."""
        step_ended()
        self._steps += 1
        if self._last and self._steps >= self._last:
            self.end()

    def end(self) -> None:
        """The training has ended or failed. A second call does nothing."""
        running, self._running = self._running, None
        if running is None:
            return
        try:
            running.__exit__(None, None, None)
        except LabError as error:
            warnings.warn(f"the recording could not be finished: {error}", RuntimeWarning, stacklevel=3)
