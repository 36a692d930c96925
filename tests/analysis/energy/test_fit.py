# SPDX-License-Identifier: Apache-2.0
"""Power by line from the counter of a simulated GPU whose power is known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from made_traces.energy import Machine, Phase, Run, simulate

from profiling_lab.analysis.energy.counter import Counter
from profiling_lab.analysis.energy.device import LEAST_INTERVALS, Fitted, Usage, energy_of
from profiling_lab.analysis.energy.shares import passed_ns
from profiling_lab.trace.extras import EnergySamples

# A training step of 40 ms whose parts differ: the counter changes once in two and a half steps.
SHORT_STEPS = [Phase(1, 650, 18_000_000), Phase(2, 350, 12_000_000, 2_000_000), Phase(3, 220, 9_000_000)]
LONG_PHASES = [Phase(1, 650, 180_000_000), Phase(2, 350, 120_000_000, 20_000_000), Phase(3, 220, 90_000_000)]
MANY_PARTS = [
    Phase(1, 600, 60_000_000), Phase(2, 450, 30_000_000), Phase(3, 300, 10_000_000, 5_000_000),
    Phase(4, 250, 3_000_000), Phase(5, 500, 40_000_000),
]  # fmt: skip


def samples_of(run: Run) -> EnergySamples:
    unknown = np.full(len(run.time_ns), -1)
    readings = dict.fromkeys(
        (
            "power_mw",
            "instant_power_mw",
            "power_limit_mw",
            "sm_clock_mhz",
            "memory_clock_mhz",
            "clock_limits",
        ),
        unknown,
    )
    return EnergySamples(
        0, 0, run.time_ns, run.spread_ns, run.energy_mj, temperature_c=run.celsius, **readings
    )


def fitted(run: Run) -> Fitted:
    parts = int(run.line.max())
    span = run.start_ns[:1], run.end_ns[-1:]
    usage = Usage(run.start_ns, run.end_ns, (run.line - 1).astype(np.int32), parts, *span)
    return energy_of(usage, Counter.of(samples_of(run)), 700.0)


def truths(run: Run) -> list[float]:
    """Watts per line."""
    lengths = run.end_ns - run.start_ns
    return [
        run.joules[line] / (lengths[run.line == line].sum() * 1e-9) for line in sorted(run.joules) if line
    ]


@pytest.mark.parametrize(
    ("phases", "least"),
    [(SHORT_STEPS, 20), (LONG_PHASES, 60), (MANY_PARTS, 40)],
    ids=["short", "long", "many"],
)
def test_error_bars_hold_in_19_of_20_repetitions(phases: list[Phase], least: int) -> None:
    held, told = 0, 0
    for seed in range(20):
        run = simulate(phases, 20, seed)
        parts = fitted(run).parts[:-1]
        errors = [abs(part.power_w - truth) for part, truth in zip(parts, truths(run), strict=True)]
        held += all(error <= part.error_w for error, part in zip(errors, parts, strict=True) if part.is_told)
        told += sum(part.is_told for part in parts)
    assert held >= 19, held
    assert told >= least, "and they are narrow enough to tell something"


def test_long_phases_are_known_to_a_few_watts() -> None:
    run = simulate(LONG_PHASES, 60, 1)
    for part, truth in zip(fitted(run).parts[:-1], truths(run), strict=True):
        assert part.error_w < 0.05 * truth and abs(part.power_w - truth) < 0.05 * truth


@pytest.mark.parametrize("seed", range(4))
def test_parts_sum_to_the_counter_and_the_counter_to_what_was_used(seed: int) -> None:
    run = simulate(MANY_PARTS, 20, seed)
    found = fitted(run)
    assert sum(part.joules for part in found.parts) == pytest.approx(found.joules)
    assert all(part.joules >= 0 for part in found.parts)
    # the second of idle time after the run is not in it
    idle_s = (run.end_ns[-1] - run.start_ns[0] - (run.end_ns - run.start_ns).sum()) * 1e-9
    used = sum(joules for line, joules in run.joules.items() if line) + 120.0 * idle_s
    assert found.joules == pytest.approx(used, rel=0.01)
    assert found.passed_s.sum() == pytest.approx((run.end_ns[-1] - run.start_ns[0]) * 1e-9, rel=0.01)


def test_the_delay_of_the_counter_is_found() -> None:
    for latency_ns in (0, 40_000_000, 90_000_000):
        found = fitted(simulate(LONG_PHASES, 20, 3, Machine(latency_ns=latency_ns)))
        assert found.lag_ns == pytest.approx(latency_ns, abs=6_000_000)


def test_lines_in_fixed_proportion_are_not_told_apart() -> None:
    """Two parts of a step of 2 ms, always of the same length: 100 ms hold as much of each as any other."""
    phases = [Phase(1, 600, 1_000_000, jitter_frac=0), Phase(2, 200, 1_000_000, jitter_frac=0)]
    found = fitted(simulate(phases, 10, 0, Machine(clock_noise_frac=0.05)))
    assert not any(part.is_told for part in found.parts[:2])
    for part, truth in zip(found.parts, (600, 200), strict=False):
        assert abs(part.power_w - truth) <= part.error_w, "what is not told is still not wrong"


def test_too_short_a_recording_says_how_long_it_must_be() -> None:
    found = fitted(simulate(LONG_PHASES, 2, 0))
    assert found.parts == () and found.joules > 0
    assert f"takes {LEAST_INTERVALS} at least, 4 s" in found.why_not


def test_a_recorder_that_came_too_late_tells_no_line() -> None:
    found = fitted(simulate(LONG_PHASES, 20, 0, Machine(poll_ns=30_000_000, uneven_ns=20_000_000)))
    assert found.parts == () and "a change is known to +/- 15.0 ms only" in found.why_not


def test_late_readings_of_an_even_counter_tell_lines() -> None:
    run = simulate(LONG_PHASES, 20, 0, Machine(poll_ns=30_000_000))
    for part, truth in zip(fitted(run).parts[:-1], truths(run), strict=True):
        assert part.is_told and abs(part.power_w - truth) <= part.error_w


def test_the_length_that_is_asked_for_is_enough() -> None:
    asked = [part.needs_s for seed in range(5) for part in fitted(simulate(SHORT_STEPS, 8, seed)).parts[2:3]]
    told = [fitted(simulate(SHORT_STEPS, 8, seed)).parts[2].is_told for seed in range(5)]
    assert not any(told)
    longest = max(seconds for seconds in asked if seconds is not None)
    assert 8 < longest < 600
    assert sum(fitted(simulate(SHORT_STEPS, longest, seed)).parts[2].is_told for seed in range(3)) >= 2


def test_kernels_that_run_at_once_share_the_time() -> None:
    start, end = np.array([0, 10, 40]), np.array([20, 30, 50])
    part = np.array([0, 1, 0], dtype=np.int32)
    passed = passed_ns(start, end, part, 2, np.array([0.0, 15.0, 30.0, 45.0, 50.0]))
    assert np.diff(passed, axis=0).tolist() == [[12.5, 2.5, 0], [2.5, 12.5, 0], [5, 0, 10], [5, 0, 0]]


def test_pauses_of_the_recording_are_not_looked_at() -> None:
    run = simulate(LONG_PHASES, 40, 0)
    middle = int(run.start_ns[0]) + 20_000_000_000
    kept = (run.end_ns < middle) | (run.start_ns > middle + 5_000_000_000)
    edge = run.end_ns[run.end_ns < middle][-1:], run.start_ns[run.start_ns > middle + 5_000_000_000][:1]
    spans = np.concatenate([run.start_ns[:1], edge[1]]), np.concatenate([edge[0], run.end_ns[-1:]])
    line = (run.line[kept] - 1).astype(np.int32)
    found = energy_of(
        Usage(run.start_ns[kept], run.end_ns[kept], line, 3, *spans), Counter.of(samples_of(run)), 700.0
    )
    seconds = (spans[1] - spans[0]).sum() * 1e-9
    assert found.passed_s.sum() == pytest.approx(seconds, rel=0.01)
    for part, truth in zip(found.parts, (663, 363, 233), strict=False):
        assert part.power_w == pytest.approx(truth, rel=0.06)


def test_a_late_reading_and_a_counter_that_began_anew_are_left_out() -> None:
    run = simulate(LONG_PHASES, 20, 0)
    spread = run.spread_ns.copy()
    spread[50] = 90_000_000
    samples = samples_of(run)
    late = replace(samples, spread_ns=spread)
    assert len(Counter.of(late)) == len(run.time_ns) - 1
    energy = run.energy_mj.copy()
    energy[30:] -= energy[30]
    anew = replace(samples, energy_mj=energy)
    assert len(Counter.of(anew)) == len(run.time_ns) - 30
