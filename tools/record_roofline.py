# SPDX-License-Identifier: Apache-2.0
"""Everything about `roofline` and `counters` that needs a GPU with readable counters.

python tools/record_roofline.py --out DIR [--part NAME] [--seconds 300]

peaks      measures the rates of the GPU                           DIR/peaks.json
sampled    counted bytes against sampled counters: operators and   DIR/roofline_accuracy.jsonl
           steps of five whole models
flops      counted FLOPs against ncu, where there are any          DIR/roofline_accuracy.jsonl
lines      counted, sampled and ncu's bytes for the ten hottest    DIR/roofline_lines.jsonl
           lines of a GPT-2-medium-like and a ViT step
cost       steps with and without --counters, in turns             DIR/counters.jsonl
programs   records the demo, GPT-2 medium and ViT whole            DIR/*.sqlite, .roofline.txt, .html

A part that fails is told, and the next one runs. tools/roofline_error.py makes the tables of errors.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[1]
BENCHMARKS = REPO / "benchmarks"
LEAST_SECONDS = 20
PARTS = ("peaks", "sampled", "flops", "lines", "cost", "programs")
sys.path[:0] = [str(BENCHMARKS)]


class Work:
    """Where results go, and how much time is left."""

    def __init__(self, out: Path, seconds: float, begin: int, models: Sequence[str]) -> None:
        self.out, self.ends, self.begin = out, time.monotonic() + seconds, begin
        self.models = models

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
        if work.lab("record", "--work", "--counters", "--overwrite", "--no-samples", "-o", file, *command):
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
    """The ten hottest lines of a step: counted from shapes, sampled, and as ncu measures their kernels."""
    from profiling_lab.measure import ResultsFile, machine

    results = ResultsFile(work.out / "roofline_lines.jsonl", machine("cuda"))
    for name in work.models:
        if work.left < 40:
            print(f"no time is left for the lines of {name}")
            break
        sampled = sampled_lines(work, name)
        for row in lines_of(work, name):
            case = {"model": name, "line": row["line"], "phase": row["phase"]}
            quantities = {"modelled": row["bytes"], "ncu": row["ncu_bytes"], "ncu, warm": row["warm_bytes"]}
            amount, error = sampled.get((row["line"], row["phase"]), (None, None))
            quantities |= {"sampled": amount, "sampled, half of the interval": error}
            print(f"  {name}:{row['line']} {row['phase']:8} {row['gpu_ns'] / 1e6:7.3f} ms; MB:", end="")
            for who, value in quantities.items():
                if value is not None:
                    results.add("roofline_lines", case, who, "bytes", value, "B")
                    print(f" {who} {value / 1e6:.1f}", end="")
            for who, value in (("modelled", row["flops"]), ("ncu", row["ncu_flops"])):
                if value:
                    results.add("roofline_lines", case, who, "flops", value, "FLOP")
                    print(f"; {who} {value / 1e9:.2f} GFLOP", end="")
            results.add("roofline_lines", case, "recorded", "time", row["gpu_ns"], "ns")
            print(flush=True)


STEPS = 100


def sampled_lines(work: Work, name: str) -> dict[tuple[int, str], tuple[float, float]]:
    """Per line and phase the bytes of a step and their error, from sampled counters."""
    from profiling_lab.analysis.counters.by_line import counters_by_line
    from profiling_lab.trace import Trace

    file = work.out / f"{name}_counters.sqlite"
    program = [str(BENCHMARKS / "roofline_models.py"), name, "--layers", "2", "--steps", str(STEPS)]
    if work.lab("record", "--counters", "--overwrite", "--no-samples", "-o", str(file), *program):
        return {}
    work.lab("counters", str(file), log=f"{name}.counters.txt")
    found = {}
    with Trace.open(file) as trace:
        for row in counters_by_line(trace).rows:
            both = [row.counters[each] for each in ("dram_read", "dram_written") if each in row.counters]
            if len(both) == 2:
                amount, error = sum(one.amount for one in both), sum(one.error for one in both)
                found[row.line, row.phase] = amount / STEPS, error / STEPS
    return found


def lines_of(work: Work, name: str) -> list[dict[str, Any]]:
    import roofline_accuracy as counters

    model, layers = str(BENCHMARKS / "roofline_models.py"), "2"
    file = work.out / f"{name}_short.sqlite"
    program = [model, name, "--layers", layers, "--steps", "3"]
    work.lab("record", "--work", "--work-step", "2", "--overwrite", "--no-samples", "-o", str(file), *program)
    ncu = counters.ncu_program()
    metrics, tensor = counters.metrics_of(ncu)
    moved = [counters.READ, counters.WRITTEN]
    tables = []
    # Cold: ncu empties the caches before each kernel. Warm: it does not, and replays nothing.
    for state, wanted in (("cold", metrics), ("warm", moved)):
        tables.append(work.out / f"{name}_{state}.csv")
        cache = "all" if state == "cold" else "none"
        work.run(
            ncu, "--profile-from-start", "off", "--clock-control", "none", "--cache-control", cache,
            "--metrics", ",".join(wanted), "--csv", "--page", "raw", "--print-units", "base",
            "--log-file", str(tables[-1]), "-f", sys.executable, *program, "--counters",
        )  # fmt: skip
    cold, warm = (list(counters.read_csv(table)) for table in tables)
    if len(cold) != len(warm):
        print(f"{len(cold)} kernels were measured cold, {len(warm)} warm")
        return []
    for row, other in zip(cold, warm, strict=True):
        row["warm"] = str(sum(counters.number(other[name]) for name in moved))
    return compared(file, cold, tensor)


def compared(file: Path, measured: list[dict[str, str]], tensor: list[str]) -> list[dict[str, Any]]:
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
            return []
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
            warm = sum(float(kernel["warm"]) for kernel in sums[row.line, row.phase])
            out.append({"line": row.line, "phase": row.phase, "gpu_ns": row.gpu_ns, "bytes": row.bytes,
                        "ncu_bytes": moved, "warm_bytes": warm, "flops": row.flops,
                        "ncu_flops": ncu["flops"]})  # fmt: skip
        return out


def study(work: Work, script: str, *options: str, seconds: float) -> None:
    work.run(
        sys.executable, str(BENCHMARKS / script), "--results", str(work.out / "roofline_accuracy.jsonl"),
        "--seconds", str(seconds), "--begin", str(work.begin), "--with-models", *options,
        timeout=seconds + 60, log=f"{script.removesuffix('.py')}.txt",
    )  # fmt: skip


def sampled(work: Work) -> None:
    study(work, "roofline_sampled.py", seconds=max(work.left - 10, 10))


def flops(work: Work) -> None:
    study(work, "roofline_accuracy.py", "--flops", seconds=max(work.left - 20, 10))


TURNS, BLOCK_S, BEGIN_S = 8, 0.8, 0.4


def cost(work: Work) -> None:
    """Milliseconds a step while recording, without and with the sampling of counters, in turns."""
    import torch
    from roofline_models import made

    sys.path.insert(0, str(BENCHMARKS / "recorder"))
    sys.path.insert(0, str(BENCHMARKS))
    from recorder_workloads import WORKLOADS

    from profiling_lab.measure import ResultsFile, machine
    from profiling_lab.recording import Recorder
    from profiling_lab.recording.counters.sampler import PERIOD_NS, CounterThread

    results = ResultsFile(work.out / "counters.jsonl", machine("cuda"))
    with ExitStack() as keep:
        todo = {name: partial(WORKLOADS[name], keep) for name in ("gpt2", "loop", "slow")}
        for name, make in {**todo, "vit": partial(made, "vit", 12)}.items():
            step = make()
            for _ in range(5):
                step()
            times: dict[str, list[float]] = {"record": [], "counters": []}
            recorder = Recorder(work.out / "cost.sqlite", overwrite=True)
            recorder.start()
            for turn in range(TURNS):
                for who in sorted(times, reverse=turn % 2 == 1):
                    thread = CounterThread()
                    if who == "counters":
                        thread.start()
                    time.sleep(BEGIN_S)
                    times[who].append(milliseconds(step))
                    if who == "counters" and (state := thread.facts()["counters_state"]) != "on":
                        print("counters:", state)
            recorder.stop()
            ratios = sorted(b / a for a, b in zip(times["record"], times["counters"], strict=True))
            case = {"workload": name, "period_us": PERIOD_NS // 1000, "turns": TURNS}
            for who, values in times.items():
                results.add("counters", case, who, "step", statistics.median(values), "ms")
            found = {"median": statistics.median(ratios), "lowest": ratios[0], "highest": ratios[-1]}
            for metric, value in found.items():
                results.add("counters", case, "counters / record", metric, value, "1")
            print(f"  {name}: {statistics.median(times['record']):.3f} ms; {found}", flush=True)
            del step, make
            torch.cuda.empty_cache()


def milliseconds(step: Callable[[], object]) -> float:
    """Of one step, from many."""
    import torch

    step()
    torch.cuda.synchronize()
    began, steps = time.perf_counter(), 0
    while time.perf_counter() - began < BLOCK_S:
        for _ in range(4):
            step()
        torch.cuda.synchronize()
        steps += 4
    return (time.perf_counter() - began) / steps * 1e3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument(
        "--part", action="append", choices=PARTS, help="only this; may be given several times"
    )
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument(
        "--begin", type=int, default=0, help="the first operator of sampled and flops, from 0"
    )
    parser.add_argument(
        "--model", action="append", choices=("gpt", "vit"), help="lines: only this; may be given twice"
    )
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    work = Work(args.out.resolve(), args.seconds, args.begin, args.model or ("gpt", "vit"))
    failed = 0
    todo: dict[str, Callable[[Work], None]] = {
        "peaks": peaks, "sampled": sampled, "flops": flops, "lines": lines, "cost": cost,
        "programs": programs,
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
