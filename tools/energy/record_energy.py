# SPDX-License-Identifier: Apache-2.0
"""Checks the joules by line of `profiling-lab energy` on a GPU, and measures what --energy costs.

    python tools/energy/record_energy.py --out energy/ [--repetitions 20] [--seconds 12] [--no-cost]

1. Each phase of a program runs alone: what the counter says of it is its known power.
2. The program runs the phases in turns under a recording with --energy. Each part of `--seconds` is one
   repetition: its error bars hold if the known power of every line that is told lies within them.
3. Blocks of steps alternate between no recording, a recording, and one with --energy.

Prints all of it, and appends lines to --results. Exit code 1 if bars held in fewer than 19 of 20 repetitions,
or a step total is off by more than 1 %.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[2]
HELD_FRAC = 0.95
STEP_TOTAL_FRAC = 0.01
ALONE_S, WARM_S, LOOK_S = 6.0, 3.0, 0.002
BLOCK_S, TURNS = 4.0, 5


class Phases:
    """The phases of a step; each is one line of this file, takes some tenths of a second, and stays below the
    power limit (zeros need less): at the limit, the power of a phase depends on what ran before it.
    """

    def __init__(self) -> None:
        import torch

        self._torch = torch
        self._a = torch.zeros(4096, 4096, device="cuda")
        self._b = torch.randn(1 << 28, device="cuda", dtype=torch.bfloat16)
        self._c = torch.empty_like(self._b)

    def products(self) -> None:
        for _ in range(80):
            self._torch.mm(self._a, self._a)

    def copies(self) -> None:
        for _ in range(1000):
            self._c.copy_(self._b)

    def one_thread(self) -> None:
        for _ in range(10):
            self._torch.cuda._sleep(50_000_000)

    def step(self) -> None:
        import profiling_lab

        for phase in self.all().values():
            phase()
        self._torch.cuda.synchronize()
        profiling_lab.step()

    def all(self) -> dict[str, Callable[[], None]]:
        return {"products": self.products, "copies": self.copies, "one_thread": self.one_thread}


def watts_alone(phase: Callable[[], None], gpu: Any) -> float:
    """By the counter, after a warm-up, from one of its changes to another."""
    import torch

    changes: list[tuple[float, int]] = []
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(LOOK_S):
            now = gpu.energy_mj()
            if not changes or now != changes[-1][1]:
                changes.append((time.perf_counter(), now))

    reader = threading.Thread(target=look)
    reader.start()
    warm_s = time.perf_counter() + WARM_S
    while time.perf_counter() < warm_s + ALONE_S:
        phase()
        torch.cuda.synchronize()
    ended.set()
    reader.join()
    (began_s, first), *_, (ended_s, last) = [change for change in changes if change[0] >= warm_s]
    return (last - first) / 1e3 / (ended_s - began_s)


def judged(
    path: Path, known_w: Mapping[str, float], seconds: float, repetitions: int
) -> list[dict[str, Any]]:
    """Each repetition: per function its power, error bar and whether the known power lies in it."""
    import profiling_lab

    out = []
    with profiling_lab.open(path) as trace:
        first = trace.trace.operations.start_ns.min() - trace.trace.first_ns
        for number in range(repetitions):
            begin_s = first * 1e-9 + number * seconds
            result = trace.window(range=f"{begin_s:.6f}s:{begin_s + seconds:.6f}s").energy().result
            rows = []
            for row in result.rows:
                if row.function in known_w and row.power_w is not None and row.error_j is not None:
                    error_w, truth = row.error_j / (row.gpu_ns * 1e-9), known_w[row.function]
                    holds = abs(row.power_w - truth) <= error_w
                    found = {"power_w": row.power_w, "error_w": error_w, "known_w": truth, "holds": holds}
                    rows.append({"function": row.function, **found})
            out.append({"repetition": number, "rows": rows, "joules": result.joules})
    return out


def total_is_right(path: Path) -> tuple[float, float]:
    """Joules of the steps with known energy, and of the counter over the same time, from the file itself."""
    import numpy as np

    import profiling_lab
    from profiling_lab.trace.step_windows import step_windows

    with profiling_lab.open(path) as trace:
        (device,) = trace.energy().result.devices
        (samples,) = trace.trace.source.energy()
        steps = step_windows(trace.trace)
        start, end = steps.start_ns + device.lag_ns, steps.end_ns + device.lag_ns
        known = (start >= samples.time_ns[0]) & (end <= samples.time_ns[-1])
        span = np.array([start[known].min(), end[known].max()])
        counter = np.diff(np.interp(span, samples.time_ns, samples.energy_mj / 1e3))[0]
        return (device.step_j or 0.0) * device.steps, float(counter)


def cost(phases: Phases, out: Path) -> dict[str, Any]:
    """Milliseconds per step in turns: without a recording, with one, with --energy."""
    from profiling_lab.recording import Recorder

    times: dict[str, list[float]] = {"plain": [], "record": [], "energy": []}
    for _ in range(TURNS):
        for name, each in times.items():
            recorder = Recorder(out / "cost.sqlite", overwrite=True, energy=name == "energy")
            if name != "plain":
                recorder.start()
            began, steps = time.perf_counter(), 0
            while time.perf_counter() - began < BLOCK_S:
                phases.step()
                steps += 1
            each.append((time.perf_counter() - began) / steps * 1e3)
            if name != "plain":
                recorder.stop()
    ratios = [b / a for a, b in zip(times["record"], times["energy"], strict=True)]
    middle = {f"{name}_ms": statistics.median(each) for name, each in times.items()}
    return {
        **middle,
        "energy_to_record": statistics.median(ratios),
        "lowest": min(ratios),
        "highest": max(ratios),
    }


def _write(
    path: Path,
    known: Mapping[str, float],
    repetitions: list[dict[str, Any]],
    seconds: float,
    held: int,
    off: float,
    costs: dict[str, Any] | None,
) -> None:
    from profiling_lab.measure import ResultsFile, machine

    results, ours = ResultsFile(path, machine("cuda")), "profiling-lab energy"
    case: dict[str, str | float] = {"seconds": seconds, "repetitions": len(repetitions)}
    for name, watts in known.items():
        results.add("energy", case | {"phase": name}, "counter, the phase alone", "power", watts, "W")
        for metric in ("power_w", "error_w"):
            found = [row[metric] for each in repetitions for row in each["rows"] if row["function"] == name]
            if found:
                results.add(
                    "energy", case | {"phase": name}, ours, metric[:-2], statistics.median(found), "W"
                )
    results.add("energy", case, ours, "repetitions_held", held, "repetitions")
    results.add("energy", case, ours, "step_total_off", off, "1")
    for metric, value in (costs or {}).items():
        unit = "ms" if metric.endswith("_ms") else "1"
        results.add("energy", {"block_s": BLOCK_S, "turns": TURNS}, ours, metric, value, unit)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--repetitions", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=12.0)
    parser.add_argument("--no-cost", action="store_true")
    parser.add_argument("--results", type=Path, default=REPO / "benchmarks" / "results" / "energy.jsonl")
    args = parser.parse_args()
    import torch

    if not torch.cuda.is_available():
        print(f"this needs a GPU, and torch {torch.__version__} sees none", file=sys.stderr)
        return 2
    import profiling_lab
    from profiling_lab.utils.nvml import gpu_of

    args.out.mkdir(parents=True, exist_ok=True)
    phases, gpu = Phases(), gpu_of(torch.cuda.current_device())
    known = {f"Phases.{name}": watts_alone(phase, gpu) for name, phase in phases.all().items()}
    print("alone:", {name: f"{watts:.1f} W" for name, watts in known.items()}, flush=True)

    path = args.out / "phases.sqlite"
    with profiling_lab.record(path, overwrite=True, energy=True):
        end = time.perf_counter() + args.repetitions * args.seconds + 1
        while time.perf_counter() < end:
            phases.step()
    repetitions = judged(path, known, args.seconds, args.repetitions)
    held = sum(bool(each["rows"]) and all(row["holds"] for row in each["rows"]) for each in repetitions)
    for each in repetitions:
        print(each["repetition"], *(
            f"{row['function']} {row['power_w']:.1f} +/- {row['error_w']:.1f} W ({row['holds']})"
            for row in each["rows"]
        ))  # fmt: skip
    of_steps, of_counter = total_is_right(path)
    off = abs(of_steps / of_counter - 1)
    print(
        f"bars held in {held} of {args.repetitions}; "
        f"steps {of_steps:.1f} J, counter {of_counter:.1f} J: {off:.2%}"
    )
    costs = None if args.no_cost else cost(phases, args.out)
    print("cost:", costs)
    _write(args.results, known, repetitions, args.seconds, held, off, costs)
    return 0 if held >= HELD_FRAC * args.repetitions and off <= STEP_TOTAL_FRAC else 1


if __name__ == "__main__":
    sys.exit(main())
