# SPDX-License-Identifier: Apache-2.0
"""Judge a measurement of energy on simulated GPUs, whose joules are known. Nothing here takes real time."""

from __future__ import annotations

import math
import random
import secrets
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from profiling_lab.exercises.energy_gpus import SimulatedGPU
from profiling_lab.exercises.exercise import GradedCheck, failed, not_checked, passed
from profiling_lab.exercises.program_repair import load

METHODS = ("now", "sleep", "synchronize", "is_busy", "load", "energy_mj", "power_w", "instant_w")
KEYS = ("joules", "error_j", "calls", "seconds")
ERROR_AT_MOST_FRAC = 0.05
GAPS_FRAC = 0.005
"""of the joules: the GPU idles between two calls, if each is waited for"""
GPUS = 4


def checks(starter: Path, repaired: Path, seed: int | None = None) -> list[GradedCheck]:
    """The checks "result", "joules" and "error_j"."""
    if not repaired.is_file():
        return [failed("result", f"there is no {repaired.name} in this folder")]
    if repaired.read_bytes() == starter.read_bytes():
        return [failed("result", f"{repaired.name} is unchanged: nothing is repaired yet")]
    chance = random.Random(secrets.randbelow(2**31) if seed is None else seed)
    try:
        program = load(repaired, "repaired_measurement")
        for _ in range(GPUS):
            if wrong := judged(program, made(chance)):
                return wrong
    except (
        Exception,
        SystemExit,
    ) as error:  # a learner's code may raise anything, and the learner must see it
        return [failed("result", f"{repaired.name} raises {type(error).__name__}: {error}")]
    return [
        passed("result", f"measured on {GPUS} simulated GPUs"),
        passed("joules", "the known joules lie within the error bar on each of them"),
        passed("error_j", f"at most {ERROR_AT_MOST_FRAC:.0%} of the joules"),
    ]


def made(chance: random.Random) -> SimulatedGPU:
    """Another GPU each time: the counter's period, the sensor's window, the kernel."""
    return SimulatedGPU(
        {"kernel": (chance.uniform(2e-3, 9e-3), chance.uniform(300.0, 800.0))},
        seed=chance.randrange(2**31),
        period_s=chance.choice((0.05, 0.1)),
        window_s=chance.choice((0.5, 1.0)),
        idle_w=chance.uniform(60.0, 150.0),
    )


def judged(program: Any, gpu: SimulatedGPU) -> list[GradedCheck]:
    """Why a measurement on this GPU is wrong; empty if it is right."""
    # The program gets the methods alone, so it cannot read what it is to measure.
    handle = SimpleNamespace(name=gpu.name, **{name: getattr(gpu, name) for name in METHODS})
    call = gpu.workloads["kernel"]
    found = program.joules_per_call(handle, lambda: call())
    if not isinstance(found, dict) or not all(_is_number(found.get(key)) for key in KEYS):
        return [failed("result", f"joules_per_call must return the numbers {', '.join(KEYS)}")]
    reason = "this does not matter while the calls are not right"
    if not 1 <= found["calls"] <= gpu.launches["kernel"]:
        return [
            failed("result", f"calls is {found['calls']}, but there were {gpu.launches['kernel']} calls"),
            not_checked("joules", reason),
        ]
    seconds, watts = gpu.kernels["kernel"]
    true, error = seconds * watts, found["error_j"]
    measured = passed("result", "it returns joules, error_j, calls and seconds")
    off = abs(found["joules"] - true)
    is_within = error > 0 and off <= error + GAPS_FRAC * true
    if is_within and error <= ERROR_AT_MOST_FRAC * found["joules"]:
        return []
    said = f"with a counter that changes every {1e3 * gpu.period_s:.0f} ms they are {off / true:.1%} off"
    if off > ERROR_AT_MOST_FRAC * true:
        return [measured, failed("joules", said), not_checked("error_j", "the joules are wrong")]
    if not is_within:
        text = f"{said}, and error_j says {error / true:.1%}: the true value must lie within the bar"
        return [measured, passed("joules", said), failed("error_j", text)]
    text = f"error_j is {error / true:.0%} of them, the goal is {ERROR_AT_MOST_FRAC:.0%}: repeat for longer"
    return [measured, passed("joules", said), failed("error_j", text)]


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
