# SPDX-License-Identifier: Apache-2.0
"""A budget for a recorder that always runs: whole steps, as often as an overhead limit allows.

The overhead of a window is measured against the paused steps around it. A window begins and ends between
steps, so its steps and the step after it include everything: CUPTI and the callbacks, opening and closing
the window, and the synchronisation with the GPU, after which the program must fill its launch queue again.
The overhead is the difference to the same number of paused steps. Programs have slow steps of their own (a
checkpoint, an evaluation), so medians are compared, and the contribution of one step is bounded.

The overhead of paused CUPTI cannot be measured from inside, because no step runs without it. It is estimated
from the number of CUDA calls per step, and counts against the budget.
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
"""per CUDA call while CUPTI is attached and paused: measured, 0 to 140 ns (csrc/recorder/README.md)"""
_PAUSED_STEPS_FIRST, _PAUSED_STEPS_BETWEEN = 20, 5  # fewer are too noisy
_PAUSED_STEPS_KEPT = _WINDOWS_KEPT = 64
_FIRST_TRANSITION_S, _FIRST_SHARE = 0.05, 0.2  # for the first window, before anything was measured
_STEP_ADDS_AT_MOST = (
    2.0  # times a paused step, besides opening and closing; anything above is the program's own
)


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """The 95 % confidence interval of the median, for any distribution; the full range for few values."""
    ordered = sorted(values)
    count = len(ordered)
    below = math.floor(count / 2 - 0.98 * math.sqrt(count))
    if below < 1:
        return ordered[0], ordered[-1]
    return ordered[below - 1], ordered[count - below]


def may_open(budget: float, plain_s: float, spent_s: float, next_s: float) -> bool:
    """Whether one more window fits the budget. `plain_s`: the program's time so far without the recorder."""
    return spent_s + next_s <= budget * plain_s


@dataclass(slots=True)
class BudgetWindow:
    """The current window. `steps`: its warm-up, its recorded steps and the step after it."""

    paused_s: float
    steps: list[float] = field(default_factory=list)
    transitions: list[float] = field(default_factory=list)

    def rest(self) -> float:
        """The overhead besides opening and closing; negative if the program overlaps those."""
        most = _STEP_ADDS_AT_MOST * self.paused_s
        pairs = zip(self.steps, self.transitions, strict=True)
        return sum(min(step - ours - self.paused_s, most) for step, ours in pairs)


@dataclass(slots=True)
class _Estimate:
    """An overhead estimate: the median, and the ends of its confidence interval."""

    low: float = 0.0
    middle: float = 0.0
    high: float = 0.0

    def add(self, low: float, middle: float, high: float) -> None:
        self.low, self.middle, self.high = self.low + low, self.middle + middle, self.high + high


class BudgetPlan:
    """Decides after every step whether the next one is recorded. Times are seconds of a monotonic clock.

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
        self._open: BudgetWindow | None = None
        self._transition = 0.0
        self._transitions = 0.0
        self._recent_transitions: deque[float] = deque(maxlen=_WINDOWS_KEPT)
        self._rests: list[float] = []
        self._older = _Estimate()  # of older windows, which are no longer in the list
        self._rest = _Estimate()  # of all windows
        self._next = 0.0
        self._recorded: deque[float] = deque(maxlen=_WINDOWS_KEPT)
        self._over = False

    @property
    def in_window(self) -> int | None:
        """The index of the current step in its window, counted from the warm-up; None in a pause."""
        return None if self._open is None else len(self._open.steps)

    def records(self) -> bool:
        """Whether the current step is recorded; else it is paused, or a window's warm-up or end."""
        at = self.in_window
        return at is not None and self.warm_up <= at < self.warm_up + self.active

    def warms_up(self) -> bool:
        at = self.in_window
        return at is not None and at < self.warm_up

    def step_ended(self, now: float) -> None:
        """A step ended at `now`; from here on records() and warms_up() are about the next step."""
        self.steps += 1
        took, self._last = now - self._last, now
        transition, self._transition = self._transition, 0.0
        if self.steps == 1:  # its begin was not seen
            self._began = now
            return
        if self._open is not None:
            self._in_a_window(took, transition)
            return
        self._paused.append(took)
        self._paused_since += 1
        if not self._over and self._may_open():
            self._paused_since = 0
            self._open = BudgetWindow(statistics.median(self._paused))

    def transition_took(self, seconds: float) -> None:
        """The time of opening or closing a window at the end of a step; it is part of the next step."""
        self._transition += seconds

    def window_did_not_open(self) -> None:
        """The file reached its limit: no more windows are opened."""
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
        """Update the estimate, once per window."""
        low, high = median_interval(self._rests)
        middle = statistics.median(self._rests)
        below, above = median_interval(self._paused)
        unsure = (self.warm_up + self.active + 1) * (above - below) / 2
        low, high = low - unsure, high + unsure
        if (
            len(self._rests) == 2 * _WINDOWS_KEPT
        ):  # step times may drift: older windows are folded into one estimate
            del self._rests[:_WINDOWS_KEPT]
            self._older.add(*(_WINDOWS_KEPT * each for each in (low, middle, high)))
        older, count = self._older, len(self._rests)
        self._rest = _Estimate(older.low, older.middle, older.high)
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
        """The result of the budget for the file's metadata; {} if no window was measured."""
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
