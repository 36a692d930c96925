# SPDX-License-Identifier: Apache-2.0
"""A recorder that always runs: when it opens windows, by a clock of the test's, then under the fake CUPTI."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from cli.script_runs import record, write

from profiling_lab.errors import UsageError
from profiling_lab.recording import Schedule
from profiling_lab.recording.budget import BudgetPlan, may_open, median_interval


@dataclass
class Run:
    """A program whose steps take what `step` says, and what recording adds to it, all known."""

    plan: BudgetPlan
    plain_s: float = 0.0
    ours_s: float = 0.0
    recorded: int = 0

    def go(
        self,
        steps: int,
        step: Callable[[int], float],
        *,
        slower: float = 0.1,
        transition: float = 0.002,
        ends_at_most: float = float("inf"),
    ) -> None:
        now = 100.0
        for number in range(steps):
            plain = step(number)
            ours = min(plain, 0.1) * slower if self.plan.records() or self.plan.warms_up() else 0.0
            self.recorded += self.plan.records()
            before = (self.plan.records(), self.plan.warms_up())
            now += plain + ours
            self.plain_s, self.ours_s = self.plain_s + plain, self.ours_s + ours
            self.plan.step_ended(now)
            if (self.plan.records(), self.plan.warms_up()) != before:
                self.plan.transition_took(transition)
                now += transition
                self.ours_s += transition

    @property
    def cost(self) -> float:
        return self.ours_s / self.plain_s


def steady(_: int) -> float:
    return 0.030


def noisy(number: int) -> float:
    return 0.030 * random.Random(number).lognormvariate(0, 0.05)


@pytest.mark.parametrize("budget", [0.001, 0.01, 0.05])
@pytest.mark.parametrize("step", [steady, noisy])
def test_the_budget_is_kept_and_used(budget: float, step: Callable[[int], float]) -> None:
    run = Run(BudgetPlan(budget))
    run.go(60_000, step)
    assert run.plan.windows >= 5
    assert 0.6 * budget < run.cost <= budget * 1.02
    facts = run.plan.facts()
    assert float(facts["budget_cost_low"]) <= float(facts["budget_cost"]) <= float(facts["budget_cost_high"])
    assert float(facts["budget_cost_low"]) * 0.95 <= run.cost <= float(facts["budget_cost_high"]) * 1.05
    assert int(facts["budget_steps_recorded"]) == run.recorded


@pytest.mark.parametrize("steps", [50, 200, 1000, 5000])
def test_the_budget_is_kept_from_the_first_window_on(steps: int) -> None:
    run = Run(BudgetPlan(0.01))
    run.go(steps, steady)
    assert run.cost <= 0.01


def test_what_a_window_costs_decides_how_many_there_are() -> None:
    windows = []
    for slower, transition in ((0.05, 0.001), (0.4, 0.001), (0.05, 0.1)):
        run = Run(BudgetPlan(0.01))
        run.go(20_000, steady, slower=slower, transition=transition)
        assert run.cost <= 0.0101
        windows.append(run.plan.windows)
    assert windows[0] > 3 * windows[1] and windows[0] > 3 * windows[2] > 0


def test_slow_steps_of_the_program_are_not_taken_for_ours() -> None:
    run = Run(BudgetPlan(0.01))
    run.go(40_000, lambda number: 20.0 if number % 1000 == 999 else 0.030)  # a checkpoint
    calm = Run(BudgetPlan(0.01))
    calm.go(40_000, steady)
    assert run.plan.windows > 0.8 * calm.plan.windows
    # More is allowed, for the program takes longer; what is said must be what was.
    assert run.cost <= 0.0101
    assert float(run.plan.facts()["budget_cost"]) == pytest.approx(run.cost, rel=0.2)


def test_a_first_window_in_the_middle_of_a_checkpoint() -> None:
    run = Run(BudgetPlan(0.01))
    run.go(20_000, lambda number: 20.0 if run.plan.windows == 0 and run.plan.records() else 0.030)
    assert run.plan.windows > 20


def test_a_step_that_grows_is_compared_with_its_neighbours() -> None:
    run = Run(BudgetPlan(0.01))
    run.go(40_000, lambda number: 0.010 + 0.090 * number / 40_000)
    assert 0.005 < run.cost <= 0.0101
    assert float(run.plan.facts()["budget_cost"]) == pytest.approx(run.cost, rel=0.2)


def test_what_cupti_costs_while_it_is_paused_counts() -> None:
    """3,572 calls in a step of 31.7 ms: an estimated 0.8 %, which leaves 0.2 % for windows."""
    plan = BudgetPlan(0.01, calls=lambda: plan.windows * 4 * 3572)
    run = Run(plan)
    run.go(40_000, lambda _: 0.0317)
    free = Run(BudgetPlan(0.01))
    free.go(40_000, lambda _: 0.0317)
    assert 0 < run.plan.windows < 0.4 * free.plan.windows
    assert run.cost <= 0.0025
    assert float(plan.facts()["budget_paused_cost_estimated"]) == pytest.approx(0.0079, rel=0.05)


def test_a_pause_that_costs_more_than_the_budget_records_once() -> None:
    plan = BudgetPlan(0.001, calls=lambda: plan.windows * 4 * 3572)
    run = Run(plan)
    run.go(40_000, lambda _: 0.0317)
    assert plan.windows == 1
    assert float(plan.facts()["budget_cost"]) > 0.001, "and says so"


def test_a_run_that_is_too_short_records_nothing_and_claims_nothing() -> None:
    run = Run(BudgetPlan(0.01))
    run.go(15, steady)
    assert run.ours_s == 0 and run.plan.facts() == {}


def test_a_full_file_ends_it() -> None:
    run = Run(BudgetPlan(0.05))
    run.go(5_000, steady)
    before = run.plan.windows
    run.plan.window_did_not_open()
    run.go(5_000, steady)
    assert run.plan.windows == before > 0


@pytest.mark.parametrize(
    ("spent", "following", "expected"), [(0.5, 0.5, True), (0.5, 0.6, False), (1.1, 0.0, False)]
)
def test_may_open(spent: float, following: float, expected: bool) -> None:
    assert may_open(0.01, 100.0, spent, following) is expected


def test_the_interval_of_a_median() -> None:
    assert median_interval([3.0]) == (3.0, 3.0)
    assert median_interval([3.0, 1.0, 2.0]) == (1.0, 3.0)
    low, high = median_interval([float(n) for n in range(101)])
    assert low == 39.0 and high == 61.0
    inside = 0
    for seed in range(300):
        values = [random.Random(seed * 1000 + n).expovariate(1) for n in range(30)]
        low, high = median_interval(values)
        inside += low <= 0.6931 <= high
    assert inside >= 270


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"budget": 0.0}, "must be above 0 %"),
        ({"budget": 0.7}, "at most 50 %"),
        ({"budget": float("nan")}, "a budget must"),
        ({"budget": 0.01, "every": 5, "active": 2}, "cannot be combined with every"),
        ({"budget": 0.01, "delay_s": 5.0}, "cannot be combined with"),
        ({"budget": 0.01, "signal": "USR1"}, "cannot be combined with"),
    ],
)
def test_budgets_that_make_no_sense(options: dict[str, Any], part: str) -> None:
    with pytest.raises(UsageError) as error:
        Schedule(**options)
    assert part in str(error.value)


PROGRAM = """
import sys, time, profiling_lab
from profiling_lab import _recorder
from fake_driver import Fake
fake = Fake()
clock, told = 0.0, False
time.perf_counter = lambda: clock
for step in range(int(sys.argv[1])):
    fake.kernel(f"step{step}")
    while step > 1000 and fake.kind_enabled(10) and "full" in sys.argv and not told:
        told = "stopped_at_bytes" in _recorder.status()
    clock += 0.030 + (0.003 if fake.kind_enabled(10) else 0.0)
    profiling_lab.step()
"""


def run(folder: Any, library: Any, *options: str, steps: int = 3000, arguments: tuple[str, ...] = ()) -> Any:
    from pathlib import Path

    from package_root import PACKAGE_ROOT

    write(folder, PROGRAM)
    here = Path(__file__).resolve().parent
    return record(
        folder,
        *("-o", "run.sqlite", *options, "--step-by", "calls", "script.py", str(steps), *arguments),
        cupti=str(library),
        PYTHONPATH=f"{PACKAGE_ROOT}:{here}",
    )


def test_windows_of_whole_steps_and_what_was_reached(fake_library: Any, tmp_path: Any, query: Any) -> None:
    (tmp_path / "out.sqlite").symlink_to("run.sqlite")
    done = run(tmp_path, fake_library, "--budget", "1%")
    assert done.code == 0, done.err
    meta = dict(query("SELECT name, value FROM PYREC_META"))
    windows = query("SELECT firstStep, start < end FROM PYREC_WINDOW ORDER BY start")
    assert len(windows) > 5 and all(ordered for _, ordered in windows)
    kernels = query(
        "SELECT s.value FROM CUPTI_ACTIVITY_KIND_KERNEL k JOIN StringIds s ON s.id = k.shortName"
        " ORDER BY k.start"
    )
    first = [int(step) for step, _ in windows]
    assert [name for (name,) in kernels] == [f"step{step + i}" for step in first for i in range(3)]
    assert meta["schedule"] == "as often as 1 % overhead allows" and meta["steps_counted"] == "3000"
    assert meta["budget_steps_recorded"] == str(len(kernels))
    # Of four steps each 3 ms, and no more: the clock does not advance while windows open and close.
    assert float(meta["budget_cost"]) == pytest.approx(4 * 0.003 * len(windows) / 90, rel=0.05)
    assert 0.005 < float(meta["budget_cost"]) <= 0.01
    assert meta["budget_reached"] in done.said and f"of 3,000 steps in {len(windows)} windows" in done.said


def test_a_size_bounds_it(fake_library: Any, tmp_path: Any, query: Any) -> None:
    (tmp_path / "out.sqlite").symlink_to("run.sqlite")
    done = run(tmp_path, fake_library, "--budget", "10%", "--max-size", "6KB", arguments=("full",))
    assert done.code == 0 and "ended early" in done.said, done.said
    assert query("SELECT max(firstStep) FROM PYREC_WINDOW") < [(1100,)], "of 3,000 steps"


def test_too_few_steps_for_a_window(fake_library: Any, tmp_path: Any) -> None:
    done = run(tmp_path, fake_library, "--budget", "0.1%", steps=30)
    assert done.code == 0 and "nothing was recorded; the schedule was as often as 0.1 %" in done.said


def test_arguments(tmp_path: Any) -> None:
    write(tmp_path, "")
    for option, part in (("1%%", "expected a share"), ("0", "above 0 %"), ("99%", "at most 50 %")):
        done = record(tmp_path, "--budget", option, "script.py")
        assert done.code == 2 and part in done.err + done.said, (option, done)
    done = record(tmp_path, "--budget", "1%", "--steps", "1:2", "script.py")
    assert done.code == 2 and "cannot be combined with --steps" in done.err
