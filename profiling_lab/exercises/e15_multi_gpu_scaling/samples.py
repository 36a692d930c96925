# SPDX-License-Identifier: Apache-2.0
"""What scaling.json and the recordings next to it say: times by the number of GPUs, fits, and who is late."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePath
from typing import Any

from profiling_lab.analysis.ranks import JobResult, LocalPool, ranks
from profiling_lab.errors import NotEnoughDataError, UnreadableInputError
from profiling_lab.exercises.job_facts import measurement
from profiling_lab.measure.scaling import (
    ScalingPoint,
    SerialFit,
    amdahl,
    amdahl_speedup,
    gustafson,
    points_of,
    strong_efficiency,
    weak_efficiency,
)

SAME_STEP_FRAC = 0.3
"""by how much the recorded step may differ from the measured one: recording costs a little"""
ASKED_GPUS = 8


@dataclass(frozen=True)
class ScalingFacts:
    """The measurement that a learner names, with its recordings."""

    gpu: str
    strong: tuple[ScalingPoint, ...]
    weak: tuple[ScalingPoint, ...]
    recordings: tuple[Path, ...]

    @property
    def most(self) -> int:
        """The most GPUs."""
        return self.strong[-1].gpus

    @property
    def strong_percent(self) -> float:
        return 100 * strong_efficiency(self.strong)[self.most]

    @property
    def weak_percent(self) -> float:
        return 100 * weak_efficiency(self.weak)[self.weak[-1].gpus]

    @property
    def amdahl(self) -> SerialFit:
        return amdahl(self.strong)

    @property
    def gustafson(self) -> SerialFit:
        return gustafson(self.weak)

    @property
    def speedup_8(self) -> float:
        return amdahl_speedup(self.amdahl.serial_frac, ASKED_GPUS)

    @cached_property
    def job(self) -> JobResult:
        """The ranks of the recorded job, compared."""
        return ranks([str(path) for path in self.recordings], pool=LocalPool(1))

    @property
    def late_rank(self) -> str:
        """The rank that holds the others up; '' if none does."""
        blame = self.job.verdict.blame
        return "" if blame is None else str(blame.rank)

    @property
    def late_line(self) -> tuple[str, int]:
        """File and line that make it late; ("", 0) if no line does."""
        blame = self.job.verdict.blame
        file, _, line = (blame.line if blame is not None else "").rpartition(":")
        return PurePath(file).name, int(line or 0)

    @property
    def cause(self) -> str:
        """Of what kind that is, as `ranks` says it."""
        blame = self.job.verdict.blame
        return "" if blame is None else blame.cause

    @property
    def saved_ms(self) -> float:
        """What a step would win, as `ranks` says it."""
        return self.job.verdict.cost_ns / 1e6


def scaling_facts(path: Path) -> ScalingFacts:
    """With recordings of all ranks. Raises UnreadableInputError or NotEnoughDataError, with a sentence."""
    facts = scaling_times(path)
    if (there := len(facts.recordings)) != facts.most:
        raise NotEnoughDataError(
            f"{path.name} has {there} recordings, expected one for each of {facts.most} ranks: "
            "scaling_benchmark.py makes them on GPUs"
        )
    _check_recorded(facts)
    return facts


def scaling_times(path: Path) -> ScalingFacts:
    """The same, whether there are recordings or not."""
    data = measurement(path, "scaling_benchmark.py")
    try:
        runs = [
            (str(r["scaling"]), int(r["gpus"]), int(r["rows"]), _times(r["step_ms"])) for r in data["runs"]
        ]
        names = [str(name) for name in data["recordings"]]
        gpu = str(data["gpu"])
    except (KeyError, TypeError, ValueError):
        raise UnreadableInputError(f"{path.name} is not what scaling_benchmark.py writes") from None
    points = {
        scaling: points_of({gpus: times for kind, gpus, _, times in runs if kind == scaling})
        for scaling in ("strong", "weak")
    }
    _check_work(runs)
    return ScalingFacts(gpu, points["strong"], points["weak"], tuple(path.parent / name for name in names))


def _times(step_ms: Any) -> tuple[int, ...]:
    times = tuple(round(1e6 * ms) for ms in step_ms if math.isfinite(ms) and ms > 0)
    if not times or len(times) != len(step_ms):
        raise ValueError
    return times


def _check_work(runs: list[tuple[str, int, int, tuple[int, ...]]]) -> None:
    """Strong scaling is the same work on all numbers of GPUs, weak scaling the same work for each."""
    for scaling in ("strong", "weak"):
        shares = {rows if scaling == "strong" else rows / n for kind, n, rows, _ in runs if kind == scaling}
        if len(shares) > 1:
            raise NotEnoughDataError(
                f"the rows of {scaling} scaling are not the same for all numbers of GPUs"
            )


def _check_recorded(facts: ScalingFacts) -> None:
    """The recordings are those of all ranks, and of these steps."""
    job = facts.job
    if job.failures:
        raise UnreadableInputError(job.failures[0].sentence)
    if len(job.rows) != facts.most or not all(row.step_ns for row in job.rows):
        raise NotEnoughDataError(f"expected steps of {facts.most} ranks, the recordings have {len(job.rows)}")
    recorded_ms = max(row.step_ns for row in job.rows) / 1e6
    measured_ms = facts.strong[-1].median_ns / 1e6
    if abs(recorded_ms / measured_ms - 1) > SAME_STEP_FRAC:
        raise NotEnoughDataError(
            f"a step of the recordings takes {recorded_ms:.2f} ms, but {measured_ms:.2f} ms were measured on "
            f"{facts.most} GPUs: they do not belong together"
        )
