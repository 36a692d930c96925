# SPDX-License-Identifier: Apache-2.0
"""Result files: one JSON object per line, appended, so that an aborted run keeps its results."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from profiling_lab.measure.device import Machine
from profiling_lab.measure.timing import Timing

Case = Mapping[str, str | int | float | bool]


class ResultsFile:
    """Appends results of one run on one machine to `path`, or only collects them if path is None.

    Every line has benchmark, case (what was measured: names to numbers or texts), provider (whose
    implementation), metric, value, unit, the facts of the machine, and `run`, equal for all lines of one
    run: only these may be compared. samples: the line of a timing has each of them too, as `samples_ns`.
    """

    def __init__(self, path: Path | str | None, machine: Machine, *, samples: bool = False) -> None:
        self.path = None if path is None else Path(path)
        self.machine, self.samples = machine, samples
        self.run = machine.date.replace("-", "").replace(":", "") + f"-{os.getpid()}"
        self.lines: list[dict[str, object]] = []
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)

    def add(
        self,
        benchmark: str,
        case: Case,
        provider: str,
        metric: str,
        value: float,
        unit: str,
        **more: Sequence[float],
    ) -> None:
        """One number. more: what it was computed from, such as samples_ns."""
        line: dict[str, object] = {
            "benchmark": benchmark,
            "case": dict(case),
            "provider": provider,
            "metric": metric,
            "value": value,
            "unit": unit,
            **asdict(self.machine),
            "run": self.run,
            **{name: list(values) for name, values in more.items()},
        }
        self.lines.append(line)
        if self.path is not None:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line, ensure_ascii=False) + "\n")

    def add_timing(
        self, benchmark: str, case: Case, provider: str, timing: Timing, metric: str = "time"
    ) -> None:
        """A timing as its median, interquartile range and number of samples: <metric>, <metric>_iqr,
        <metric>_samples.
        """
        every = {"samples_ns": timing.samples_ns} if self.samples else {}
        self.add(benchmark, case, provider, metric, timing.median_ns, "ns", **every)
        self.add(benchmark, case, provider, f"{metric}_iqr", timing.iqr_ns, "ns")
        self.add(benchmark, case, provider, f"{metric}_samples", timing.n, "samples")
