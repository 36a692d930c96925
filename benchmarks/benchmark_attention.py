# SPDX-License-Identifier: Apache-2.0
"""flash_attention against PyTorch's own backends and every fast attention that is installed.

    python benchmarks/benchmark_attention.py --seq-lengths 128,256,512,1024 --output benchmark_results.json
    python benchmarks/benchmark_attention.py --seq-len 8192 --head-dim 128 --causal yes --direction backward
    python benchmarks/benchmark_attention.py --suite grid --part 1/3 --output results.jsonl

Every provider is first compared with float64 at a small size and left out, with a note in the results, if it
is wrong or missing. Then all take turns within each round. TFLOP/s count 4 b h s^2 d forward (half of it
causal) and 2.5 times that backward, whatever an implementation really computes. --output ending in .jsonl
appends a line at a time, and --resume goes on where a broken run of the same commit and machine ended; any
other name gets one JSON array at the end, with every sample of each time (samples_ns). visualize_results.py
reads both. `sm_clock` is the median over the rounds of a problem, read from NVML after each of them.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from attention_cases import LENGTHS, SUITES, Problem, problem
from attention_providers import (
    ON_REQUEST,
    Attention,
    as_named,
    inputs,
    needs_repeatable,
    providers,
)
from script import run_script, say
from torch import Tensor

from profiling_lab.measure import ResultsFile, Timing, compare, machine, matmul_rate, ratio
from profiling_lab.ops.attention import reference
from profiling_lab.recording.energy.nvml import NvmlError
from profiling_lab.utils.nvml import gpu_of

STORES_SCORES = ("naive", "tiled", "eager", "sdpa-math")
FORWARD_ONLY = ("naive", "tiled", "ladder-flash")
"""Their backward is plain torch: timing it says nothing about them."""


def backward_of(function: Attention, tensors: list[Tensor], causal: bool) -> Callable[[], Any]:
    """The backward of one forward, to be called any number of times."""
    *leaves, dout = (x.detach() for x in tensors)
    leaves = [x.requires_grad_() for x in leaves]
    with torch.enable_grad():
        out = function(*leaves, causal)
    return lambda: torch.autograd.grad(out, leaves, dout, retain_graph=True)


def error_of(function: Attention, name: str, like: Problem, device: str) -> float:
    """The largest relative error of values and gradients, by norm, on a small problem. Raises as it does."""
    worst = 0.0
    heads = (like.heads // like.kv_heads) * 2
    for causal in (False, True):
        small = problem("backward", like.head_dim, 384, causal, 2, heads, 2, like.dtype, like.head_dim_v)
        tensors = inputs(small, device)
        doubles = [x.double() for x in tensors]

        def exact(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
            out: Tensor = reference(q, k, v, causal=causal)
            return out

        truth = [exact(*doubles[:3], causal), *backward_of(exact, doubles, causal)()]
        with torch.no_grad(), as_named(name):
            got = [function(*tensors[:3], causal)]
            backward = backward_of(function, tensors, causal)
        with as_named(name, backward=True):
            got += backward()
        for a, b in zip(got, truth, strict=True):
            error = ((a.double() - b).norm() / b.norm()).item()
            worst = error if math.isnan(error) else max(worst, error)
    return worst


def why(failure: Exception, said: list[str]) -> str:
    """One line: what was raised, and the warning that explains it. PyTorch's backends say their reasons so,
    between lines about those that were not asked for.
    """
    lines = [line.strip() for line in str(failure).splitlines() if line.strip()]
    reasons = [text.splitlines()[0] for text in said if text.strip()]
    reasons = [text for text in reasons if "runtime disabled" not in text and "not used because" not in text]
    text = f"{type(failure).__name__}: {lines[0] if lines else ''}"
    return f"{text} {reasons[-1].partition(' (Triggered')[0]}" if reasons else text


@dataclass(frozen=True, slots=True)
class Task:
    problem: Problem
    suite: str = ""

    @property
    def providers(self) -> tuple[str, ...] | None:
        return SUITES[self.suite].providers if self.suite else None


class Field:
    """The providers to measure, each tried once for each head_dim, group and dtype."""

    def __init__(self, options: argparse.Namespace, results: ResultsFile) -> None:
        self.options, self.results = options, results
        self.everyone = providers(options.peer)
        self.usable: dict[tuple[object, ...], dict[str, Attention]] = {}
        unknown = set(options.impl or ()) - set(self.everyone)
        if unknown:
            raise SystemExit(f"no such implementation: {sorted(unknown)}; there are {sorted(self.everyone)}")

    def wanted(self, suite: tuple[str, ...] | None) -> list[str]:
        chosen = self.options.impl or suite
        return [n for n in self.everyone if (n in chosen if chosen else n not in ON_REQUEST)]

    def of(self, task: Task, device: str) -> dict[str, Attention]:
        one, names = task.problem, self.wanted(task.providers)
        key = (one.head_dim, one.head_dim_v, one.heads // one.kv_heads, one.dtype, tuple(names))
        if key not in self.usable:
            self.usable[key] = {}
            for name in names:
                function = self.everyone[name]
                reason = function if isinstance(function, str) else self.try_out(function, name, one, device)
                if isinstance(function, str) or reason:
                    self.leave_out(name, one, str(reason))
                else:
                    self.usable[key][name] = function
        return self.usable[key]

    def try_out(self, function: Attention, name: str, one: Problem, device: str) -> str:
        """Why it cannot take part, or nothing."""
        try:
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                error = error_of(function, name, one, device)
        except Exception as failure:
            return why(failure, [str(warning.message) for warning in said])
        limit = max(4 * torch.finfo(getattr(torch, one.dtype)).eps, 1e-5)
        return "" if error < limit else f"wrong: relative error {error:.2g}, allowed {limit:.2g}"

    def leave_out(self, name: str, one: Problem, reason: str) -> None:
        say(f"  without {name} at head_dim {one.head_dim}: {reason}")
        case = {"head_dim": one.head_dim, "dtype": one.dtype, "kv_group": one.heads // one.kv_heads}
        self.results.add("attention", {**case, "reason": reason}, name, "available", 0, "1 is yes")


@contextmanager
def clock_reader(device: str) -> Iterator[Callable[[], list[float]]]:
    """A function that reads the clock of the GPU's SMs in MHz; it gives an empty list where that cannot be
    read.
    """
    try:
        gpu = gpu_of(torch.device(device).index or 0) if device.startswith("cuda") else None
    except NvmlError as error:
        say(f"  without clocks: {error}")
        gpu = None

    def read() -> list[float]:
        try:
            return [] if gpu is None else [gpu.read("sm_clock_mhz")]
        except NvmlError:
            return []

    try:
        yield read
    finally:
        if gpu is not None:
            gpu.close()


def measure(
    one: Problem, field: dict[str, Attention], options: argparse.Namespace, after_round: Callable[[int], None]
) -> dict[str, Timing]:
    tensors = inputs(one, options.device)
    variants: dict[str, Callable[[], object]] = {}
    for name, function in field.items():
        if name in STORES_SCORES and one.rows > options.naive_up_to:
            continue  # the score matrix of all heads would not fit, or take minutes
        if one.direction == "backward":
            if name in FORWARD_ONLY:
                continue
            with as_named(name):
                call = backward_of(function, tensors, one.causal)
        elif name.endswith("deterministic"):
            continue  # the same forward
        else:
            call = partial(function, *tensors[:3], one.causal)
        variants[name] = partial(repeatably, name, call) if needs_repeatable(name) else call
    if not variants:
        return {}
    with torch.no_grad():
        return compare(
            variants,
            device=options.device,
            rounds=options.rounds,
            warmup_s=options.warmup,
            cold=False,
            after_round=after_round,
        )


def repeatably(name: str, call: Callable[[], object]) -> object:
    with as_named(name, backward=True):
        return call()


def report(
    task: Task, timings: dict[str, Timing], results: ResultsFile, device: str, clocks_mhz: list[float]
) -> str:
    one = task.problem
    case = {**asdict(one), "device": device, "suite": task.suite}
    line = one.label
    if clocks_mhz:
        clock = statistics.median(clocks_mhz)
        every = {"samples_mhz": clocks_mhz} if results.samples else {}
        results.add("attention", case, "gpu", "sm_clock", clock, "MHz", **every)
    for name, timing in timings.items():
        rate = one.flops / timing.median_ns / 1e3
        results.add_timing("attention", case, name, timing)
        results.add("attention", case, name, "rate", rate, "TFLOP/s")
        line += f" {name} {rate:.{0 if rate >= 10 else 2}f} (+-{timing.iqr_frac:.1%})"
    return line


def done_before(path: Path, results: ResultsFile) -> set[Task]:
    """What the last run of the file measured, if that was this commit on this machine.

    Then this run goes on under the same number: every problem's providers took turns in one process.
    """
    if not path.exists():
        return set()
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    same = ("gpu", "driver", "torch", "cudnn", "git")
    rows = [r for r in rows if all(r[name] == getattr(results.machine, name) for name in same)]
    if not rows:
        return set()
    results.run = rows[-1]["run"]
    cases = [r["case"] for r in rows if r["run"] == results.run and r["metric"] == "rate"]
    names = Problem.__dataclass_fields__
    return {Task(Problem(**{name: case.get(name) for name in names}), case["suite"]) for case in cases}


def chosen(options: argparse.Namespace) -> list[Task]:
    """The share of the problems that is wanted."""
    if options.suite:
        found = [Task(p, name) for name in options.suite for p in SUITES[name].problems]
    else:
        masks = {"no": (False,), "yes": (True,), "both": (False, True)}[options.causal]
        directions = ("forward", "backward") if options.direction == "both" else (options.direction,)
        axes = product(options.head_dim, options.seq_lengths, masks, directions)
        found = [
            Task(problem(direction, dim, rows, causal, *options.shape, options.dtype))
            for dim, rows, causal, direction in axes
        ]
    index, count = options.part  # by twos: a forward and its backward stay together
    return [one for i, one in enumerate(found) if i // 2 % count == index - 1]


def _keep(clocks_mhz: list[float], read: Callable[[], list[float]], _: int) -> None:
    clocks_mhz += read()


def run(options: argparse.Namespace, results: ResultsFile, clock: Callable[[], list[float]]) -> bool:
    """Whether all was measured, and not the time used up before."""
    todo = chosen(options)
    if options.resume:
        known = done_before(options.output, results)
        say(f"{sum(task in known for task in todo)} of {len(todo)} problems were measured before")
        todo = [task for task in todo if task not in known]
    field = Field(options, results)
    if options.device.startswith("cuda") and options.roof:
        results.add("attention", {"n": 8192}, "matmul", "matmul_rate", matmul_rate() / 1e12, "TFLOP/s")
    start = time.monotonic()
    relative: dict[str, dict[str, float]] = defaultdict(dict)
    for number, task in enumerate(todo, 1):
        used = time.monotonic() - start
        if options.seconds and used > options.seconds:
            say(f"{used:.0f} s are used up: {len(todo) - number + 1} problems are left; --resume goes on")
            return False
        one, clocks_mhz = task.problem, list[float]()
        read_clock = partial(_keep, clocks_mhz, clock)
        timings = measure(one, field.of(task, options.device), options, read_clock)
        left = (time.monotonic() - start) / number * (len(todo) - number)
        say(f"[{number}/{len(todo)}, {left:.0f} s left]")
        print(report(task, timings, results, options.device, clocks_mhz), flush=True)
        base = timings.get(options.baseline)
        for name, timing in timings.items():
            if base is not None and name != options.baseline:
                relative[f"{name} {one.direction}"][one.label] = ratio(base, timing)
    for name, speeds in relative.items():
        mean = math.exp(sum(map(math.log, speeds.values())) / len(speeds))
        worst = min(speeds, key=lambda label: speeds[label])
        say(
            f"{name}: {mean:.3f} x {options.baseline} in the geometric mean of {len(speeds)}, "
            f"lowest {speeds[worst]:.3f} at {' '.join(worst.split())}"
        )
    return True


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def part(text: str) -> tuple[int, int]:
    index, _, count = text.partition("/")
    if not 1 <= int(index) <= int(count):
        raise ValueError(text)
    return int(index), int(count)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = ", ".join(f"{name} ({suite.about})" for name, suite in SUITES.items())
    parser.add_argument("--suite", type=lambda text: text.split(","), help=f"named problems: {names}")
    parser.add_argument("--seq-lengths", "--seq-len", type=numbers, default=list(LENGTHS))
    parser.add_argument("--head-dim", type=numbers, default=[64, 128, 256])
    parser.add_argument("--causal", choices=("no", "yes", "both"), default="both", nargs="?", const="yes")
    parser.add_argument("--direction", choices=("forward", "backward", "both"), default="both")
    parser.add_argument("--impl", type=lambda text: text.split(","), help="only these providers")
    parser.add_argument(
        "--peer", action="append", help="NAME=MODULE:FUNCTION, another provider: f(q, k, v, causal)"
    )
    parser.add_argument("--batch", type=int, help="default: 16384 rows in all")
    parser.add_argument("--heads", type=int, help="default: 2048 columns in all")
    parser.add_argument("--kv-heads", type=int, help="fewer key heads than heads: grouped queries")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--warmup", type=float, default=0.05, help="seconds for each provider and problem")
    parser.add_argument("--naive-up-to", type=int, default=4096, help="rows, for those that store the scores")
    parser.add_argument("--baseline", default="sdpa-cudnn", help="of the summary at the end")
    parser.add_argument("--no-roof", dest="roof", action="store_false", help="do not time a GEMM")
    parser.add_argument(
        "--part", type=part, default=(1, 1), metavar="I/N", help="one of N shares of the problems"
    )
    parser.add_argument("--seconds", type=float, help="begin no problem after this time; exit code 1 then")
    parser.add_argument("--resume", action="store_true", help="measure only what --output lacks (.jsonl)")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    options.shape = (options.batch, options.heads, options.kv_heads)
    for suite in options.suite or ():
        if suite not in SUITES:
            parser.error(f"no suite {suite!r}; there are {', '.join(SUITES)}")
        if SUITES[suite].device == "cpu":
            options.device = "cpu"
    lines = options.output is not None and options.output.suffix == ".jsonl"
    if options.resume and not lines:
        parser.error("--resume needs --output with a name that ends in .jsonl")
    results = ResultsFile(options.output if lines else None, machine(options.device), samples=not lines)
    with clock_reader(options.device) as clock:
        complete = run(options, results, clock)
    if options.output is not None and not lines:
        options.output.write_text(json.dumps(results.lines, indent=1) + "\n")
    return 0 if complete else 1


if __name__ == "__main__":
    run_script(main)
