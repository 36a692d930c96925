# SPDX-License-Identifier: Apache-2.0
"""A recorder that always runs: whole steps, as often as a share of the program's time allows.

What a window costs is measured against the pauses around it. A window begins and ends between steps, so the
time of its steps, and of the step after it, holds everything: CUPTI and the callbacks while it is open,
opening and closing it, and the waits for the GPU, after which the program has to fill its queue again. What
is above the same number of paused steps is the cost. Programs have slow steps of their own (a checkpoint, an
evaluation), so medians are compared, and what one step may add is bounded.

What CUPTI costs while it is paused cannot be seen from inside, for there is no step without it. It is
estimated from the number of CUDA calls in a step, and counts as spent.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

STEPS_IN_A_WINDOW = 3
WARM_UP_STEPS = 1
PAUSED_CALL_S = 70e-9
"""of one CUDA call while CUPTI is attached and all off: 0 to 140 ns, measured (docs/notebook/recorder.md)"""
_PAUSED_STEPS_FIRST, _PAUSED_STEPS_BETWEEN = 20, 5  # fewer are no measure of a step
_PAUSED_STEPS_KEPT = _WINDOWS_KEPT = 64
_FIRST_TRANSITION_S, _FIRST_SHARE = 0.05, 0.2  # of the first window, before anything was measured
_STEP_ADDS_AT_MOST = (
    2.0  # times a paused step, beside what opening and closing took: the rest is the program's
)


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """Where the median lies with 95 % confidence, whatever the distribution; all values if they are few."""
    ordered = sorted(values)
    count = len(ordered)
    below = math.floor(count / 2 - 0.98 * math.sqrt(count))
    if below < 1:
        return ordered[0], ordered[-1]
    return ordered[below - 1], ordered[count - below]


def may_open(budget: float, plain_s: float, spent_s: float, next_s: float) -> bool:
    """Whether one more window fits: `plain_s` is what the program took without us so far."""
    return spent_s + next_s <= budget * plain_s


@dataclass(slots=True)
class Window:
    """One window as it happens. `steps`: its warm-up, its recorded steps and the step after it."""

    paused_s: float
    steps: list[float] = field(default_factory=list)
    transitions: list[float] = field(default_factory=list)

    def rest(self) -> float:
        """What the window cost beside opening and closing it; negative where the program overlaps those."""
        most = _STEP_ADDS_AT_MOST * self.paused_s
        pairs = zip(self.steps, self.transitions, strict=True)
        return sum(min(step - ours - self.paused_s, most) for step, ours in pairs)


@dataclass(slots=True)
class _Estimate:
    """What something cost: the median's account, and the ends of its interval."""

    low: float = 0.0
    middle: float = 0.0
    high: float = 0.0

    def add(self, low: float, middle: float, high: float) -> None:
        self.low, self.middle, self.high = self.low + low, self.middle + middle, self.high + high


class BudgetPlan:
    """Decides after every step whether the next one is recorded. Times are seconds of one steady clock.

    calls: how many CUDA calls were recorded so far, warm-up included.
    """

    def __init__(
        self,
        budget: float,
        *,
        warm_up: int = WARM_UP_STEPS,
        active: int = STEPS_IN_A_WINDOW,
        calls: Callable[[], int] = lambda: 0,
    ) -> None:
        self.budget, self.warm_up, self.active = budget, warm_up, active
        self.windows = 0
        self.steps = 0
        self._calls = calls
        self._calls_in_a_step = 0.0
        self._began = self._last = 0.0
        self._paused: deque[float] = deque(maxlen=_PAUSED_STEPS_KEPT)
        self._paused_since = 0
        self._open: Window | None = None
        self._transition = 0.0
        self._transitions = 0.0
        self._recent_transitions: deque[float] = deque(maxlen=_WINDOWS_KEPT)
        self._rests: list[float] = []
        self._settled = _Estimate()  # of the windows that are too long ago to be in the list
        self._rest = _Estimate()  # of all windows
        self._next = 0.0
        self._recorded: deque[float] = deque(maxlen=_WINDOWS_KEPT)
        self._over = False

    @property
    def in_window(self) -> int | None:
        """The number of the running step within its window, counted from its warm-up; None in a pause."""
        return None if self._open is None else len(self._open.steps)

    def records(self) -> bool:
        """Whether the running step is to be recorded; else it is a pause, or a window's warm-up or end."""
        at = self.in_window
        return at is not None and self.warm_up <= at < self.warm_up + self.active

    def warms_up(self) -> bool:
        at = self.in_window
        return at is not None and at < self.warm_up

    def step_ended(self, now: float) -> None:
        """A step ended at `now`; afterwards records() and warms_up() speak of the step that begins."""
        self.steps += 1
        took, self._last = now - self._last, now
        transition, self._transition = self._transition, 0.0
        if self.steps == 1:  # nobody saw it begin
            self._began = now
            return
        if self._open is not None:
            self._in_a_window(took, transition)
            return
        self._paused.append(took)
        self._paused_since += 1
        if not self._over and self._may_open():
            self._paused_since = 0
            self._open = Window(statistics.median(self._paused))

    def transition_took(self, seconds: float) -> None:
        """Opening or closing, at the end of a step, took so long; the step after it holds that time."""
        self._transition += seconds

    def window_did_not_open(self) -> None:
        """The file has reached its limit: there are no more windows."""
        self._open, self._over = None, True

    def _in_a_window(self, took: float, transition: float) -> None:
        window = self._open
        assert window is not None
        window.steps.append(took)
        window.transitions.append(transition)
        if len(window.steps) <= self.warm_up + self.active:
            return
        self._open = None
        self.windows += 1
        self._transitions += sum(window.transitions)
        self._recent_transitions.append(sum(window.transitions))
        self._recorded.append(statistics.median(window.steps[self.warm_up : -1]))
        self._calls_in_a_step = self._calls() / (self.windows * (self.warm_up + self.active))
        self._rests.append(window.rest())
        self._estimate()

    def _estimate(self) -> None:
        """Once in a window: the steps of a pause only compare."""
        low, high = median_interval(self._rests)
        middle = statistics.median(self._rests)
        below, above = median_interval(self._paused)
        unsure = (self.warm_up + self.active + 1) * (above - below) / 2
        low, high = low - unsure, high + unsure
        if len(self._rests) == 2 * _WINDOWS_KEPT:  # steps may grow: each window counts as its neighbours do
            del self._rests[:_WINDOWS_KEPT]
            self._settled.add(*(_WINDOWS_KEPT * each for each in (low, middle, high)))
        settled, count = self._settled, len(self._rests)
        self._rest = _Estimate(settled.low, settled.middle, settled.high)
        self._rest.add(count * low, count * middle, count * high)
        self._next = statistics.median(self._recent_transitions) + high

    def _may_open(self) -> bool:
        if self._paused_since < (_PAUSED_STEPS_BETWEEN if self.windows else _PAUSED_STEPS_FIRST):
            return False
        following, spent = self._next, self._spent(self._rest.high)
        if not self.windows:
            steps = self.warm_up + self.active + 1
            following = _FIRST_TRANSITION_S + _FIRST_SHARE * steps * statistics.median(self._paused)
        return may_open(self.budget, self._plain(spent), spent, following)

    def _spent(self, rest: float) -> float:
        return self._transitions + rest + self._paused_cost()

    def _paused_cost(self) -> float:
        return self.steps * self._calls_in_a_step * PAUSED_CALL_S

    def _plain(self, spent: float) -> float:
        return max(self._last - self._began - spent, 1e-9)

    def facts(self) -> dict[str, str]:
        """What was reached, for the file; {} if no window was measured."""
        if not self.windows:
            return {}
        spent = [self._spent(rest) for rest in (self._rest.middle, self._rest.low, self._rest.high)]
        shares = [max(0.0, ours / self._plain(ours)) for ours in spent]
        cost, least, most = shares
        unfinished = 0 if self._open is None else min(len(self._open.steps) - self.warm_up, self.active)
        recorded = self.windows * self.active + max(0, unfinished)
        windows = self.windows + (unfinished > 0)
        return {
            "budget_cost": f"{cost:.6f}",
            "budget_cost_low": f"{least:.6f}",
            "budget_cost_high": f"{most:.6f}",
            "budget_paused_cost_estimated": f"{self._paused_cost() / self._plain(0.0):.6f}",
            "budget_paused_step_ms": f"{statistics.median(self._paused) * 1e3:.3f}",
            "budget_recorded_step_ms": f"{statistics.median(self._recorded) * 1e3:.3f}",
            "budget_windows_measured": str(self.windows),
            "budget_steps_recorded": str(recorded),
            "budget_reached": f"recorded {recorded:,} of {self.steps:,} steps in {windows:,} "
            f"{'window' if windows == 1 else 'windows'}; cost {cost:.2%} "
            f"({least:.2%} to {most:.2%}) of {self.budget:.2%}".replace("%", " %"),
        }
