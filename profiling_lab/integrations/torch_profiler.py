# SPDX-License-Identifier: Apache-2.0
"""The recorder with the interface of torch.profiler: only the import changes.

from profiling_lab import profile, trace_handler  # instead of torch.profiler's
plan = torch.profiler.schedule(wait=1, warmup=1, active=3)
with profile(schedule=plan, on_trace_ready=trace_handler("log")) as p:
    for batch in loader:
        train(batch)
        p.step()
"""

from __future__ import annotations

import os
import socket
import time
import warnings
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from profiling_lab.errors import LabError, UsageError
from profiling_lab.recording import Recorder, RecordingSummary, Schedule, record
from profiling_lab.recording import step as step_ended

if TYPE_CHECKING:
    from profiling_lab.analysis.lines import LinesResult
    from profiling_lab.integrations.averages import Averages

NAME = "profile.sqlite"
_OFF, _WARM_UP, _SAVE = "NONE", "WARMUP", "RECORD_AND_SAVE"
_RECORDING = ("RECORD", _SAVE)
_LONGEST_WARM_UP = 100_000


class profile:  # the name in torch.profiler
    """Records like torch.profiler.profile with the same arguments, one file per active window.

    schedule: a function from the number of a step to a torch.profiler.ProfilerAction, such as
    torch.profiler.schedule() returns; without it everything is recorded. on_trace_ready: called with this
    object when a window's file is complete. path: the first file; the next is profile-2.sqlite and so on. An
    existing file is not replaced, and each of several ranks writes its own. Further options: as in Recorder.

    activities, record_shapes, profile_memory, with_stack, with_flops, with_modules: as in torch.profiler.
    Stacks, and with them modules, are always recorded; data that is not recorded is listed in one
    RuntimeWarning. Failures of the recorder, or of an export in on_trace_ready, become a RuntimeWarning
    too, and the program continues. Other exceptions of on_trace_ready are passed on. In all cases the file
    is complete.
    """

    def __init__(
        self,
        *,
        activities: Iterable[Any] | None = None,
        schedule: Callable[[int], Any] | None = None,
        on_trace_ready: Callable[[profile], object] | None = None,
        record_shapes: bool = False,
        profile_memory: bool = False,
        with_stack: bool = False,
        with_flops: bool = False,
        with_modules: bool = False,
        path: str | os.PathLike[str] | None = None,
        **options: Any,
    ) -> None:
        if isinstance(schedule, Schedule) or not (schedule is None or callable(schedule)):
            raise UsageError(
                "schedule must be a function of the step's number such as torch.profiler.schedule() returns, "
                f"not {type(schedule).__name__}; record() takes a profiling_lab.Schedule"
            )
        folder = getattr(on_trace_ready, "folder", None)  # our trace_handler: files go to the same folder
        self._first = Path(
            path if path is not None else NAME if folder is None else Path(folder, NAME)
        ).absolute()
        self._schedule = schedule
        self._on_trace_ready = on_trace_ready
        self._options = options
        self._unmet = _not_recorded(activities, record_shapes, profile_memory, with_flops)
        self._process = 0
        self._running: AbstractContextManager[Recorder] | None = None
        self._recorder: Recorder | None = None
        self._told: set[str] = set()
        self.step_num = 0
        self.current_action = _OFF
        self.paths: list[Path] = []
        """the complete files"""

    @property
    def path(self) -> Path:
        """The file of the last window. Raises UsageError if there is none yet."""
        if not self.paths:
            raise UsageError("no window has ended yet: there is no recording to read")
        return self.paths[-1]

    @property
    def summary(self) -> RecordingSummary | None:
        """The summary of the last window; None if there is none yet."""
        return None if self._recorder is None else self._recorder.summary

    def start(self) -> None:
        """Start with step 0 of the schedule. Raises UsageError if no file can be written."""
        if not self._first.parent.is_dir():
            raise UsageError(f"the folder {self._first.parent} does not exist")
        if self._unmet:
            warnings.warn(f"not recorded: {', '.join(self._unmet)}", RuntimeWarning, stacklevel=3)
        self._process = os.getpid()
        self.step_num = 0
        self.current_action = self._action(0)
        if self.current_action != _OFF:
            self._begin()

    def step(self) -> None:
        """A step of the program has ended."""
        if self._process != os.getpid():  # not started, or a forked child, which records nothing
            return
        step_ended()
        before = self.current_action
        self.step_num += 1
        self.current_action = now = self._action(self.step_num)
        # A window ends with RECORD_AND_SAVE, or with any other step that does not record.
        ended = before == _SAVE or now == _OFF or (before in _RECORDING and now == _WARM_UP)
        if ended and before != _OFF:
            self._finish(before)
        if now != _OFF and (ended or before == _OFF):
            self._begin()

    def stop(self) -> None:
        """Finish the open window, if any."""
        self._stop(None, None, None)

    def __enter__(self) -> profile:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop(kind, error, traceback)

    def lines(self, limit: int | None = None) -> LinesResult:
        """GPU time per Python line in the last window. Raises NotEnoughDataError if there is none."""
        from profiling_lab.integrations.averages import lines_of

        return lines_of(self.path, limit)

    def key_averages(self, group_by_input_shape: bool = False, group_by_stack_n: int = 0) -> Averages:
        """GPU time per Python line, in the form of torch's averages. group_by_stack_n: frames of the
        program per group. Shapes are not recorded, so grouping by shape has no effect.
        """
        from profiling_lab.integrations.averages import Averages

        return Averages(self.path, group_by_stack_n or None)

    def export_chrome_trace(self, path: str | os.PathLike[str], **_: object) -> None:
        """Write the last window for Perfetto and chrome://tracing, compressed if the name ends in .gz. Other
        arguments of torch's handlers are ignored.
        """
        from profiling_lab.export.output import new_file
        from profiling_lab.export.perfetto import write_perfetto
        from profiling_lab.trace import Trace

        with Trace.open(self.path) as trace, new_file(Path(path), overwrite=True, source=self.path) as place:
            write_perfetto(trace, place, packed=Path(path).suffix == ".gz")

    def export_stacks(self, path: str | os.PathLike[str], metric: str = "self_cuda_time_total") -> None:
        """Write the last window's call stacks with GPU time, for flame graphs. Every metric is GPU time."""
        from profiling_lab.export.collapsed import write_collapsed
        from profiling_lab.export.output import new_file
        from profiling_lab.trace import Trace

        with Trace.open(self.path) as trace, new_file(Path(path), overwrite=True, source=self.path) as place:
            write_collapsed(trace, place)

    def add_metadata(self, key: str, value: str) -> None:
        """Accepted as in torch.profiler, but not recorded."""
        self._warn_once("metadata is not recorded")

    def add_metadata_json(self, key: str, value: str) -> None:
        """Accepted as in torch.profiler, but not recorded."""
        self._warn_once("metadata is not recorded")

    def _action(self, step: int) -> str:
        """The action of a step in the schedule, as the name of its ProfilerAction."""
        if self._schedule is None:
            return "RECORD"
        action = self._schedule(step)
        return str(getattr(action, "name", action))

    def _begin(self) -> None:
        """Record from this step on, after the warm-up of the schedule."""
        warm_up = 0
        while warm_up < _LONGEST_WARM_UP and self._action(self.step_num + warm_up) == _WARM_UP:
            warm_up += 1
        plan = Schedule(warmup=warm_up, step_by="calls") if warm_up else Schedule()
        running = record(self._free_name(), schedule=plan, **self._options)
        try:
            self._recorder = running.__enter__()
            self._running = running
        except LabError as error:
            self._warn_once(f"nothing is recorded: {error}")

    def _finish(self, action: str, failure: BaseException | None = None) -> None:
        """End the window, write its file, and call on_trace_ready. `action`: that of the ended step."""
        running, self._running = self._running, None
        if running is None or self._recorder is None:
            return
        try:
            running.__exit__(None, None, None)
        except LabError as error:
            self._warn_once(f"a recording could not be finished: {error}")
            return
        if action not in _RECORDING:  # a warm-up without a recorded step
            self._recorder.path.unlink(missing_ok=True)
            return
        self.paths.append(self._recorder.path)
        if self._on_trace_ready is None:
            return
        try:
            self._on_trace_ready(self)
        except LabError as error:
            self._warn_once(f"{error}; the recording is in {self.path}")
        except Exception as error:
            if failure is None:
                raise
            # The caller must see the failure of the program.
            self._warn_once(f"on_trace_ready: {type(error).__name__}: {error}")

    def _stop(self, *failure: Any) -> None:
        if self._process != os.getpid():
            return
        self._process = 0
        action, self.current_action = self.current_action, _OFF
        self._finish(action, failure[1])

    def _free_name(self) -> Path:
        """For the file of the next window."""
        first = self._first
        number = len(self.paths) + 1
        while True:
            name = first if number == 1 else first.with_name(f"{first.stem}-{number}{first.suffix}")
            if not (name.exists() or name.with_name(f"{name.name}.spool").exists()):
                return name
            number += 1

    def _warn_once(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            warnings.warn(text, RuntimeWarning, stacklevel=4)


class trace_handler:  # used like the function torch.profiler.tensorboard_trace_handler
    """An on_trace_ready that writes each window into `folder`: its recording, and a Chrome trace with a name
    that TensorBoard and HTA recognise. worker_name: default host and process; use_gzip compresses the trace.
    """

    def __init__(
        self, folder: str | os.PathLike[str], worker_name: str | None = None, use_gzip: bool = False
    ) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._worker = worker_name or f"{socket.gethostname()}_{os.getpid()}"
        self._ending = ".pt.trace.json.gz" if use_gzip else ".pt.trace.json"

    def __call__(self, profiler: profile) -> None:
        profiler.export_chrome_trace(self.folder / f"{self._worker}.{time.time_ns()}{self._ending}")


def _not_recorded(
    activities: Iterable[Any] | None, record_shapes: bool, profile_memory: bool, with_flops: bool
) -> list[str]:
    """The requested data that is not recorded."""
    asked = {"record_shapes": record_shapes, "profile_memory": profile_memory, "with_flops": with_flops}
    missing = [name for name, wanted in asked.items() if wanted]
    names = [str(getattr(activity, "name", activity)) for activity in activities or ("CUDA",)]
    missing += [f"activity {name}" for name in names if name not in ("CPU", "CUDA")]
    if "CUDA" not in names:
        missing.append("operators on the CPU (the GPU is recorded instead)")
    return missing
