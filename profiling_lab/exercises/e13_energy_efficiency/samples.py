# SPDX-License-Identifier: Apache-2.0
"""What readings.json says: the right answers, from the learner's own file."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from profiling_lab.errors import UnreadableInputError

MATMULS = ("fp32", "tf32", "bf16")
EAGER, FUSED = "layer_norm_gelu eager", "layer_norm_gelu fused"
KEYS = ("calls", "seconds", "begin_mj", "end_mj", "power_w")
LEAST_PERIODS = 10
"""so that a period is at most a tenth of what is measured"""


@dataclass(frozen=True, slots=True)
class Workload:
    """Per call."""

    ms: float
    joules: float
    error_j: float
    above_idle_j: float
    tflops_per_w: float | None
    shown_j: float
    """what the average of power_w makes of it"""


@dataclass(frozen=True, slots=True)
class Readings:
    gpu: str
    idle_w: float
    workloads: Mapping[str, Workload]

    @property
    def rates(self) -> dict[str, float]:
        """TFLOP/s per watt of the matmuls."""
        found = {name: self.workloads[name].tflops_per_w for name in MATMULS}
        return {name: rate for name, rate in found.items() if rate is not None}

    @property
    def best(self) -> str:
        return max(self.rates, key=lambda name: self.rates[name])

    @property
    def factor(self) -> float:
        return self.rates[self.best] / self.rates["fp32"]

    @property
    def fused_factor(self) -> float:
        """Joules of eager by those of fused. Raises KeyError if one of them was not run."""
        return self.workloads[EAGER].joules / self.workloads[FUSED].joules

    @property
    def race_j(self) -> float:
        """The bf16 matmul, and idle until the fp32 one would have ended."""
        fast, slow = self.workloads["bf16"], self.workloads["fp32"]
        return fast.joules + self.idle_w * (slow.ms - fast.ms) / 1e3


def read(path: Path) -> Readings:
    """Raises UnreadableInputError."""
    make = "`profiling-lab exercise profile` makes one"
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UnreadableInputError(f"there is no {path.name} in this folder: {make}") from None
    except (OSError, ValueError):
        raise UnreadableInputError(f"{path.name} is not JSON: {make}") from None
    try:
        return evaluated(tree)
    except (KeyError, TypeError, ValueError) as error:
        raise UnreadableInputError(
            f"{path.name} is not what readings.py writes ({type(error).__name__}: {error}): {make}"
        ) from None


def evaluated(tree: Mapping[str, Any]) -> Readings:
    """Raises KeyError, TypeError or ValueError for readings that are not complete or cannot be."""
    idle, period_s = tree["idle"], float(tree["period_s"])
    idle_w = _joules(idle) / float(idle["seconds"])
    found = {}
    for each in tree["workloads"]:
        values = {key: float(each[key]) for key in KEYS}
        if not all(math.isfinite(value) and value > 0 for value in values.values()):
            raise ValueError(f"{each['name']} has a reading that is not above 0")
        if values["seconds"] < LEAST_PERIODS * period_s:
            raise ValueError(f"{each['name']} ran for less than {LEAST_PERIODS} periods of the counter")
        seconds, joules = values["seconds"] / values["calls"], _joules(each) / values["calls"]
        flops = 2.0 * each["m"] * each["n"] * each["k"] if "m" in each else None
        found[each["name"]] = Workload(
            ms=1e3 * seconds,
            joules=joules,
            error_j=joules / values["seconds"] * period_s,
            above_idle_j=joules - idle_w * seconds,
            tflops_per_w=None if flops is None else flops / joules / 1e12,
            shown_j=values["power_w"] * seconds,
        )
    if missing := set(MATMULS) - set(found):
        raise ValueError(f"there is no workload {sorted(missing)[0]}")
    return Readings(str(tree["gpu"]), idle_w, found)


def _joules(reading: Mapping[str, Any]) -> float:
    joules = (float(reading["end_mj"]) - float(reading["begin_mj"])) / 1e3
    if not joules > 0 or not float(reading["seconds"]) > 0:
        raise ValueError("a counter that does not go up")
    return joules
