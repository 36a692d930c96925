# SPDX-License-Identifier: Apache-2.0
"""A simulated GPU with known power: its operations, and what its energy counter says of them.

The board warms up and leaks more while it is warm, its clocks waver, the counter gets a new value in its own
period, some time after the energy was used, in whole millijoules, and is read only now and then.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from builders import VM, TraceBuilder

STEP_NS = 100_000
"""of the simulation"""
F64 = npt.NDArray[np.float64]


@dataclass
class Machine:
    """Powers in watts, times in nanoseconds."""

    idle_w: float = 120.0
    period_ns: int = 100_000_000
    uneven_ns: int = 500_000
    """by which a change may be early or late"""
    latency_ns: int = 25_000_000
    poll_ns: int = 4_000_000
    leak_w_per_c: float = 1.5
    clock_noise_frac: float = 0.02
    clock_memory_s: float = 0.5
    warms_up_in_s: float = 20.0


@dataclass
class Phase:
    line: int
    power_w: float
    mean_ns: int
    gap_ns: int = 0
    """idle time after it"""
    jitter_frac: float = 0.1


@dataclass
class Run:
    """Operations in order, and the samples of the counter."""

    start_ns: npt.NDArray[np.int64]
    end_ns: npt.NDArray[np.int64]
    line: npt.NDArray[np.int64]
    step_start_ns: npt.NDArray[np.int64]
    time_ns: npt.NDArray[np.int64]
    spread_ns: npt.NDArray[np.int64]
    energy_mj: npt.NDArray[np.int64]
    celsius: npt.NDArray[np.int64]
    joules: dict[int, float] = field(default_factory=dict)
    """what each line really used; 0: idle"""


def simulate(phases: list[Phase], seconds: float, seed: int, machine: Machine | None = None) -> Run:
    """Steps of these phases for so long, after and before a second of idle time."""
    machine = machine or Machine()
    generator = np.random.default_rng(seed)
    start, end, line, steps = _operations(phases, seconds, generator)
    length = int(end[-1] + 1_000_000_000)
    grid = np.arange(0, length, STEP_NS, dtype=np.int64)
    base = np.full(len(grid), machine.idle_w)
    who = np.zeros(len(grid), np.int64)
    at = np.searchsorted(start, grid, side="right") - 1
    busy = (at >= 0) & (grid < end[at])
    power_of = {phase.line: phase.power_w for phase in phases}
    who[busy] = line[at[busy]]
    base[busy] = np.array([power_of.get(i, 0.0) for i in range(max(power_of) + 1)])[who[busy]]
    clocks = 1 + machine.clock_noise_frac * _wandering(len(grid), machine.clock_memory_s, generator)
    celsius = _temperature(base, machine)
    drawn = base * np.where(busy, clocks, 1.0) + machine.leak_w_per_c * (celsius - 40.0)
    used = drawn * STEP_NS * 1e-9
    # the ends of operations lie between the steps of the grid: what they leave over belongs to the step
    joules = {i: float(used[who == i].sum()) for i in sorted({0, *power_of})}
    counter = 5_000.0 + np.concatenate([[0.0], np.cumsum(used)])
    samples = _samples(machine, counter, grid, celsius, length, generator)
    return Run(start, end, line, steps, *samples, joules)


def _operations(
    phases: list[Phase], seconds: float, generator: np.random.Generator
) -> tuple[npt.NDArray[np.int64], ...]:
    now, last = 1_000_000_000, int(1e9 + seconds * 1e9)
    rows, steps = [], []
    while now < last:
        steps.append(now)
        for phase in phases:
            lasts = max(int(phase.mean_ns * (1 + phase.jitter_frac * generator.standard_normal())), STEP_NS)
            lasts = lasts // STEP_NS * STEP_NS
            rows.append((now, now + lasts, phase.line))
            now += lasts + int(phase.gap_ns * generator.uniform(0.5, 1.5)) // STEP_NS * STEP_NS
    start, end, line = np.array(rows, dtype=np.int64).T
    return start, end, line, np.array(steps, dtype=np.int64)


def _wandering(steps: int, memory_s: float, generator: np.random.Generator) -> F64:
    """Noise with standard deviation 1 that remembers itself for so long."""
    every = 10
    keep = np.exp(-every * STEP_NS * 1e-9 / memory_s)
    noise = generator.standard_normal(steps // every + 2) * np.sqrt(1 - keep**2)
    out, value = np.empty(len(noise)), float(generator.standard_normal())
    for i, one in enumerate(noise):
        value = keep * value + one
        out[i] = value
    return np.repeat(out, every)[:steps]


def _temperature(power: F64, machine: Machine) -> F64:
    """Degrees after a change follow the power slowly."""
    every = 1000
    coarse = power[: len(power) // every * every].reshape(-1, every).mean(axis=1)
    out, now = np.empty(len(coarse) + 1), 40.0
    for i, watts in enumerate([*coarse, coarse[-1]]):
        out[i] = now
        now += (35.0 + 0.05 * watts - now) * every * STEP_NS * 1e-9 / machine.warms_up_in_s
    return np.repeat(out, every)[: len(power)]


def _samples(
    machine: Machine, counter: F64, grid: npt.NDArray[np.int64], celsius: F64, length: int,
    generator: np.random.Generator,
) -> tuple[npt.NDArray[np.int64], ...]:  # fmt: skip
    """What a reader sees that asks every `poll_ns` and keeps what changed."""
    first = int(generator.integers(machine.period_ns))
    updates = np.arange(first, length, machine.period_ns, dtype=np.int64)
    updates = updates + generator.integers(-machine.uneven_ns, machine.uneven_ns, len(updates))
    known = np.interp(updates - machine.latency_ns, np.append(grid, grid[-1] + STEP_NS), counter)
    value = np.floor(known * 1000).astype(np.int64)
    polls = np.arange(0, length, machine.poll_ns, dtype=np.int64)
    polls = polls + generator.integers(0, machine.poll_ns // 10 + 1, len(polls))
    seen = np.searchsorted(updates, polls, side="right") - 1
    new = np.flatnonzero(np.diff(seen, prepend=seen[0]) > 0)
    time = (polls[new] + polls[new - 1]) // 2
    spread = (polls[new] - polls[new - 1]) // 2
    degrees = celsius[np.minimum(polls[new] // STEP_NS, len(celsius) - 1)].astype(np.int64)
    return time, spread, value[seen[new]], degrees


def recording(run: Run, pid: int = 100, device: int = 0) -> TraceBuilder:
    """The run as our recorder would have written it, each line in its function of model.py."""
    builder = TraceBuilder(pid=pid)
    for start, end, line in zip(run.start_ns.tolist(), run.end_ns.tolist(), run.line.tolist(), strict=True):
        builder.now_ns = start - 20_000
        stack = f"/app/train.py:8 main > /app/model.py:{line} part{line}"
        builder.launch(f"kernel{line}", end - start, stack=stack, start_ns=start, device=device)
    ends = [*run.step_start_ns[1:].tolist(), int(run.end_ns[-1])]
    for number, (start, end) in enumerate(zip(run.step_start_ns.tolist(), ends, strict=True)):
        builder.range(f"step {number}", start - 25_000, end - 25_000)
    columns = (run.time_ns, run.spread_ns, run.energy_mj, run.celsius)
    for time, spread, energy, celsius in zip(*(column.tolist() for column in columns), strict=True):
        builder.row(
            "PYREC_ENERGY", start=time, spread=spread, globalPid=VM | pid << 24, deviceId=device,
            energyMj=energy, powerMw=300_000, smClockMhz=1980 - celsius, clockLimits=4 * (celsius > 42),
            powerLimitMw=700_000, memoryClockMhz=3201, temperatureC=celsius,
        )  # fmt: skip
    return builder
