# SPDX-License-Identifier: Apache-2.0
"""Start and stop of a recording, and its summary."""

from __future__ import annotations

import itertools
import json
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from profiling_lab.errors import LabError, UsageError
from profiling_lab.recording import (
    autograd_link,
    cells,
    generated_code,
    gpu_facts,
    host_events,
    libcupti,
    other_profilers,
    output_name,
    process_end,
    signals,
    source_text,
)
from profiling_lab.recording import spool_file as files
from profiling_lab.recording.allocations import Allocations
from profiling_lab.recording.counters.sampler import CounterThread
from profiling_lab.recording.energy.sampler import EnergySampler
from profiling_lab.recording.gpu_wait import wait_for_gpu
from profiling_lab.recording.meta_names import GPU_INFO, PROCESS_NAME, SYSTEM_INFO
from profiling_lab.recording.rank_in_job import rank_in_job
from profiling_lab.recording.schedule import RecorderState, Schedule, ScheduleRunner
from profiling_lab.recording.signatures import with_options_of
from profiling_lab.recording.summary import RecordingSummary, summarize
from profiling_lab.recording.work_step import WorkStep

NAME = "recording.sqlite"
"""the default file name; the next is recording-2.sqlite"""

MOST_SAMPLE_HZ = 2000
"""a higher rate would mostly measure the sampling"""

_GPU_WORK = ("kernels", "copies", "sets", "graph_launches")


class Recorder:
    """Records this process from start() to stop() into one SQLite file.

    path: without it, start() chooses the first free name of recording.sqlite, recording-2.sqlite and so on
    in the working folder, and sets `path`. overwrite: replace an existing file, and the capture of a killed
    recording; the file of a running recording is never replaced. schedule: which parts of the run are
    recorded (default: all of it); pause() and resume() do this by hand. most_bytes: the recording ends
    early when its capture file has this size (0: no limit). graph_nodes: record a replayed CUDA graph as
    its kernels, each with the line that captured it, instead of as a whole. In a process that used the GPU
    before the recording began, this applies to every graph. sample_hz: how often per second the Python
    stacks of all threads are sampled, to attribute idle time of the GPU to the line that the host was in
    (0: never; see MOST_SAMPLE_HZ). memory: record what torch's caching allocator does, for the whole run
    whatever the schedule. energy: read the energy counters of the GPUs in use, with power, clocks and
    temperature, for the whole run. work: count FLOPs and bytes of the operators of step `work_step`, for
    `roofline` (see WorkStep). source: store the text of the lines in the stacks, as their files were when
    the program started. even_if_idle: False writes no file if the GPU did nothing.

    on_phase: called when a window opens or closes, on the thread that does it. give_way: for a recording
    that was requested from outside of the program. It is called when the program starts its own recording,
    and must end this one. Such a recording does not end by itself with the process.

    While it runs, events go to `<path>.spool`, which survives a crash; stop() converts it to `path`.
    Without a GPU, a driver or libcupti the recording still works: it contains NVTX ranges and says what is
    missing.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        overwrite: bool = False,
        gpu: bool = True,
        stacks: bool = True,
        autograd: bool = True,
        nvtx: bool = True,
        script: str | None = None,
        sample_hz: int = 0,
        source: bool = True,
        work: bool = False,
        work_step: int | None = None,
        schedule: Schedule | None = None,
        most_bytes: int = 0,
        graph_nodes: bool = False,
        memory: bool = False,
        energy: bool = False,
        counters: bool = False,
        buffer_bytes: int = 4 << 20,
        flush_period_ms: int = 1000,
        even_if_idle: bool = True,
        on_phase: Callable[[RecorderState], None] | None = None,
        give_way: Callable[[], None] | None = None,
    ) -> None:
        # The program may change the working folder.
        self.path = Path(NAME if path is None else path).absolute()
        self._choose_name = path is None
        self.summary: RecordingSummary | None = None
        self._overwrite = overwrite
        self._gpu, self._stacks, self._autograd, self._nvtx = gpu, stacks, autograd, nvtx
        self._script = script
        self._even_if_idle = even_if_idle
        if not 0 <= sample_hz <= MOST_SAMPLE_HZ:
            raise UsageError(f"Python is sampled 1 to {MOST_SAMPLE_HZ} times a second, not {sample_hz}")
        if sample_hz and not stacks:
            raise UsageError("samples of Python are stacks: sample_hz needs stacks=True")
        self._sample_hz = sample_hz
        self._source = source
        self._most_bytes = most_bytes
        self._on_phase, self._give_way = on_phase, give_way
        self._work = WorkStep(work_step) if work or work_step is not None else None
        self._schedule_runner = ScheduleRunner(schedule or Schedule(), self._wait_for_gpu, on_phase)
        self._graph_nodes = graph_nodes
        self._allocations = Allocations() if memory else None
        self._energy = EnergySampler() if energy else None
        self._counters = CounterThread() if counters else None
        self._buffer_bytes, self._flush_period_ms = buffer_bytes, flush_period_ms
        self._reasons: dict[str, str] = {}
        self._began = 0.0
        self._process = 0
        self._undo: list[Callable[[], None]] = []

    @property
    def is_recording(self) -> bool:
        """True between start() and stop(), in the process that called start()."""
        return self._process == os.getpid()

    @property
    def reasons(self) -> dict[str, str]:
        """Why something is not recorded, as in RecordingSummary."""
        return dict(self._reasons)

    @property
    def steps(self) -> int:
        """The number of steps that ended since start(), if a schedule counts them."""
        return self._schedule_runner.steps

    @property
    def windows(self) -> int:
        """The number of windows that have begun, if there is a schedule."""
        return self._schedule_runner.windows

    @property
    def spool_path(self) -> Path:
        return self.path.with_name(self.path.name + ".spool")

    def start(self) -> None:
        """Begin to record.

        Raises UsageError for a path that cannot be used, or for a signal outside of the main thread,
        LabError if another profiler uses CUPTI or this process is already recording.
        """
        from profiling_lab import _recorder

        if self._schedule_runner.schedule.signal is not None:
            signals.check_thread()
        if _recorder.recording():
            _make_others_give_way()
        if _recorder.recording():
            raise LabError("a recording is already running in this process; stop it before starting another")
        if self._gpu and (why := other_profilers.held_by()):
            raise LabError(why)

        began = time.perf_counter()
        spool_file = self._claim()
        self._reasons = {}
        # Only for this recording:
        self._work = self._work and WorkStep(self._work.wanted)
        self._schedule_runner = ScheduleRunner(
            self._schedule_runner.schedule,
            self._wait_for_gpu,
            self._on_phase,
            self._work.step_ended if self._work else None,
        )
        try:
            state = _recorder.start(
                spool_path=str(self.spool_path),
                spool_file=spool_file,
                cupti_override=os.environ.get(libcupti.OVERRIDE, ""),
                cupti_candidates=libcupti.candidates() if self._gpu else [],
                gpu=self._gpu,
                python_stacks=self._stacks,
                nvtx=self._attract_nvtx(_recorder.__file__),
                sample_period_ns=1_000_000_000 // self._sample_hz if self._sample_hz else 0,
                paused=self._schedule_runner.begins_paused,
                most_bytes=self._most_bytes,
                graph_nodes=self._graph_nodes,
                buffer_bytes=self._buffer_bytes,
                flush_period_ms=self._flush_period_ms,
            )
        except RuntimeError as error:
            self._take_back()
            files.remove(spool_file, self.spool_path)
            unnamed = "CUPTI is held by another profiler" in str(error)
            raise LabError(f"{error}{other_profilers.suspect() if unnamed else ''}") from error
        finally:
            os.close(spool_file)  # the recorder has its own descriptor
        if not state["gpu"]:
            self._reasons["gpu"] = state["gpu_reason"]
        if state["stack_reason"]:
            self._reasons["stacks"] = state["stack_reason"]
        self._process = os.getpid()
        self._began = time.perf_counter()
        _recorder.add_meta(self._first_facts(self._began - began))
        if self._autograd:
            self._undo.append(autograd_link.link_when_imported())
            self._undo.append(_recorder.detach_autograd)
        if self._stacks:
            self._undo.append(host_events.watch())
        if self._allocations is not None:
            self._allocations = Allocations()  # only for this recording
            self._undo.append(self._allocations.start())
        if self._energy is not None:
            self._energy = EnergySampler()
            self._undo.append(self._energy.start())
        if self._counters is not None:
            self._counters = CounterThread()
            self._undo.append(self._counters.start())
        if self._give_way is None:
            self._undo.append(process_end.call_then(self._stop_at_exit))
        global _running
        _running = self
        self._schedule_runner.start()

    def _claim(self) -> int:
        """Create and lock the capture file. Raises UsageError if another recording uses this path."""
        if self._choose_name:
            return self._claim_free_name()
        if self.path.is_dir():
            raise UsageError(f"{self.path} is a folder; the recording needs a file name")
        if not self.path.parent.is_dir():
            raise UsageError(f"the folder {self.path.parent} does not exist")
        try:
            file = files.create(self.spool_path, replace_dead=self._overwrite)
        except files.OccupiedError as taken:
            raise UsageError(files.why_taken(taken)) from None
        except OSError as error:
            raise LabError(f"cannot write {self.spool_path}: {error.strerror}") from error
        if self.path.exists() and not self._overwrite:
            self._give_up(file)
            raise UsageError(f"{self.path} exists already; choose another name or allow it to be overwritten")
        return file

    def _claim_free_name(self) -> int:
        first = Path(NAME).absolute()
        for number in itertools.count(1):
            self.path = first if number == 1 else first.with_stem(f"{first.stem}-{number}")
            try:
                file = files.create(self.spool_path)
            except files.OccupiedError:
                continue
            except OSError as error:
                raise LabError(f"cannot write {self.spool_path}: {error.strerror}") from error
            if not os.path.lexists(self.path):
                break
            self._give_up(file)
        return file

    def _give_up(self, spool_file: int) -> None:
        files.remove(spool_file, self.spool_path)
        os.close(spool_file)

    def pause(self) -> None:
        """Record nothing until resume(). Launches in between have no overhead.

        Synchronises with the GPU, so that all earlier launches are recorded completely.
        """
        self._schedule_runner.pause()

    def resume(self) -> None:
        """Record again. Synchronises with the GPU, because its unrecorded work would look like idle time."""
        self._schedule_runner.resume()

    def stop(self) -> RecordingSummary:
        """End the recording and write the file. Raises LabError if this recorder is not recording."""
        facts, seconds, spool_file = self._end()
        try:
            if spool_file < 0:
                raise LabError(
                    f"the recording is lost: its capture file {self.spool_path} was closed by the program, "
                    "and deleted, renamed or replaced"
                )
            if self._even_if_idle or any(int(facts[work]) for work in _GPU_WORK):
                # Only after the capture is complete: the imports take so long that a second Ctrl-C may
                # interrupt them.
                from profiling_lab.recording.convert import convert

                done = convert(
                    self.spool_path, self.path, facts, spool_file=spool_file, overwrite=self._overwrite
                )
                facts = done.meta
                if done.unreadable:
                    self._reasons["capture"] = done.unreadable
            files.remove(spool_file, self.spool_path)
        finally:
            if spool_file >= 0:
                os.close(spool_file)
        self.summary = self._summarize(facts, seconds)
        return self.summary

    def stop_capture(self) -> tuple[dict[str, str], float]:
        """End the recording and leave the complete capture file for another process.

        Returns its metadata and its duration in seconds. Raises LabError if this recorder is not recording.
        """
        facts, seconds, spool_file = self._end()
        if spool_file >= 0:
            os.close(spool_file)
        return facts, seconds

    def _end(self) -> tuple[dict[str, str], float, int]:
        """The recording's metadata, its seconds, and the complete, locked capture file (-1: it is gone)."""
        from profiling_lab import _recorder

        if not self.is_recording:
            raise LabError("this recorder is not recording")
        self._schedule_runner.stop()
        if self._work is not None:
            self._reasons |= self._work.stop()
        self._wait_for_gpu()
        ended = time.perf_counter()
        link_state = _recorder.autograd_state() if self._autograd else "switched off"
        if link_state != "on":
            self._reasons["autograd"] = link_state
        # Kept open until it is converted, so that later changes at its path do not matter.
        spool_file = _recorder.duplicate_spool()
        try:
            facts = self._last_facts(ended - self._began)
            facts |= _recorder.stop(facts)
        except BaseException as error:
            if spool_file >= 0:
                os.close(spool_file)
            if isinstance(error, RuntimeError):
                raise LabError(str(error)) from error
            raise
        global _running
        self._process, _running = 0, None
        self._take_back()
        if "write_error" in facts:
            self._reasons["write"] = f"{facts['write_error']}: later events are lost"
        if "stopped_at_bytes" in facts:
            limit = int(facts["stopped_at_bytes"])
            self._reasons["size"] = f"the recording ended early, when its capture file had {limit:,} bytes"
        if "recorder_failures" in facts:
            self._reasons["memory"] = (
                f"the recorder ran out of memory {facts['recorder_failures']} times; see the dropped counts"
            )
        return facts, ended - self._began, spool_file

    def _summarize(self, meta: dict[str, str], seconds: float) -> RecordingSummary:
        return summarize(self.path, meta, self._reasons, seconds)

    def _attract_nvtx(self, module_path: str) -> bool:
        """Make every library's NVTX load our module, which happens at its first NVTX call."""
        if not self._nvtx:
            return False
        if other := other_profilers.foreign_nvtx_injection(module_path):
            self._reasons["nvtx"] = f"NVTX ranges go to {other}, because of {other_profilers.NVTX_VARIABLE}"
            return False
        if os.environ.get(other_profilers.NVTX_VARIABLE) == module_path:
            return True  # a dormant process has set this already
        os.environ[other_profilers.NVTX_VARIABLE] = module_path
        self._undo.append(lambda: (os.environ.pop(other_profilers.NVTX_VARIABLE, None), None)[1])
        return True

    def _first_facts(self, start_seconds: float) -> dict[str, str]:
        from profiling_lab import _recorder

        script = self._script if self._script is not None else sys.argv[0] if sys.argv else ""
        return {
            "recorder_version": _recorder.VERSION,
            "python_version": ".".join(str(part) for part in sys.version_info[:3]),
            "script": os.path.basename(script) or "interactive",
            PROCESS_NAME: os.path.basename(sys.executable) or "python",
            "overhead_start_ns": str(int(start_seconds * 1e9)),
            SYSTEM_INFO: json.dumps(gpu_facts.system()),
            **rank_in_job().facts(),
            **(source_text.conditions() if self._source else {}),
            "gpu_reason": self._reasons.get("gpu", ""),
            "stacks_state": self._reasons.get("stacks", "on"),
            "samples_per_second": str(self._sample_hz),
            "nvtx_state": self._reasons.get("nvtx", "on" if self._nvtx else "switched off"),
        }

    def _last_facts(self, seconds: float) -> dict[str, str]:
        facts = {"seconds": f"{seconds:.6f}", "finished": "yes"}
        schedule, runner = self._schedule_runner.schedule, self._schedule_runner
        if schedule != Schedule():
            facts |= {"schedule": str(schedule), "steps_counted": str(runner.steps)}
            if runner.plan is not None:
                facts |= runner.plan.facts()
            if not runner.windows:
                steps = f": {runner.steps} steps ended, by {schedule.step_by}" if schedule.by_steps else ""
                self._reasons["schedule"] = f"nothing was recorded; the schedule was {schedule}{steps}"
        if self._work is not None:
            facts |= self._work.facts()
        if not self._autograd:
            facts["autograd_link"] = "switched off"
        if "gpu" not in self._reasons:
            facts[GPU_INFO] = json.dumps(gpu_facts.gpus())
        if self._stacks:
            facts |= generated_code.origins() | cells.numbers()
        if self._allocations is not None:
            facts |= self._allocations.facts()
            if self._allocations.reason:
                self._reasons["allocations"] = self._allocations.reason
        if self._energy is not None:
            facts |= self._energy.facts()
            if self._energy.reason:
                self._reasons["energy"] = self._energy.reason
        if self._counters is not None:
            facts |= self._counters.facts()
            if self._counters.reason:
                self._reasons["counters"] = self._counters.reason
        torch: Any = sys.modules.get("torch")
        if torch is not None:
            facts["torch_version"] = str(torch.__version__)
        return facts

    def _wait_for_gpu(self) -> None:
        # An attach, on its own thread, may come during a graph capture.
        unseen = (
            self._give_way is not None
            and not self._schedule_runner.windows
            and threading.get_ident() != threading.main_thread().ident
        )
        if "gpu" not in self._reasons and (why := wait_for_gpu(unseen_captures=unseen)):
            self._reasons["sync"] = f"the GPU could not be synchronised: {why}"

    def _take_back(self) -> None:
        while self._undo:
            self._undo.pop()()

    def _stop_at_exit(self) -> None:
        # A forked child inherits this registration, but not the recording.
        if self.is_recording:
            self.stop()


_running: Recorder | None = None


def _make_others_give_way() -> None:
    if _running is not None and _running._give_way is not None:
        _running._give_way()


def step() -> None:
    """Mark the end of a step of the program, for a recording with a schedule of steps.

    After the first call, optimizer steps are no longer counted. Does nothing if nothing is recorded.
    """
    if _running is not None and _running.is_recording:  # a forked child records nothing
        _running._schedule_runner.called()


@with_options_of(Recorder)
def record(
    path: str | os.PathLike[str] | None = None, *, overwrite: bool = False, **options: Any
) -> Iterator[Recorder]:
    """Record the body of a `with` statement into `path`, an SQLite file with the schema of Nsight Systems.

    Without `path` a free name is chosen: recording.sqlite, recording-2.sqlite, ... `overwrite` allows to
    replace an existing file; further options are those of Recorder. In a job of several ranks each rank
    writes its own file (run.rank1.sqlite), under a free name if that exists; {rank} {local_rank} {pid}
    {host} {date} in `path` are filled in. Yields the recorder, with its `path` and, after the block, its
    `summary`. Raises what Recorder.start and stop raise. Exceptions of the body are passed on; a failure of
    stop() is then only a RuntimeWarning.
    """
    file, note = (
        (None, "") if path is None else output_name.in_this_process(os.fspath(path), overwrite=overwrite)
    )
    if note:
        sys.stderr.write(f"profiling-lab: {note}\n")  # not a warning, which could be turned into an error
    recorder = Recorder(file, overwrite=overwrite, **options)
    recorder.start()
    try:
        yield recorder
    except BaseException:
        # The caller must see the exception of the body; a failure of stop() is only a warning.
        if recorder.is_recording:
            try:
                recorder.stop()
            except LabError as error:
                warnings.warn(f"the recording could not be finished: {error}", RuntimeWarning, stacklevel=3)
        raise
    if recorder.is_recording:  # not stopped in the body, and not a forked child that returned from it
        recorder.stop()
