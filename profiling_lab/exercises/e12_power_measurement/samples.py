# SPDX-License-Identifier: Apache-2.0
"""What the samples of step_load.py say: the right answers, from the learner's own file."""

from __future__ import annotations

import csv
import itertools
import statistics
from dataclasses import dataclass
from pathlib import Path

from profiling_lab.errors import UnreadableInputError

COLUMNS = ("time_s", "phase", "busy", "energy_mj", "power_w")
RISE_FRAC = 0.9
SETTLE_S = 0.3
"""after which the clocks of a loaded GPU are stable"""
LEAST_ROWS, LEAST_CHANGES, LEAST_LOADS, LEAST_BURSTS = 200, 20, 2, 3


@dataclass(frozen=True, slots=True)
class Sample:
    time_s: float
    phase: str
    busy: bool
    energy_mj: int
    power_w: float


@dataclass(frozen=True, slots=True)
class SampleFacts:
    """The right answers."""

    period_ms: float
    rise_ms: float
    load_w: float
    shown_w: float
    burst_j: float


def read(path: Path) -> list[Sample]:
    """Raises UnreadableInputError."""
    make = "`profiling-lab exercise profile` makes one"
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = [
                Sample(float(row["time_s"]), row["phase"], row["busy"] == "1", int(row["energy_mj"]),
                       float(row["power_w"]))
                for row in csv.DictReader(file)
            ]  # fmt: skip
    except FileNotFoundError:
        raise UnreadableInputError(f"there is no {path.name} in this folder: {make}") from None
    except (OSError, UnicodeDecodeError, csv.Error, KeyError, ValueError, TypeError):
        columns = ", ".join(COLUMNS)
        raise UnreadableInputError(f"{path.name} has no numbers in the columns {columns}: {make}") from None
    if len(rows) < LEAST_ROWS:
        raise UnreadableInputError(
            f"{path.name} has {len(rows)} samples, expected at least {LEAST_ROWS}: {make}"
        )
    for before, after in itertools.pairwise(rows):
        if after.time_s <= before.time_s or after.energy_mj < before.energy_mj:
            raise UnreadableInputError(
                f"{path.name}: time or energy goes back at {after.time_s:g} s, as they never do: {make}"
            )
    return rows


def sample_facts(path: Path) -> SampleFacts:
    """Raises UnreadableInputError, also for samples that are not of the unchanged program."""
    rows = read(path)
    changes = [after for before, after in itertools.pairwise(rows) if after.energy_mj != before.energy_mj]
    phases = [list(group) for _, group in itertools.groupby(rows, lambda row: row.phase)]
    loads = [each for each in phases if each[0].phase == "load"]
    bursts = [each for each in phases if each[0].phase == "bursts"]
    if len(changes) < LEAST_CHANGES or len(loads) < LEAST_LOADS or len(bursts) != 1:
        raise UnreadableInputError(
            f"{path.name} has {len(changes)} changes of the counter, {len(loads)} loads and {len(bursts)} "
            f"phases of bursts, expected at least {LEAST_CHANGES}, {LEAST_LOADS} and 1: is step_load.py "
            "unchanged?"
        )
    return SampleFacts(
        period_ms=1e3 * statistics.median(b.time_s - a.time_s for a, b in itertools.pairwise(changes)),
        rise_ms=1e3 * statistics.median(_rise_s(rows, each) for each in loads),
        load_w=statistics.median(_load_w(path, changes, each) for each in loads),
        shown_w=max(row.power_w for row in bursts[0]),
        burst_j=_burst_j(path, rows, changes, bursts[0]),
    )


def _rise_s(rows: list[Sample], load: list[Sample]) -> float:
    """From the begin of a load until the power has risen by RISE_FRAC of the step."""
    low = rows[max(rows.index(load[0]) - 1, 0)].power_w
    high = statistics.median(row.power_w for row in load[-max(len(load) // 10, 1) :])
    reached = next(row for row in load if row.power_w >= low + RISE_FRAC * (high - low))
    return reached.time_s - load[0].time_s


def _load_w(path: Path, changes: list[Sample], load: list[Sample]) -> float:
    begin_s, end_s = load[0].time_s + SETTLE_S, load[-1].time_s
    return _mean_w(path, [row for row in changes if begin_s <= row.time_s <= end_s])


def _mean_w(path: Path, changes: list[Sample]) -> float:
    if len(changes) < 2:
        raise UnreadableInputError(
            f"{path.name}: the counter changes {len(changes)} times in a phase, expected at least 2"
        )
    first, last = changes[0], changes[-1]
    return (last.energy_mj - first.energy_mj) / 1e3 / (last.time_s - first.time_s)


def _burst_j(path: Path, rows: list[Sample], changes: list[Sample], bursts: list[Sample]) -> float:
    """Joules of one burst, less what the idle GPU uses in the second before them."""
    begin_s, end_s = bursts[0].time_s, bursts[-1].time_s
    before = [row for row in changes if begin_s - 1.0 <= row.time_s <= begin_s]
    after = [row for row in changes if row.time_s >= end_s]
    count = sum(b.busy and not a.busy for a, b in itertools.pairwise([rows[0], *bursts]))
    if count < LEAST_BURSTS or not after:
        raise UnreadableInputError(
            f"{path.name} has {count} bursts and {len(after)} changes of the counter after them, expected at "
            f"least {LEAST_BURSTS} and 1: is step_load.py unchanged?"
        )
    idle_w = _mean_w(path, before)
    joules = (after[0].energy_mj - before[-1].energy_mj) / 1e3
    return (joules - idle_w * (after[0].time_s - before[-1].time_s)) / count
