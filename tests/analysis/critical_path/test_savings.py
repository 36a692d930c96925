# SPDX-License-Identifier: Apache-2.0
"""What kernels that begin before the one before them has ended would win."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from made_traces.machine import PAUSE_NS, made, written
from made_traces.programs import begun_early, host_bound

from profiling_lab.analysis.critical_path.savings import Saved, Saving, fewer, shorter
from profiling_lab.trace.step_windows import step_windows


@pytest.mark.parametrize("left", [0.0, 0.5])
@pytest.mark.parametrize("line", [10, 11, 12])
def test_a_kernel_that_is_begun_early_wins_no_time_of_the_one_before(
    line: int, left: float, tmp_path: Path
) -> None:
    trace = written(begun_early, tmp_path / "run.sqlite")
    name = trace.operations.names.index(f"kernel_{line}")
    rows = np.flatnonzero(trace.operations.name == name)
    won_ns = Saved(trace, step_windows(trace), ()).per_step_ns(shorter(rows, left))
    steps_ns = [
        made(begun_early, tmp_path / f"{i}.sqlite", factors).by_line().step.length_ns
        for i, factors in enumerate(({}, {line: left}))
    ]
    assert won_ns == pytest.approx(steps_ns[0] - steps_ns[1], abs=2 * PAUSE_NS)
    assert won_ns > 0


def test_what_is_launched_beside_others_takes_the_host_as_long_as_they_do(tmp_path: Path) -> None:
    trace = written(host_bound, tmp_path / "run.sqlite")
    lines = (trace.operations.names.index(f"kernel_{line}") for line in (10, 11))
    slow, quick = (np.flatnonzero(trace.operations.name == name) for name in lines)
    saved = Saved(trace, step_windows(trace), ())
    more = Saving(quick, np.ones(len(quick)), np.full(len(quick), 1.5))
    alone_ns, quick_ns, both_ns = (
        saved.per_step_ns(saving) for saving in (fewer(slow), fewer(quick), fewer(slow) | more)
    )
    assert both_ns == pytest.approx(alone_ns - quick_ns / 2, rel=0.02)
    assert saved.per_step_ns(more) == 0, "no remedy is said to lose time"


@pytest.mark.parametrize("order", [(0.0, 0.5), (0.5, 0.0)])
def test_what_two_remedies_take_away_is_gone_if_it_is_with_one(
    order: tuple[float, float], tmp_path: Path
) -> None:
    trace = written(host_bound, tmp_path / "run.sqlite")
    rows = np.arange(len(trace.operations))[::2]
    saved = Saved(trace, step_windows(trace), ())
    both_ns, half_ns, gone_ns = (
        saved.per_step_ns(saving)
        for saving in (fewer(rows, order[0]) | fewer(rows, order[1]), fewer(rows, 0.5), fewer(rows))
    )
    assert 0 < half_ns < gone_ns == both_ns
