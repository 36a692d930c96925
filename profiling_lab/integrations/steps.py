# SPDX-License-Identifier: Apache-2.0
"""Records some steps of a training loop that belongs to a library, which tells when each step ends."""

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
    """The steps `A:B` of a run, the first being 0, in a file that is written as soon as B is reached.

    steps: as in `profiling-lab record --steps`; an open end records until end(). options: those of Recorder.
    Of several ranks each writes its own file, as with record(). What fails becomes a RuntimeWarning: the
    training goes on. Raises UsageError for steps that make no sense.
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
        """The file, once it is whole."""
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
        """The training is over, or failed. Does nothing the second time."""
        running, self._running = self._running, None
        if running is None:
            return
        try:
            running.__exit__(None, None, None)
        except LabError as error:
            warnings.warn(f"the recording could not be finished: {error}", RuntimeWarning, stacklevel=3)
