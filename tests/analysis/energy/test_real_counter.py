# SPDX-License-Identifier: Apache-2.0
"""Power by line from the energy counter of an H200, read while a program ran kinds of work in turns."""

from __future__ import annotations

import gzip
import json
from typing import Any

import numpy as np
import pytest
from conftest import REPO

from profiling_lab.analysis.energy.counter import Counter
from profiling_lab.analysis.energy.device import Fitted, Usage, energy_of
from profiling_lab.trace.extras import EnergySamples

DATA = REPO / "tests" / "data" / "energy_h200" / "counter.json.gz"
# Watts of a kind of work that runs alone for three seconds, and of idle time right after work, from the same
# counter in the same run.
ALONE_W = {"copy": 617, "spin": 125, "idle": 124}


@pytest.fixture(scope="module")
def recorded() -> Any:
    return json.loads(gzip.decompress(DATA.read_bytes()))


def samples(recorded: Any) -> EnergySamples:
    columns = {name: np.array(values) for name, values in recorded["changes"].items()}
    unknown = np.full(len(columns["time_ns"]), -1)
    names = ("power_mw", "instant_power_mw", "power_limit_mw", "sm_clock_mhz", "memory_clock_mhz")
    readings = dict.fromkeys((*names, "clock_limits", "temperature_c"), unknown)
    return EnergySamples(0, 0, **columns, **readings)


def fitted(recorded: Any, block: str) -> tuple[list[str], Fitted]:
    """The kinds of work of a block, idle time last, and what is known of each."""
    work = [row for row in recorded["work"] if row["block"] == block]
    busy = [row for row in work if row["kind"] != "idle"]
    kinds = sorted({row["kind"] for row in busy})
    usage = Usage(
        np.array([row["start_ns"] for row in busy]),
        np.array([row["end_ns"] for row in busy]),
        np.array([kinds.index(row["kind"]) for row in busy], dtype=np.int32),
        len(kinds),
        np.array([work[0]["start_ns"]]),
        np.array([work[-1]["end_ns"]]),
    )
    return [*kinds, "idle"], energy_of(usage, Counter.of(samples(recorded)), 700.0)


def test_the_counter_changes_by_a_clock_of_its_own(recorded: Any) -> None:
    """It was read every 3 to 6 ms, so a change is seen that late; the clock's times are far better."""
    counter = Counter.of(samples(recorded))
    assert counter.period_ns == pytest.approx(100e6, rel=1e-4)

    def unevenness_ns(time_ns: Any) -> float:
        periods = np.diff(time_ns) / 100e6  # changes that were seen late are left out
        return float((periods - np.rint(periods)).std()) * 100e6

    assert unevenness_ns(counter.time_ns) < 1e4 < 1e6 < unevenness_ns(recorded["changes"]["time_ns"])
    assert counter.spread_ns < 5e5


@pytest.mark.parametrize("block", ["slow", "square130", "square500"])
def test_work_of_a_tenth_of_a_second_has_the_power_that_it_has_alone(recorded: Any, block: str) -> None:
    """big, products: 692 W alone for long, at the limit of 700 W; for 100 ms after other work up to 860 W."""
    kinds, found = fitted(recorded, block)
    told = {kind: part for kind, part in zip(kinds, found.parts, strict=True) if part.is_told}
    assert set(told) == set(kinds) - ({"idle"} if block == "slow" else set()), "in `slow` the GPU never idles"
    for kind, part in told.items():
        if kind == "big":
            assert 692 < part.power_w < 800
        else:
            assert abs(part.power_w - ALONE_W[kind]) <= part.error_w + 0.02 * ALONE_W[kind], kind
        assert part.error_w < 30


def test_work_that_changes_every_20_ms_is_not_told_apart(recorded: Any) -> None:
    """How late the counter is decides between 400 and 880 W for the products, and nothing tells how late."""
    kinds, found = fitted(recorded, "fast")
    assert not any(part.is_told for part in found.parts)
    for kind, part in zip(kinds, found.parts, strict=True):
        if kind in ALONE_W:
            assert abs(part.power_w - ALONE_W[kind]) <= part.error_w
