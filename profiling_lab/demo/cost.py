# SPDX-License-Identifier: Apache-2.0
"""The overhead of a recording, stored inside it, so that its times can be judged."""

from __future__ import annotations

import sqlite3
from dataclasses import asdict, dataclass
from pathlib import Path

from profiling_lab.trace import Trace

PREFIX = "demo:"  # of the demo's keys in PYREC_META


@dataclass(frozen=True, slots=True)
class Cost:
    """The time of a training step without and with the recorder: medians of interleaved rounds."""

    heavy: str
    """which implementation of HeavyLayer was trained"""
    recorded_steps: int
    plain_step_ns: int
    recorded_step_ns: int
    rounds: int
    steps_per_round: int

    @property
    def overhead_frac(self) -> float:
        return self.recorded_step_ns / self.plain_step_ns - 1


def write_cost(path: Path, cost: Cost) -> None:
    """Add the cost to a recording that was just written."""
    rows = [(PREFIX + name, str(value)) for name, value in asdict(cost).items()]
    with sqlite3.connect(path) as file:
        file.executemany("INSERT INTO PYREC_META (name, value) VALUES (?, ?)", rows)
    file.close()


def read_cost(trace: Trace) -> Cost | None:
    """The cost stored in the recording; None if it has none."""
    facts = trace.recorder_facts.items()
    found = {name.removeprefix(PREFIX): value for name, value in facts if name.startswith(PREFIX)}
    if not found:
        return None
    return Cost(
        heavy=found["heavy"],
        recorded_steps=int(found["recorded_steps"]),
        plain_step_ns=int(found["plain_step_ns"]),
        recorded_step_ns=int(found["recorded_step_ns"]),
        rounds=int(found["rounds"]),
        steps_per_round=int(found["steps_per_round"]),
    )
