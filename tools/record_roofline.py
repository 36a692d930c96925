# SPDX-License-Identifier: Apache-2.0
"""Everything about `roofline` that needs a GPU with readable counters, in one go: at most 100 seconds.

python tools/record_roofline.py --out DIR [--part NAME] [--seconds 100]

peaks      measures the rates of the GPU                           DIR/peaks.json
accuracy   counted against measured for single operators           DIR/roofline_accuracy.jsonl
programs   records the demo, a GPT-2-medium-like and a ViT step    DIR/*.sqlite, .roofline.txt, .json, .html
lines      ncu's sums for the ten hottest lines of gpt and vit     DIR/lines.json
models     the same for steps of five whole models                 DIR/roofline_accuracy.jsonl
ranges     models, and the operators that benchmarks/results lacks, as ranges, not kernels (unverified)

A part that fails is told, and the next one runs. tools/roofline_error.py makes the table of errors.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[1]
BENCHMARKS = REPO / "benchmarks"
LEAST_SECONDS = 20
PARTS = ("accuracy", "peaks", "lines", "programs", "models", "ranges")
sys.path[:0] = [str(BENCHMARKS)]


class Work:
    """Where results go, and how much time is left."""

    def __init__(self, out: Path, seconds: float, begin: int) -> None:
        self.out, self.ends, self.begin = out, time.monotonic() + seconds, begin

    @property
    def left(self) -> float:
        return self.ends - time.monotonic()

    def run(self, *command: str, timeout: float | None = None, log: str = "") -> int:
        """Run a command, its output also in DIR/log."""
        print("$", " ".join(command), flush=True)
        began = time.monotonic()
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, cwd=self.out,
                timeout=max(timeout if timeout is not None else self.left + 20, 5),
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            print(f"  stopped after {error.timeout:.0f} s", flush=True)
            return 124
        text = done.stdout + (f"\n--- stderr\n{done.stderr}" if done.stderr else "")
        if log:
            (self.out / log).write_text(done.stdout)
        print(text[-6000:], f"\n  [{done.returncode} after {time.monotonic() - began:.1f} s]", flush=True)
        return done.returncode

    def lab(self, *arguments: str, log: str = "") -> int:
        return self.run(sys.executable, "-m", "profiling_lab", *arguments, log=log)


def peaks(work: Work) -> None:
    work.lab("peaks", "--overwrite", "-o", str(work.out / "peaks.json"))


def programs(work: Work) -> None:
    from profiling_lab.demo.program import copy_program

    copy_program(work.out)
    model = str(BENCHMARKS / "roofline_models.py")
    todo: dict[str, list[str]] = {
        "demo": [str(work.out / "train_model.py"), "--device", "cuda", "--epochs", "1", "--batches", "6"],
        "gpt": [model, "gpt", "--layers", "24"],
        "vit": [model, "vit", "--layers", "12"],
    }
    for name, command in todo.items():
        file = f"{name}.sqlite"
        if work.lab("record", "--work", "--overwrite", "--no-samples", "-o", file, *command):
            continue
        show(work, name)


def show(work: Work, name: str) -> None:
    file = f"{name}.sqlite"
    rates = ["--peaks", "peaks.json"] if (work.out / "peaks.json").is_file() else []
    work.lab("roofline", file, "--plot", f"{name}.html", *rates, log=f"{name}.roofline.txt")
    work.lab("roofline", file, "--by", "op", "--limit", "12", *rates, log=f"{name}.op.txt")
    command = [sys.executable, "-m", "profiling_lab", "roofline", file, "--limit", "0", "--format", "json"]
    with (work.out / f"{name}.json").open("w") as out:
        subprocess.run(
            [*command, *rates],
            stdout=out, cwd=work.out, check=False,
        )  # fmt: skip


def lines(work: Work) -> None:
    """The ten hottest lines of a recorded step against ncu's counters for the same kernels."""
    found = {}
    for name in ("gpt", "vit"):
        if work.left < 25:
            print(f"no time is left for the lines of {name}")
            break
        found[name] = lines_of(work, name)
        (work.out / "lines.json").write_text(json.dumps(found, indent=1))


def lines_of(work: Work, name: str) -> Any:
    import roofline_accuracy as counters

    model, layers = str(BENCHMARKS / "roofline_models.py"), "2"
    file, table = work.out / f"{name}_short.sqlite", work.out / f"{name}_ncu.csv"
    program = [model, name, "--layers", layers, "--steps", "3"]
    work.lab("record", "--work", "--work-step", "2", "--overwrite", "--no-samples", "-o", str(file), *program)
    ncu = counters.ncu_program()
    metrics, tensor = counters.metrics_of(ncu)
    work.run(
        ncu, "--profile-from-start", "off", "--clock-control", "none", "--metrics", ",".join(metrics),
        "--csv", "--page", "raw", "--print-units", "base", "--log-file", str(table), "-f",
        sys.executable, *program, "--counters",
    )  # fmt: skip
    return compared(file, list(counters.read_csv(table)), tensor)


def compared(file: Path, measured: list[dict[str, str]], tensor: list[str]) -> Any:
    """Counted and measured, by line and phase, where the kernels are the same in the same order."""
    import numpy as np
    import roofline_accuracy as counters
    import torch

    from profiling_lab.analysis.roofline.operators import counted_step
    from profiling_lab.analysis.roofline.roofline import roofline
    from profiling_lab.trace import Trace
    from profiling_lab.trace.columns import OperationKind
    from profiling_lab.trace.ownership import Ownership
    from profiling_lab.trace.phases import LINE_PHASES

    l2_bytes = int(torch.cuda.get_device_properties(0).L2_cache_size)
    with Trace.open(file) as trace:
        step, operations = counted_step(trace), trace.operations
        rows = step.rows[operations.kind[step.rows] == OperationKind.KERNEL]
        rows = rows[np.argsort(operations.start_ns[rows], kind="stable")]
        names = [operations.short_names[i] for i in operations.name[rows].tolist()]
        there = [row["Kernel Name"] for row in measured]
        same = sum(mine.split("<")[0] in theirs for mine, theirs in zip(names, there, strict=False))
        print(
            f"{len(names)} kernels were recorded, {len(there)} measured, {same} have the same name in order"
        )
        if len(names) != len(there) or same < 0.98 * len(names):
            for mine, theirs in list(zip(names, there, strict=False))[:400]:
                if mine.split("<")[0] not in theirs:
                    print("  first difference:", mine, "|", theirs[:150])
                    break
            return {"kernels": [len(names), len(there)], "same": same}
        own, stacks = trace.stacks.own_rows(Ownership(())), trace.stacks
        sums: dict[tuple[int, str], list[dict[str, str]]] = {}
        counted = {row for row, op in zip(step.rows.tolist(), step.operator.tolist(), strict=True) if op >= 0}
        for row, kernel in zip(rows.tolist(), measured, strict=True):
            place = int(own[trace.attribution.stack[row]])
            if place and row in counted:
                key = stacks.frames[stacks.frame[place]].line, LINE_PHASES[trace.attribution.line_phase[row]]
                sums.setdefault(key, []).append(kernel)
        result = roofline(trace, None)
        out = []
        for row in [one for one in result.rows if (one.line, one.phase) in sums][:10]:
            ncu = counters.measured_work(sums[row.line, row.phase], tensor, l2_bytes)
            moved = ncu["read_bytes"] + ncu["written_bytes"]
            out.append({"line": row.line, "phase": row.phase, "gpu_ns": row.gpu_ns, "bytes": row.bytes,
                        "ncu_bytes": moved, "flops": row.flops, "ncu_flops": ncu["flops"],
                        "operators": row.operators[:4]})  # fmt: skip
            flops = f"{row.flops / ncu['flops']:.3f}" if row.flops and ncu["flops"] else "-"
            of_bytes = f"{row.bytes / max(moved, 1):.3f}"
            print(f"  {file.stem}:{row.line} {row.phase}: counted / ncu: bytes {of_bytes}, FLOPs {flops}; "
                  f"{row.gpu_ns / 1e6:.3f} ms; {', '.join(row.operators[:4])}")  # fmt: skip
        return out


def accuracy(work: Work, *options: str) -> None:
    seconds = max(work.left - 15, 15)
    results = str(work.out / "roofline_accuracy.jsonl")
    name = "models" if options else "operators"
    options = options or ("--with-models",)
    work.run(
        sys.executable, str(BENCHMARKS / "roofline_accuracy.py"), "--results", results,
        "--seconds", str(seconds), "--begin", str(0 if name == "models" else work.begin),
        "--keep", str(work.out / f"counters_{name}"), *options,
        timeout=seconds + 60, log=f"accuracy_{name}.txt",
    )  # fmt: skip


def ranges(work: Work) -> None:
    """Steps of whole models as ranges, then what benchmarks/results lacks: as ranges if that worked."""
    program = [sys.executable, str(BENCHMARKS / "roofline_accuracy.py")]
    program += ["--results", str(work.out / "roofline_accuracy.jsonl")]
    runs = work.out / "ranges_models" / "work.runs"
    limit = 0.55 * work.left
    worked = not work.run(
        *program, "--models", "--ranges", "--seconds", str(limit / 3), "--limit", str(limit),
        "--keep", str(runs.parent), timeout=limit + 10, log="ranges_models.txt",
    )  # fmt: skip
    passes = len(runs.read_text().splitlines()) if worked else 1
    print(f"ranges {'work' if worked else 'do not work'}, {passes} passes, {work.left:.0f} s left")
    how = ["--ranges"] if worked else []
    seconds = max((work.left - 4) / passes - 5, 3) if worked else max(work.left - 12, 5)
    work.run(
        *program, "--missing", *how, "--seconds", str(seconds), "--limit", str(work.left + 15),
        "--keep", str(work.out / "ranges_operators"), timeout=work.left + 25, log="ranges_operators.txt",
    )  # fmt: skip


def models(work: Work) -> None:
    accuracy(work, "--models")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument(
        "--part", action="append", choices=PARTS, help="only this; may be given several times"
    )
    parser.add_argument("--seconds", type=float, default=100)
    parser.add_argument("--begin", type=int, default=0, help="the first operator of accuracy, from 0")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    work = Work(args.out.resolve(), args.seconds, args.begin)
    failed = 0
    todo: dict[str, Callable[[Work], None]] = {
        "accuracy": accuracy, "peaks": peaks, "lines": lines, "programs": programs, "models": models,
        "ranges": ranges,
    }  # fmt: skip
    for name in args.part or PARTS:
        print(f"\n===== {name}, {work.left:.0f} s left", flush=True)
        if work.left < LEAST_SECONDS:
            print("left out: no time")
            continue
        try:
            todo[name](work)
        except Exception:
            traceback.print_exc()
            failed += 1
    print(f"\ndone, {work.left:.0f} s left; {failed} parts failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
