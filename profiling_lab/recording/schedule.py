# SPDX-License-Identifier: Apache-2.0
"""Schedules: which parts of a run are recorded, in steps or in seconds, and their execution."""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import Enum
from typing import TYPE_CHECKING, Any

from profiling_lab import _import_watch
from profiling_lab.errors import UsageError
from profiling_lab.recording import optimizer_steps
from profiling_lab.recording.signals import blocked, on_signal, signal_number

if TYPE_CHECKING:
    from profiling_lab.recording.budget import BudgetPlan


class RecorderState(Enum):
    """The state of the recorder during a step."""

    OFF = "off"
    WARM_UP = "warm-up"
    """CUPTI is enabled, so that its slow first records are over; nothing is kept"""
    RECORD = "record"


@dataclass(frozen=True, slots=True)
class Schedule:
    """`wait` steps off, then cycles of `warmup` and `active` steps, one every `every` steps.

    wait: steps before the first cycle. warmup: steps before each window whose records are discarded.
    active: steps per window; None: to the end of the run. repeat: number of windows; None: no limit. every:
    steps from the start of one window to the next; None: one directly after the other. delay_s, duration_s:
    a window in seconds, for programs without steps. signal: each signal with this name opens or closes a
    window (USR1). Steps, seconds and signal exclude each other. While a thread captures a CUDA graph, a
    window ends without synchronising streams other than the default stream and its own. step_by: what ends
    a step: "optimizer" (the first optimizer's step()), "calls" (profiling_lab.step()), or "nvtx:NAME" (the
    end of an NVTX range NAME). budget: record windows of `active` steps (default 3) as often as this
    overhead limit allows (0.01 is 1 %); it excludes the other options.

    Raises UsageError for a schedule that records nothing or contradicts itself.
    """

    wait: int = 0
    warmup: int = 0
    active: int | None = None
    repeat: int | None = None
    every: int | None = None
    delay_s: float = 0.0
    duration_s: float | None = None
    signal: str | None = None
    step_by: str = "optimizer"
    budget: float | None = None

    def __post_init__(self) -> None:
        numbers = {"wait": self.wait, "warmup": self.warmup, "delay": self.delay_s}
        for name, value in numbers.items():
            if value < 0:
                raise UsageError(f"{name} must be 0 or more, not {value}")
        at_least_one = {"active": self.active, "repeat": self.repeat, "every": self.every}
        for name, count in at_least_one.items():
            if count is not None and count < 1:
                raise UsageError(f"{name} must be at least 1, not {count}")
        for name, seconds in {"delay": self.delay_s, "duration": self.duration_s or 0.0}.items():
            if not seconds <= threading.TIMEOUT_MAX:
                raise UsageError(f"{name} must be a finite time, not {seconds:g} s")
        if self.duration_s is not None and self.duration_s <= 0:
            raise UsageError(f"duration must be more than 0 seconds, not {self.duration_s:g}")
        if self.signal is not None:
            signal_number(self.signal)
        if self.by_clock and self.by_steps:
            raise UsageError("delay and duration cannot be combined with steps")
        if self.signal is not None and (self.by_clock or self.by_steps):
            raise UsageError("signal cannot be combined with steps, delay or duration")
        if self.budget is not None:
            self._check_budget(self.budget)
        if self.active is None and (self.every is not None or self.repeat is not None):
            raise UsageError("repeated windows need a length: set the number of active steps")
        if self.every is not None and self.active is not None and self.every < self.active + self.warmup:
            raise UsageError(
                f"a window every {self.every} steps is too short for {self.warmup} + {self.active} steps of "
                "warm-up and recording"
            )
        kind, _, name = self.step_by.partition(":")
        if self.step_by not in ("optimizer", "calls") and not (kind == "nvtx" and name.strip()):
            raise UsageError(f"step_by must be optimizer, calls or nvtx:NAME, not {self.step_by!r}")

    def _check_budget(self, share: float) -> None:
        if not 0 < share <= 0.5:
            raise UsageError(
                f"a budget must be above 0 % and at most 50 % of the program's time, not {share:.4%}"
            )
        others = {"wait": self.wait, "every": self.every, "repeat": self.repeat, "signal": self.signal}
        named = [name for name, value in others.items() if value]
        if self.by_clock or named:
            raise UsageError(f"a budget cannot be combined with {', '.join(named) or 'delay or duration'}")

    @property
    def by_clock(self) -> bool:
        return self.delay_s > 0 or self.duration_s is not None

    @property
    def by_steps(self) -> bool:
        return bool(self.wait or self.warmup) or self.active is not None or self.budget is not None

    @classmethod
    def of_steps(cls, text: str, warmup: int = 1, **options: Any) -> Schedule:
        """The schedule for `A:B`, steps A up to but not including B, as in Python; B may be omitted.

        Raises UsageError for anything else.
        """
        first, colon, last = text.partition(":")
        try:
            begin = int(first or 0)
            end = int(last) if last else None
        except ValueError:
            begin = end = -1
        if not colon or begin < 0 or (end is not None and end <= begin):
            raise UsageError(
                f"steps must be A:B with 0 <= A < B (10:15 means five steps, the first step is 0), "
                f"not {text!r}"
            )
        warmup = min(warmup, begin)
        active = None if end is None else end - begin
        repeat = None if end is None else 1
        return cls(wait=begin - warmup, warmup=warmup, active=active, repeat=repeat, **options)

    def changes(self) -> dict[str, Any]:
        """The values that differ from the defaults, for Schedule(**changes) in another process."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        return {name: value for name, value in values.items() if value != getattr(Schedule(), name)}

    def phase(self, step: int) -> RecorderState:
        """The state during the step with this number, counted from 0, unless a budget decides."""
        if self.budget is not None:
            return RecorderState.OFF
        since = step - self.wait
        if since < 0:
            return RecorderState.OFF
        if self.active is None:
            return RecorderState.RECORD if since >= self.warmup else RecorderState.WARM_UP
        cycle = self.every or self.warmup + self.active
        number, within = divmod(since, cycle)
        if (self.repeat is not None and number >= self.repeat) or within >= self.warmup + self.active:
            return RecorderState.OFF
        return RecorderState.RECORD if within >= self.warmup else RecorderState.WARM_UP

    def __str__(self) -> str:
        if self.signal is not None:
            return f"between signals {self.signal}"
        if self.budget is not None:
            return f"as often as {100 * self.budget:g} % overhead allows"
        if self.by_clock:
            length = "to the end" if self.duration_s is None else f"for {self.duration_s:g} s"
            return f"from {self.delay_s:g} s on {length}"
        begin = self.wait + self.warmup
        if self.active is None:
            return f"from step {begin} on" if begin else "all of the run"
        text = f"steps {begin}:{begin + self.active}"
        if self.repeat == 1:
            return text
        again = f"every {self.every or self.warmup + self.active} steps"
        return f"{text} and again {again}" + (f", {self.repeat} times" if self.repeat else "")


class ScheduleRunner:
    """Executes a schedule on a running recording. Steps may end on any thread."""

    def __init__(
        self,
        schedule: Schedule,
        wait_for_gpu: Callable[[], None],
        on_phase: Callable[[RecorderState], None] | None = None,
        on_step: Callable[[int, bool], None] | None = None,
    ) -> None:
        """on_step: called when a step has ended with the number of ended steps, and whether the next one is
        recorded.
        """
        self.schedule = schedule
        self._on_phase, self._on_step = on_phase, on_step
        self.plan = _budget_plan(schedule)
        self.steps = 0
        """the number of ended steps"""
        self.windows = 0
        self._wait_for_gpu = wait_for_gpu
        self._phase = RecorderState.OFF if self.begins_paused else RecorderState.RECORD
        self._lock = threading.RLock()  # reentrant: a signal may interrupt the thread that holds it
        self._optimizer: weakref.ref[Any] | None = None
        self._told = False
        self._over = False
        self._process = os.getpid()
        self._undo: list[Callable[[], None]] = []

    @property
    def begins_paused(self) -> bool:
        """Whether the recording must start paused. Without a schedule the whole run is one window."""
        return self.schedule != Schedule()

    def start(self) -> None:
        """The recording has started: enter the state of step 0."""
        schedule = self.schedule
        if self._counts_steps:
            if schedule.step_by == "optimizer":
                self._undo.append(_import_watch.when_imported(self._follow_optimizers))
            elif schedule.step_by.startswith("nvtx:"):
                self._follow_ranges(schedule.step_by[len("nvtx:") :].strip())
        if schedule.signal is not None:
            self._undo.append(on_signal(schedule.signal, self.toggle))
        elif schedule.by_clock:
            self._at(schedule.delay_s, self._open_by_clock)
        else:
            self._enter(schedule.phase(0))

    def stop(self) -> None:
        """Stop all changes, including those of a timer that has just expired. Safe to call twice."""
        with self._lock:
            self._over = True
            while self._undo:
                self._undo.pop()()

    @property
    def _counts_steps(self) -> bool:
        return self.schedule.by_steps or self._on_step is not None

    @property
    def _elsewhere(self) -> bool:
        """Whether this is a forked child, which records nothing, and whose lock may never be released."""
        return os.getpid() != self._process

    def called(self) -> None:
        """profiling_lab.step() was called: from now on only these calls count."""
        if self._elsewhere:
            return
        with self._lock:
            counted_already = not self._told and self.steps > 0  # by the optimizer, just before
            self._told = True
            if self._counts_steps and not counted_already:
                self._step_ended()

    def toggle(self) -> None:
        """Open a window if none is open, else close it."""
        if self._elsewhere:
            return
        with self._lock:
            self._enter(RecorderState.OFF if self._phase is RecorderState.RECORD else RecorderState.RECORD)

    def pause(self) -> None:
        """Close the open window, if any."""
        if not self._elsewhere:
            with self._lock:
                self._enter(RecorderState.OFF)

    def resume(self) -> None:
        """Open a window, if none is open."""
        if not self._elsewhere:
            with self._lock:
                self._enter(RecorderState.RECORD)

    def _step_ended(self) -> None:
        if self._elsewhere:
            return
        with self._lock:
            self.steps += 1
            if self.plan is not None:
                self._follow_budget(self.plan)
            elif self.schedule.by_steps:
                self._enter(self.schedule.phase(self.steps))
            if self._on_step is not None and not self._over:
                self._on_step(self.steps, self._phase is RecorderState.RECORD)

    def _follow_budget(self, plan: BudgetPlan) -> None:
        began = time.perf_counter()
        plan.step_ended(began)
        phase = (
            RecorderState.RECORD
            if plan.records()
            else RecorderState.WARM_UP
            if plan.warms_up()
            else RecorderState.OFF
        )
        if phase is self._phase:
            return
        windows = self.windows
        self._enter(phase)
        plan.transition_took(time.perf_counter() - began)
        if phase is RecorderState.RECORD and self.windows == windows:
            plan.window_did_not_open()

    def _enter(self, phase: RecorderState) -> None:
        from profiling_lab import _recorder

        if phase is self._phase or self._over:
            return
        if self._phase is RecorderState.RECORD:
            # The window's work must end before CUPTI is disabled, or its records are lost.
            _recorder.close_window()
            self._wait_for_gpu()
        if phase is RecorderState.OFF:
            _recorder.pause()
        elif phase is RecorderState.WARM_UP:
            _recorder.warm_up()
        else:
            # Work that still runs belongs to no window: unrecorded it would look like idle time, and work
            # of a warm-up would be in the window without its launches.
            self._wait_for_gpu()
            self.windows += _recorder.open_window(self.steps if self.schedule.by_steps else -1)
        self._phase = phase
        if self._on_phase is not None:
            self._on_phase(phase)

    def _follow_optimizers(self, _: Any) -> None:
        self._undo.append(optimizer_steps.follow(self._optimizer_stepped))

    def _optimizer_stepped(self, optimizer: Any) -> None:
        """Count a step. Only the first of several optimizers (as in a GAN) counts, and no step during
        capture.
        """
        if self._told:
            return
        first = self._optimizer() if self._optimizer is not None else None
        if first is None:
            self._optimizer = weakref.ref(optimizer)
        elif first is not optimizer:
            return
        cuda = getattr(sys.modules.get("torch"), "cuda", None)
        if cuda is not None and cuda.is_initialized() and cuda.is_current_stream_capturing():
            return
        self._step_ended()

    def _follow_ranges(self, name: str) -> None:
        from profiling_lab import _recorder

        _recorder.watch_ranges(name, self._step_ended)
        self._undo.append(lambda: _recorder.watch_ranges("", None))

    def _open_by_clock(self) -> None:
        self.resume()
        with self._lock:
            if self.schedule.duration_s is not None and not self._over:
                self._at(self.schedule.duration_s, self.pause)

    def _at(self, seconds: float, action: Callable[[], None]) -> None:
        if seconds <= 0:
            action()
            return
        timer = threading.Timer(seconds, action)
        timer.daemon = True
        with blocked():
            timer.start()
        self._undo.append(timer.cancel)


def _budget_plan(schedule: Schedule) -> BudgetPlan | None:
    if schedule.budget is None:
        return None
    from profiling_lab.recording import budget  # do not import it in a dormant process

    return budget.BudgetPlan(
        schedule.budget,
        warm_up=schedule.warmup,
        active=schedule.active or budget.STEPS_IN_A_WINDOW,
        calls=_calls_so_far,
    )


def _calls_so_far() -> int:
    from profiling_lab import _recorder

    return int(_recorder.status()["calls"])
