# SPDX-License-Identifier: Apache-2.0
"""Judge a summary of energy readings: it runs on made readings, of which every number is known."""

from __future__ import annotations

import copy
import math
import random
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from profiling_lab.exercises.e13_energy_efficiency.samples import EAGER, FUSED, MATMULS, evaluated
from profiling_lab.exercises.exercise import GradedCheck, failed, not_checked, passed
from profiling_lab.exercises.program_repair import load

SLACK_FRAC = 1e-6
MADE = 3
WRONG = {
    "ms": "seconds by calls, in ms",
    "joules": "which reading is of the same time as the work, and which one of the time before?",
    "error_j": "what the GPU uses in one period of the counter, by the calls",
    "above_idle_j": "the joules, less idle power by the time of one call",
    "tflops_per_w": "operations by all joules, and None without a shape: each multiply comes with an add, "
    "and a GPU that is not idle must be paid in full",
}
"""a check for each number of a row, with what to think about"""


def checks(starter: Path, repaired: Path, seed: int | None = None) -> list[GradedCheck]:
    """The check "result", and one for each key of WRONG."""
    if not repaired.is_file():
        return [failed("result", f"there is no {repaired.name} in this folder")]
    if repaired.read_bytes() == starter.read_bytes():
        return [failed("result", f"{repaired.name} is unchanged: nothing is repaired yet")]
    chance = random.Random(secrets.randbelow(2**31) if seed is None else seed)
    try:
        program = load(repaired, "repaired_benchmark")
        for _ in range(MADE):
            readings = made(chance)
            found = program.summary(copy.deepcopy(readings))
            if wrong := judged(found, readings):
                return wrong
    except (
        Exception,
        SystemExit,
    ) as error:  # a learner's code may raise anything, and the learner must see it
        return [failed("result", f"{repaired.name} raises {type(error).__name__}: {error}")]
    said = passed("result", f"{MADE} made readings were summed up")
    return [said, *(passed(key, "right for each workload") for key in WRONG)]


def made(chance: random.Random) -> dict[str, Any]:
    """Readings as readings.py writes them, of a GPU whose sensor shows another power than it uses."""
    workloads = []
    for name in (*MATMULS, EAGER, FUSED):
        seconds, watts = chance.uniform(2, 4), chance.uniform(300, 800)
        begin_mj = chance.randrange(10**9)
        workload = {
            "name": name,
            "seconds": seconds,
            "begin_mj": begin_mj,
            "end_mj": begin_mj + int(1e3 * seconds * watts),
            "calls": chance.randrange(100, 4000),
            "power_w": watts * chance.uniform(0.6, 0.9),
        }
        if name in MATMULS:
            workload |= {key: 64 * chance.randrange(8, 128) for key in "mnk"}
        workloads.append(workload)
    idle = {"seconds": 1.7, "begin_mj": 5_000, "end_mj": 5_000 + int(1700 * chance.uniform(60, 150))}
    return {
        "gpu": "made",
        "period_s": chance.choice((0.02, 0.05, 0.1)),
        "idle": idle,
        "workloads": workloads,
    }


def judged(found: Any, readings: Mapping[str, Any]) -> list[GradedCheck]:
    """Why this summary is wrong; empty if it is right."""
    right = evaluated(readings).workloads
    is_table = isinstance(found, list) and all(isinstance(row, dict) for row in found)
    if not is_table or [row.get("name") for row in found] != list(right):
        return [failed("result", "summary must return a dict for each workload, in order, with its name")]
    checks = [passed("result", "a row for each workload")]
    for key, advice in WRONG.items():
        rows = [row["name"] for row in found if not _is_right(row.get(key), getattr(right[row["name"]], key))]
        checks.append(failed(key, f"{rows[0]}: {advice}") if rows else passed(key, "right for each workload"))
    wrong = {check.name for check in checks if check.status.value == "failed"}
    if "joules" in wrong:
        reason = "this does not matter while the joules are wrong"
        later = ("error_j", "above_idle_j", "tflops_per_w")
        checks = [not_checked(each.name, reason) if each.name in later else each for each in checks]
    return checks if wrong else []


def _is_right(given: object, right: float | None) -> bool:
    if right is None or given is None:
        return given is right
    is_number = isinstance(given, (int, float)) and not isinstance(given, bool)
    return is_number and math.isclose(float(given), right, rel_tol=SLACK_FRAC)  # type: ignore[arg-type]
