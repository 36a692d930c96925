# SPDX-License-Identifier: Apache-2.0
"""Runs the golden cases of `profiling-lab ranks` on this machine's GPUs: timed, recorded, profiled.

    python benchmarks/ranks/run.py --out OUT [--only NAME,NAME] [--parts times,recordings] [--limit 240]

Each program has a delay planted on one rank. It is timed as it is and with the delay mended, in turns and
without a recording: OUT/times.jsonl. Then it is recorded as it is, with the options that
`profiling-lab record` has by default: OUT/recorded/NAME/run.rank0.sqlite and so on, which score.py compares
with the times. The part `command` records the first case once more, by
`profiling-lab record -o run.sqlite torchrun ...`: OUT/command/NAME. In the part `profiler` torch.profiler
sees the programs, too, for peers.py: OUT/profiled/NAME.

The cases follow each other in the same processes, the most important first; one that fails, hangs or dies is
left out and told at the end, with exit code 1. What is done when --limit seconds are over is kept. Without
GPUs (--device cpu) the programs run on gloo with tiny sizes, which only shows that they run.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from cases import PROGRAMS, Case, cases

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # what all benchmarks share
sys.path.insert(0, str(PROGRAMS))
import forked_jobs

PARTS = ("times", "recordings", "command", "profiler")
COMMAND_S = 90
"""that the command may take"""
TOGETHER = 10
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
    until = time.monotonic() + args.limit
    _prepare(args.device)
    args.out.mkdir(parents=True, exist_ok=True)
    return Runner(args.out, args.ranks, until, args.device).run(chosen, parts)


def _prepare(device: str) -> None:
    """Import here what all processes need, and never touch the GPU: they could not use it then."""
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    import gc

    import parts  # noqa: F401
    import shared.models
    import torch._dynamo  # what the first optimizer imports
    import torch.distributed.tensor.parallel

    import profiling_lab.recording.convert  # noqa: F401

    try:
        import shared.gpt2  # noqa: F401
    except ImportError as error:
        print(f"cases with Hugging Face's GPT-2 will fail: {error}", file=sys.stderr)
    if torch.cuda.is_initialized():
        raise SystemExit("an import has started CUDA: processes that are forked now could not use it")
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
        plan = [(part, batch) for batch in batches for part in PARTS[:2]]
        plan += [("command", batches[0][:1]), *(("profiler", batch) for batch in batches)]
        for part, batch in plan:
            if part not in parts:
                continue
            if part == "command":
                self._take(self._command(batch[0]), results)
                continue
            # Each in processes of its own: a recording must begin before NCCL's first NVTX range, and
            # torch.profiler keeps CUPTI for the rest of a process.
            outcomes = forked_jobs.run(
                lambda part=part: _worker(part, chosen, self.out),
                [f"{part} {case.name}" for case in batch],
                self.ranks,
                self.out / "log.txt",
                environment=batch[0].environment,
                until=self.until,
            )
            for outcome in outcomes:
                self._take(outcome, results)
        (self.out / "failures.txt").write_text("".join(f"{line}\n" for line in self.failures))
        print(f"{len(self.took)} pieces done, {len(self.failures)} not", flush=True)
        for line in self.failures:
            print(f"  {line}", flush=True)
        return 1 if self.failures else 0

    def _command(self, case: Case) -> forked_jobs.Outcome:
        """As a user types it."""
        folder = self.out.resolve() / "command" / case.name
        folder.mkdir(parents=True, exist_ok=True)
        words = [
            sys.executable,
            "-m",
            "profiling_lab",
            "record",
            "--overwrite",
            "-o",
            str(folder / "run.sqlite"),
        ]
        words += ["torchrun", "--nproc-per-node", str(self.ranks), "--master-port", forked_jobs.free_port()]
        began = time.monotonic()
        with (self.out / "log.txt").open("a") as log:
            ended = forked_jobs.run_command(
                [*words, str(case.path), "--steps", "15"], log, min(COMMAND_S, self.until - began), cwd=folder
            )
        return forked_jobs.Outcome(f"command {case.name}", (None,), ended, time.monotonic() - began)

    def _take(self, outcome: forked_jobs.Outcome, results: Any) -> None:
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


def _worker(part: str, chosen: dict[str, Case], out: Path) -> forked_jobs.Work:
    """In each process."""
    from parts import worker

    do = worker(part, out)
    return lambda piece: do(chosen[piece.split(" ", 1)[1]])


def _machine(device: str) -> dict[str, Any]:
    from profiling_lab.measure.device import machine

    return asdict(machine(device))


if __name__ == "__main__":
    sys.exit(main())
