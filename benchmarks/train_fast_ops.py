# SPDX-License-Identifier: Apache-2.0
"""Train the demo before and after: with the slow HeavyLayer and torch's ops, and with this package's ops.

    python benchmarks/train_fast_ops.py -o benchmarks/results/train_fast_ops.jsonl
    python benchmarks/train_fast_ops.py --traces docs/fast_ops      also record a few steps of both, reduced
    python benchmarks/train_fast_ops.py --parts loss                only the curves

Per case (the demo's model and, so that layer_norm_gelu has a place too, the same with hidden_norm; float32
and autocast to bfloat16) and provider ("before", "after"):
  loss          the mean of `case.steps` steps up to step `case.step`, for two seeds of weights and data
  step_time     both in turns
and for the case: how far the curve after is from the one before, and how far two seeds are from each
other.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

from reduce_trace import SIZE_LIMIT_BYTES, reduce
from script import run_script

from profiling_lab.demo.training import training_script
from profiling_lab.measure import ResultsFile, interleaved, machine, ratio
from profiling_lab.models import Transformer
from profiling_lab.models.transformer import Ops
from profiling_lab.recording import record

BENCHMARK = "train_fast_ops"
CASES = {
    "demo-fp32": ("demo", "fp32"),
    "demo-bf16": ("demo", "bf16"),
    "hidden-norm-bf16": ("demo with hidden_norm", "bf16"),
}
PROVIDERS: dict[str, Ops] = {"before": "torch", "after": "fast"}
PARTS = ("loss", "time")
SEEDS = (0, 1)
RECORDED = ("demo with hidden_norm", "bf16")
WARMUP_STEPS, RECORDED_STEPS = 20, 5

Curve = list[float]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--output", "-o", type=Path, help="append JSON lines here (default: print a summary only)"
    )
    parser.add_argument("--cases", nargs="*", choices=CASES, default=tuple(CASES))
    parser.add_argument("--parts", nargs="*", choices=PARTS, default=PARTS)
    parser.add_argument("--steps", type=int, default=300, help="steps of training per curve (300)")
    parser.add_argument("--every", type=int, default=10, help="steps per point of a curve (10)")
    parser.add_argument("--blocks", type=int, default=9, help="blocks of 10 steps that are timed (9)")
    parser.add_argument(
        "--traces", type=Path, help="record a few steps into before_<gpu>.sqlite and after_... here"
    )
    parser.add_argument("--gpu", default="h200", help="for the traces' names")
    args = parser.parse_args()
    results = ResultsFile(args.output, machine("cuda"))
    with training_script() as script:
        for model, dtype in (CASES[name] for name in args.cases):
            if "loss" in args.parts:
                curves = {
                    (provider, seed): train(
                        script, results, model, dtype, provider, seed, args.steps, args.every
                    )
                    for seed in SEEDS
                    for provider in PROVIDERS
                }
                distances(results, model, dtype, curves)
            if "time" in args.parts:
                times(script, results, model, dtype, args.blocks)
        if args.traces:
            return record_both(script, args.traces, args.gpu)
    return 0


def build(
    script: ModuleType, model: str, dtype: str, provider: str, seed: int, batches: int
) -> tuple[Any, Any, Any]:
    """A step of training, as the demo's script makes it, with the batches of that seed."""
    import torch

    torch.manual_seed(seed)
    network = Transformer(ops=PROVIDERS[provider], hidden_norm=model != "demo").cuda()
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-4)
    loader = script.create_dummy_dataloader(batches=batches, seed=seed)

    def step(data: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return script.training_step(network, data, target, optimizer, script.DTYPES[dtype])

    return step, loader, network


def train(
    script: ModuleType,
    results: ResultsFile,
    model: str,
    dtype: str,
    provider: str,
    seed: int,
    steps: int,
    every: int,
) -> Curve:
    """The loss, as means of `every` steps."""
    import torch

    step, loader, _ = build(script, model, dtype, provider, seed, steps)
    losses = torch.stack([step(data.cuda(), target.cuda()) for data, target in loader])
    curve = losses[: steps // every * every].view(-1, every).mean(dim=1).tolist()
    for index, loss in enumerate(curve, 1):
        at = {"seed": seed, "step": index * every, "steps": every}
        results.add(BENCHMARK, {"model": model, "dtype": dtype, **at}, provider, "loss", loss, "nats")
    return [float(loss) for loss in curve]


def distances(results: ResultsFile, model: str, dtype: str, curves: dict[tuple[str, int], Curve]) -> None:
    """How far curves are from each other: the mean over their points."""

    def apart(a: Curve, b: Curve) -> float:
        return statistics.fmean(abs(x - y) for x, y in zip(a, b, strict=True))

    case = {"model": model, "dtype": dtype}
    changed = max(apart(curves["before", seed], curves["after", seed]) for seed in SEEDS)
    seeds = apart(curves["before", SEEDS[0]], curves["before", SEEDS[1]])
    results.add(BENCHMARK, case, "after", "distance_to_before", changed, "nats")
    results.add(BENCHMARK, case, "before", "distance_of_seeds", seeds, "nats")
    first, last = (curves["before", SEEDS[0]][i] for i in (0, -1))
    print(
        f"{model}, {dtype}: loss {first:.3f} to {last:.3f}; before to after {changed:.5f}, "
        f"two seeds {seeds:.5f}"
    )


def forever(script: ModuleType, model: str, dtype: str, provider: str) -> Callable[[], object]:
    """A step on one batch that is on the GPU already, to be repeated."""
    step, loader, _ = build(script, model, dtype, provider, SEEDS[0], 1)
    data, target = (tensor.cuda() for tensor in next(iter(loader)))
    return lambda: step(data, target)


def times(script: ModuleType, results: ResultsFile, model: str, dtype: str, blocks: int) -> None:
    steps = {provider: forever(script, model, dtype, provider) for provider in PROVIDERS}
    timings = interleaved(steps, steps_per_block=10, blocks=blocks)
    case = {"model": model, "dtype": dtype}
    for provider, timing in timings.items():
        results.add_timing(BENCHMARK, case, provider, timing, "step_time")
    gain = ratio(timings["before"], timings["after"])
    results.add(BENCHMARK, case, "after", "speedup", gain, "1")
    each = ", ".join(f"{name} {timing.median_ns / 1e6:.2f} ms" for name, timing in timings.items())
    print(f"{model}, {dtype}: {each}, {gain:.2f} x")


def record_both(script: ModuleType, folder: Path, gpu: str) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    too_large = 0
    with TemporaryDirectory(prefix="profiling-lab-record-") as scratch:
        for provider, step in steps_to_record(script):
            full, target = Path(scratch) / f"{provider}.sqlite", folder / f"{provider}_{gpu}.sqlite"
            with record(full):  # NVTX asks once, at its first range, whether a tool listens
                for _ in range(WARMUP_STEPS):
                    step()
            with record(full, overwrite=True):
                for _ in range(RECORDED_STEPS):
                    step()
            size = reduce(full, target, (str(Path(__file__).resolve().parent),))
            print(f"{target}: {size} bytes", file=sys.stderr)
            too_large |= size >= SIZE_LIMIT_BYTES
    return too_large


def steps_to_record(script: ModuleType) -> Iterator[tuple[str, Callable[[], object]]]:
    for provider in PROVIDERS:
        yield provider, forever(script, *RECORDED, provider)


if __name__ == "__main__":
    run_script(main)
