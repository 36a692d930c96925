# SPDX-License-Identifier: Apache-2.0
"""Runs train_model.py in each way on this machine's GPUs: are its losses one GPU's, has its GPU time a line?

    python benchmarks/distributed/compare_ways.py --out OUT [--ways single,ddp,zero3] [-o results.jsonl]

Each way runs recorded and plain, each time in new processes: OUT/WAY/run.rank0.sqlite and so on. A loss of
either run must be within a tolerance of that of one GPU, and it must fall by much more. Of the GPU time of
each rank at least 99 % must have a line, or a name and the modules it works for. Exit code 1 if not, or where
a way did not run. Without GPUs (--device cpu) sizes are tiny, and nothing is covered.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # what all benchmarks share
import forked_jobs

from profiling_lab.analysis.coverage import AT_THE_END, IN_HOOKS, Coverage

WAYS = ("single", "ddp", "fsdp2", "tensor", "zero3", "zero1", "zero2")
SIZES = {
    "cuda": "--width 1024 --head-dim 64 --blocks 4 --words 8192 --length 512 --batch 16 --steps 6",
    "cpu": "--steps 4",
}
TOLERANCE = {"cuda": 0.02, "cpu": 2e-5}
"""bfloat16 rounds what is summed in another order; the sums of gradients come from other partial sums"""
COVERED_FRAC = 0.99
BENCHMARK = "train_model"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the recordings")
    parser.add_argument("--ways", default=",".join(WAYS), help="(default: %(default)s)")
    parser.add_argument("--ranks", type=int, default=2, help="processes, each with a GPU (default: 2)")
    parser.add_argument("--limit", type=float, default=600, metavar="S", help="seconds in all (default: 600)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("-o", "--output", type=Path, help="append JSON lines here, too")
    args = parser.parse_args()
    if not args.ways.startswith("single"):
        parser.error("the first way must be single: the others are compared with it")
    until = time.monotonic() + args.limit
    args.out.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    if args.device == "cpu":
        os.environ |= {"CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
    import torch._dynamo  # what the first optimizer imports
    import torch.distributed.tensor.parallel  # noqa: F401
    import train_model  # noqa: F401

    import profiling_lab.recording.convert  # noqa: F401

    log = args.out / "log.txt"
    machine = _only(forked_jobs.run(lambda: lambda _: _machine(args.device), ["machine"], 1, log))
    if machine.failure:
        parser.error(f"the machine could not be read: {machine.failure}")
    results = _results(args.output, machine.results[0])
    failures: list[str] = []
    truth: list[float] = []
    for way in args.ways.split(","):
        ranks = 1 if way == "single" else args.ranks
        (args.out / way).mkdir(exist_ok=True)
        found = {}
        for how in ("recorded", "plain"):
            outcome = _only(
                forked_jobs.run(
                    lambda way=way, how=how: lambda _: _train(way, how, args.out / way, args.device),
                    [f"{way} {how}"], ranks, log, until=until, piece_s=90,
                )
            )  # fmt: skip
            found[how] = outcome
            if outcome.failure:
                failures.append(f"{way} {how}: {outcome.failure}")
        losses = {how: each.results[0] for how, each in found.items() if each.results}
        if way == "single" and losses:
            truth = next(iter(losses.values()))
        failures += _compare(way, losses, truth, TOLERANCE[args.device], results)
        if args.device == "cuda" and "recorded" in losses:
            failures += _coverage(way, sorted((args.out / way).glob("*.sqlite")), results)
        took_s = sum(each.seconds for each in found.values())
        print(
            f"{way}: {' '.join(f'{loss:.4f}' for loss in losses.get('plain', []))} ({took_s:.0f} s)",
            flush=True,
        )
    for failure in failures:
        print(f"  FAILED {failure}", flush=True)
    return 1 if failures else 0


def _train(way: str, how: str, folder: Path, device: str) -> list[float]:
    """In each process: the losses that it printed."""
    import train_model

    from profiling_lab import record

    path = folder / f"run.rank{os.environ['RANK']}.sqlite"
    recording = record(path, overwrite=True, sample_hz=200) if how == "recorded" else contextlib.nullcontext()
    printed = io.StringIO()
    with recording, contextlib.redirect_stdout(printed):
        train_model.main(["--way", way, *SIZES[device].split()])
    return [float(line.rsplit(" ", 1)[1]) for line in printed.getvalue().splitlines() if ": loss " in line]


def _compare(
    way: str, losses: dict[str, list[float]], truth: list[float], tolerance: float, results: Any
) -> list[str]:
    out = []
    for how, found in losses.items():
        if len(found) != len(truth):
            out.append(f"{way} {how}: {len(found)} losses, one GPU has {len(truth)}")
            continue
        apart = max(abs(a - b) for a, b in zip(found, truth, strict=True))
        results.add(BENCHMARK, {"way": way, "recorded": how == "recorded"}, "torch", "loss_apart", apart, "")
        if apart > tolerance:
            out.append(
                f"{way} {how}: a loss is {apart:.4g} from that of one GPU, expected {tolerance:g} at most"
            )
        if found[0] - found[-1] < 10 * tolerance:
            out.append(f"{way} {how}: the loss hardly falls ({found[0]:.4f} to {found[-1]:.4f})")
    return out


def _coverage(way: str, recordings: list[Path], results: Any) -> list[str]:
    from profiling_lab.analysis.lines import lines
    from profiling_lab.trace import Trace

    out = []
    for rank, path in enumerate(recordings):
        with Trace.open(path) as trace:
            covered = lines(trace).coverage
        case = {"way": way, "rank": rank}
        provider = "profiling_lab"
        named = _named_frac(covered)
        results.add(BENCHMARK, case, provider, "gpu_time", covered.gpu_ns, "ns")
        results.add(BENCHMARK, case, provider, "with_a_line", covered.attributed_frac, "ratio")
        results.add(BENCHMARK, case, provider, "with_a_line_or_name", named, "ratio")
        for rest in covered.unattributed:
            share = rest.ns / covered.gpu_ns
            results.add(BENCHMARK, case | {"reason": rest.reason}, provider, "without_a_line", share, "ratio")
            print(f"  {way} rank {rank}: {share:.2%} {rest.reason}", flush=True)
        print(
            f"  {way} rank {rank}: {covered.attributed_frac:.2%} with a line, {named:.2%} with a name",
            flush=True,
        )
        if named < COVERED_FRAC:
            out.append(f"{way} rank {rank}: {named:.2%} of the GPU time has a line or a name")
    return out


def _named_frac(covered: Coverage) -> float:
    named = sum(rest.ns for rest in covered.unattributed if rest.reason.startswith((IN_HOOKS, AT_THE_END)))
    return (covered.attributed_ns + named) / covered.gpu_ns if covered.gpu_ns else 0.0


def _only(outcomes: Any) -> forked_jobs.Outcome:
    (outcome,) = outcomes
    return outcome


def _machine(device: str) -> dict[str, Any]:
    from profiling_lab.measure.device import machine

    return asdict(machine(device))


def _results(path: Path | None, facts: dict[str, Any]) -> Any:
    from profiling_lab.measure.device import Machine
    from profiling_lab.measure.results import ResultsFile

    return ResultsFile(path, Machine(**facts))


if __name__ == "__main__":
    raise SystemExit(main())
