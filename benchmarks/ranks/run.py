# SPDX-License-Identifier: Apache-2.0
"""Runs the golden cases of `profiling-lab ranks` on this machine's GPUs: timed, recorded, profiled.

    python benchmarks/ranks/run.py --out OUT [--only NAME,NAME] [--parts times,profiler] [--limit 240]

Each program has a delay planted on one rank. It is timed as it is and with the delay mended, in turns and
without a recording: OUT/times.jsonl. Then it is recorded as it is, with the options that
`profiling-lab record` has by default: OUT/recorded/NAME/run.rank0.sqlite and so on, which score.py compares
with the times. In the part `profiler` torch.profiler sees it too, for peers.py: OUT/profiled/NAME.

The cases follow each other in the same processes, the most important first; one that fails, hangs or dies is
left out and told at the end, with exit code 1. What is done when --limit seconds are over is kept. Without
GPUs (--device cpu) the programs run on gloo with tiny sizes, which only shows that they run.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import Any

from cases import PROGRAMS, Case, cases

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # what all benchmarks share
sys.path.insert(0, str(PROGRAMS))
import forked_jobs

PARTS = ("times", "recordings", "profiler")
WARM, SETTLE, ROUNDS = 5, 4, 4
"""steps before anything, steps after each change that are not timed, and how often each way is timed"""
RECORDED, PROFILED = 10, 5
BLOCK_S, MOST_STEPS, LEAST_STEPS = 0.25, 10, 4
"""how long the steps of one timing take about, and how many there are"""
SAMPLE_HZ = 200
"""of `profiling-lab record`"""
TOGETHER = 8
"""cases that are timed and recorded in the same processes: what is there when the time is over is complete"""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for what comes of it")
    parser.add_argument("--only", default="", help="names of cases, with commas (default: all)")
    parser.add_argument("--parts", default=",".join(PARTS), help="what to do (default: %(default)s)")
    parser.add_argument("--ranks", type=int, default=2, help="processes, each with a GPU (default: 2)")
    parser.add_argument(
        "--limit", type=float, default=600, metavar="S", help="seconds for all (default: 600)"
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    args = parser.parse_args()
    chosen = cases()
    if args.only:
        wanted = args.only.split(",")
        if missing := set(wanted) - set(chosen):
            parser.error(
                f"there is no case {', '.join(sorted(missing))}; expected some of {', '.join(chosen)}"
            )
        chosen = {name: chosen[name] for name in wanted}
    parts = args.parts.split(",")
    if unknown := set(parts) - set(PARTS):
        parser.error(f"there is no part {', '.join(sorted(unknown))}; expected some of {', '.join(PARTS)}")
    _prepare(args.device)
    args.out.mkdir(parents=True, exist_ok=True)
    return Runner(args.out, args.ranks, time.monotonic() + args.limit, args.device).run(chosen, parts)


def _prepare(device: str) -> None:
    """Import here what all processes need, and never touch the GPU: they could not use it then."""
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    import gc

    import shared.models
    import torch._dynamo
    import torch.distributed.tensor.parallel  # noqa: F401

    import profiling_lab.recording.convert  # noqa: F401

    try:
        import shared.gpt2  # noqa: F401
    except ImportError as error:
        print(f"cases with Hugging Face's GPT-2 will fail: {error}", file=sys.stderr)
    gc.collect()
    gc.freeze()  # a collection of a process would go over all of these modules


class Runner:
    def __init__(self, out: Path, ranks: int, until: float, device: str) -> None:
        self.out, self.ranks, self.until, self.device = out, ranks, until, device
        self.failures: list[str] = []
        self.took: dict[str, float] = {}

    def run(self, chosen: dict[str, Case], parts: list[str]) -> int:
        results = self._results()
        together = [case for case in chosen.values() if not case.alone]
        batches = [together[i : i + TOGETHER] for i in range(0, len(together), TOGETHER)]
        batches += [[case] for case in chosen.values() if case.alone]
        first = [part for part in parts if part != "profiler"]
        # torch.profiler keeps CUPTI for the rest of a process.
        for of in (first, [part for part in parts if part == "profiler"]):
            for batch in batches:
                pieces = [f"{part} {case.name}" for part in of for case in batch]
                for outcome in self._outcomes(pieces, chosen, dict(batch[0].environment)):
                    self._take(outcome, chosen, results)
        (self.out / "failures.txt").write_text("".join(f"{line}\n" for line in self.failures))
        print(f"{len(self.took)} pieces done, {len(self.failures)} not", flush=True)
        for line in self.failures:
            print(f"  {line}", flush=True)
        return 1 if self.failures else 0

    def _outcomes(
        self, pieces: list[str], chosen: dict[str, Case], environment: dict[str, str]
    ) -> Iterable[forked_jobs.Outcome]:
        if not pieces:
            return ()
        log = self.out / "log.txt"
        return forked_jobs.run(
            lambda: _worker(chosen, self.out),
            pieces,
            self.ranks,
            log,
            environment=environment,
            until=self.until,
        )

    def _take(self, outcome: forked_jobs.Outcome, chosen: dict[str, Case], results: Any) -> None:
        part, name = outcome.name.split(" ", 1)
        if outcome.failure:
            self.failures.append(f"{outcome.name}: {outcome.failure}")
            print(f"{outcome.name:34} failed: {outcome.failure[:300]}", flush=True)
            return
        self.took[outcome.name] = outcome.seconds
        facts = outcome.results[0]
        said = ""
        if part == "times":
            for way, samples in facts.items():
                case = {"program": name, "ranks": self.ranks, "device": self.device}
                results.add("ranks", case, way, "step", median(samples), "ms", samples_ms=samples)
                said += f"{median(samples):9.2f} ms {way} "
        elif facts:
            said = f"{facts:9.2f} ms"
        print(f"{outcome.name:34} {said} ({outcome.seconds:.1f} s)", flush=True)

    def _results(self) -> Any:
        from profiling_lab.measure.device import Machine
        from profiling_lab.measure.results import ResultsFile

        asked = forked_jobs.run(
            lambda: lambda _: _machine(self.device), ["machine"], 1, self.out / "log.txt", until=self.until
        )
        (outcome,) = asked
        if outcome.failure:
            raise SystemExit(f"the machine could not be read: {outcome.failure}")
        return ResultsFile(self.out / "times.jsonl", Machine(**outcome.results[0]))


def _machine(device: str) -> dict[str, Any]:
    from profiling_lab.measure.device import machine

    return asdict(machine(device))


def _worker(chosen: dict[str, Case], out: Path) -> forked_jobs.Work:
    """In each process."""
    from shared.job import Job

    job = Job()
    do: dict[str, Callable[[Job, Case, Path], Any]] = {
        "times": _times,
        "recordings": _recording,
        "profiler": _profile,
    }

    def work(piece: str) -> Any:
        part, name = piece.split(" ", 1)
        try:
            return do[part](job, chosen[name], out)
        finally:
            job.end_program()
            job.barrier()

    return work


def _program(case: Case) -> ModuleType:
    spec = importlib.util.spec_from_file_location(case.name, case.path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[case.name] = module  # where pickling looks for it
    spec.loader.exec_module(module)
    return module


def _step(job: Any, case: Case) -> Callable[[], object]:
    """One that is warm."""
    step: Callable[[], object] = _program(case).build(job)
    for _ in range(WARM):
        step()
    job.barrier()
    return step


def _times(job: Any, case: Case, _: Path) -> dict[str, list[float]]:
    """Milliseconds of a step in each way, as the slowest rank saw it."""
    step = _step(job, case)
    once_s = _timed(job, step, LEAST_STEPS)
    steps = max(LEAST_STEPS, min(MOST_STEPS, int(BLOCK_S / once_s)))
    samples: dict[str, list[float]] = {way: [] for way in case.ways}
    for turn in range(ROUNDS if len(case.ways) > 1 else 1):
        for way, mended in list(case.ways.items())[:: 1 if turn % 2 else -1]:
            job.mend(mended)
            for _ in range(SETTLE):
                step()
            samples[way].append(1e3 * _timed(job, step, steps))
    return samples


def _timed(job: Any, step: Callable[[], object], steps: int) -> float:
    job.barrier()
    began = time.perf_counter()
    for _ in range(steps):
        step()
    job.synchronize()
    return float(job.longest(time.perf_counter() - began)) / steps


def _recording(job: Any, case: Case, out: Path) -> float:
    """All of the program, as `profiling-lab record` does. Returns milliseconds of a recorded step."""
    from profiling_lab import record

    folder = out / "recorded" / case.name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "steps.txt").write_text(f"{WARM + RECORDED}\n")
    path = folder / f"run.rank{job.rank}.sqlite"
    options = {"sample_hz": SAMPLE_HZ, "graph_nodes": case.graph_nodes, "script": str(case.path)}
    with record(path, overwrite=True, **options):
        step = _step(job, case)
        began = time.perf_counter()
        for _ in range(RECORDED):
            step()
        job.synchronize()
        took_s = time.perf_counter() - began
    return 1e3 * float(job.longest(took_s)) / RECORDED


def _profile(job: Any, case: Case, out: Path) -> None:
    from torch.profiler import ProfilerActivity, profile, schedule

    folder = out / "profiled" / case.name
    folder.mkdir(parents=True, exist_ok=True)
    step = _step(job, case)
    path = str(folder / f"rank{job.rank}.json.gz")
    with profile(
        activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if job.on_gpu else [])],
        schedule=schedule(wait=0, warmup=1, active=PROFILED),
        on_trace_ready=lambda profiler: profiler.export_chrome_trace(path),
    ) as profiler:
        for _ in range(1 + PROFILED):
            step()
            profiler.step()
        job.synchronize()


if __name__ == "__main__":
    sys.exit(main())
