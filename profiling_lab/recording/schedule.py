# SPDX-License-Identifier: Apache-2.0
"""Which stretches of a run are recorded: a plan in steps or in seconds, and what carries it out."""

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

from profiling_lab.errors import UsageError
from profiling_lab.recording import optimizer_steps, torch_import
from profiling_lab.recording.signals import blocked, on_signal, signal_number

if TYPE_CHECKING:
    from profiling_lab.recording.budget import BudgetPlan


class Phase(Enum):
    """What the recorder does during a step."""

    OFF = "off"
    WARM_UP = "warm-up"
    """CUPTI works, so that its first, slow records are behind it; nothing is kept"""
    RECORD = "record"


@dataclass(frozen=True, slots=True)
class Schedule:
    """A plan: `wait` steps off, then cycles of `warmup` and `active` steps, one every `every` steps.

    wait: steps before the first cycle. warmup: steps before each window in which records are thrown away.
    active: steps that a window records; None: to the end of the run. repeat: how many windows; None: no
    limit. every: steps from the start of one window to the next; None: they follow each other.
    delay_s, duration_s: the same by the clock, for programs without steps. signal: every signal of this name
    opens a window or closes it (USR1). Steps, clock and signal exclude each other. While any thread captures
    a CUDA graph, a window ends without waiting for streams other than the default one and its own.
    step_by: what ends a step: "optimizer" (the first optimizer's step()), "calls" (profiling_lab.step()), or
    "nvtx:NAME" (the end of an NVTX range NAME). budget: windows of `active` steps (3) come as often as this
    share of the program's time allows (0.01); it excludes the other plans.

    Raises UsageError for a plan that records nothing or says two things.
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
                raise UsageError(f"{name} must be a time that a clock can show, not {seconds:g} s")
        if self.duration_s is not None and self.duration_s <= 0:
            raise UsageError(f"duration must be more than 0 seconds, not {self.duration_s:g}")
        if self.signal is not None:
            signal_number(self.signal)
        if self.by_clock and self.by_steps:
            raise UsageError("a schedule goes by steps or by the clock: delay and duration exclude the rest")
        if self.signal is not None and (self.by_clock or self.by_steps):
            raise UsageError("a signal opens and closes windows itself: it excludes steps and the clock")
        if self.budget is not None:
            self._check_budget(self.budget)
        if self.active is None and (self.every is not None or self.repeat is not None):
            raise UsageError("windows that come again need a length: say how many steps are active")
        if self.every is not None and self.active is not None and self.every < self.active + self.warmup:
            raise UsageError(
                f"a window every {self.every} steps is too often for {self.warmup} + {self.active} steps of "
                "warm-up and recording"
            )
        kind, _, name = self.step_by.partition(":")
        if self.step_by not in ("optimizer", "calls") and not (kind == "nvtx" and name.strip()):
            raise UsageError(f"steps are found by optimizer, calls or nvtx:NAME, not by {self.step_by!r}")

    def _check_budget(self, share: float) -> None:
        if not 0 < share <= 0.5:
            raise UsageError(
                f"a budget is a share above 0 % and up to 50 % of the program's time, not {share:.4%}"
            )
        others = {"wait": self.wait, "every": self.every, "repeat": self.repeat, "signal": self.signal}
        named = [name for name, value in others.items() if value]
        if self.by_clock or named:
            raise UsageError(
                f"a budget says itself when windows begin: it excludes {', '.join(named) or 'the clock'}"
            )

    @property
    def by_clock(self) -> bool:
        return self.delay_s > 0 or self.duration_s is not None

    @property
    def by_steps(self) -> bool:
        return bool(self.wait or self.warmup) or self.active is not None or self.budget is not None

    @classmethod
    def of_steps(cls, text: str, warmup: int = 1, **options: Any) -> Schedule:
        """The plan of `A:B`, steps A up to but not including B, as Python counts; an open end is allowed.

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
                f"steps are given as A:B with 0 <= A < B (10:15 are five steps, the first of all is 0), "
                f"not {text!r}"
            )
        warmup = min(warmup, begin)
        active = None if end is None else end - begin
        repeat = None if end is None else 1
        return cls(wait=begin - warmup, warmup=warmup, active=active, repeat=repeat, **options)

    def changes(self) -> dict[str, Any]:
        """What differs from the whole run, for Schedule(**changes) in another process."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        return {name: value for name, value in values.items() if value != getattr(Schedule(), name)}

    def phase(self, step: int) -> Phase:
        """What happens during the step with this number, counted from 0, unless a budget decides that."""
        if self.budget is not None:
            return Phase.OFF
        since = step - self.wait
        if since < 0:
            return Phase.OFF
        if self.active is None:
            return Phase.RECORD if since >= self.warmup else Phase.WARM_UP
        cycle = self.every or self.warmup + self.active
        number, within = divmod(since, cycle)
        if (self.repeat is not None and number >= self.repeat) or within >= self.warmup + self.active:
            return Phase.OFF
        return Phase.RECORD if within >= self.warmup else Phase.WARM_UP

    def __str__(self) -> str:
        if self.signal is not None:
            return f"between signals {self.signal}"
        if self.budget is not None:
            return f"as often as {100 * self.budget:g} % of the time allow"
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


class Conductor:
    """Carries a schedule out on one running recording. Steps may end on any thread."""

    def __init__(
        self,
        schedule: Schedule,
        wait_for_gpu: Callable[[], None],
        on_phase: Callable[[Phase], None] | None = None,
    ) -> None:
        self.schedule = schedule
        self._on_phase = on_phase
        self.plan = _budget_plan(schedule)
        self.steps = 0
        """steps that have ended"""
        self.windows = 0
        self._wait_for_gpu = wait_for_gpu
        self._phase = Phase.OFF if self.begins_paused else Phase.RECORD
        self._lock = threading.RLock()  # a signal may come while its own thread holds it
        self._optimizer: weakref.ref[Any] | None = None
        self._told = False
        self._over = False
        self._process = os.getpid()
        self._undo: list[Callable[[], None]] = []

    @property
    def begins_paused(self) -> bool:
        """Whether the recording must be started in a pause. Without a plan all of the run is one window."""
        return self.schedule != Schedule()

    def start(self) -> None:
        """The recording runs: begin with what the schedule says of step 0."""
        schedule = self.schedule
        if schedule.signal is not None:
            self._undo.append(on_signal(schedule.signal, self.toggle))
            return
        if schedule.by_clock:
            self._at(schedule.delay_s, self._open_by_clock)
            return
        if schedule.by_steps:
            if schedule.step_by == "optimizer":
                self._undo.append(torch_import.when_imported(self._follow_optimizers))
            elif schedule.step_by.startswith("nvtx:"):
                self._follow_ranges(schedule.step_by[len("nvtx:") :].strip())
        self._enter(schedule.phase(0))

    def stop(self) -> None:
        """Nothing changes any more, not even by a timer that has just run out. Safe to call twice."""
        with self._lock:
            self._over = True
            while self._undo:
                self._undo.pop()()

    @property
    def _elsewhere(self) -> bool:
        """In a forked child, which records nothing, and whose lock a thread may have held for ever."""
        return os.getpid() != self._process

    def called(self) -> None:
        """The program itself says that a step has ended: from now on its word alone counts."""
        if self._elsewhere:
            return
        with self._lock:
            counted_already = not self._told and self.steps > 0  # by the optimizer, a moment ago
            self._told = True
            if self.schedule.by_steps and not counted_already:
                self._step_ended()

    def toggle(self) -> None:
        """Open a window if none is open, else close it."""
        if self._elsewhere:
            return
        with self._lock:
            self._enter(Phase.OFF if self._phase is Phase.RECORD else Phase.RECORD)

    def pause(self) -> None:
        """Close the window that is open, if any."""
        if not self._elsewhere:
            with self._lock:
                self._enter(Phase.OFF)

    def resume(self) -> None:
        """Open a window, if none is open."""
        if not self._elsewhere:
            with self._lock:
                self._enter(Phase.RECORD)

    def _step_ended(self) -> None:
        if self._elsewhere:
            return
        with self._lock:
            self.steps += 1
            if self.plan is None:
                self._enter(self.schedule.phase(self.steps))
            else:
                self._follow_budget(self.plan)

    def _follow_budget(self, plan: BudgetPlan) -> None:
        began = time.perf_counter()
        plan.step_ended(began)
        phase = Phase.RECORD if plan.records() else Phase.WARM_UP if plan.warms_up() else Phase.OFF
        if phase is self._phase:
            return
        windows = self.windows
        self._enter(phase)
        plan.transition_took(time.perf_counter() - began)
        if phase is Phase.RECORD and self.windows == windows:
            plan.window_did_not_open()

    def _enter(self, phase: Phase) -> None:
        from profiling_lab import _recorder

        if phase is self._phase or self._over:
            return
        if self._phase is Phase.RECORD:
            # What the window launched must be done before CUPTI is switched off: it would be lost.
            _recorder.close_window()
            self._wait_for_gpu()
        if phase is Phase.OFF:
            _recorder.pause()
        elif phase is Phase.WARM_UP:
            _recorder.warm_up()
        else:
            # What still runs belongs to no window: unrecorded it would look like idle time, and of a warm-up
            # it would stand in the window without its launches.
            self._wait_for_gpu()
            self.windows += _recorder.open_window(self.steps if self.schedule.by_steps else -1)
        self._phase = phase
        if self._on_phase is not None:
            self._on_phase(phase)

    def _follow_optimizers(self, _: Any) -> None:
        self._undo.append(optimizer_steps.follow(self._optimizer_stepped))

    def _optimizer_stepped(self, optimizer: Any) -> None:
        """Of several optimizers (a GAN's) the first counts, and while a graph is captured nothing runs."""
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
    from profiling_lab.recording import budget  # not in a process that only waits

    return budget.BudgetPlan(
        schedule.budget,
        warm_up=schedule.warmup,
        active=schedule.active or budget.STEPS_IN_A_WINDOW,
        calls=_calls_so_far,
    )


def _calls_so_far() -> int:
    from profiling_lab import _recorder

    return int(_recorder.status()["calls"])
