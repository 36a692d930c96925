# SPDX-License-Identifier: Apache-2.0
"""Compares the peaks of `profiling-lab memory` with torch's own, on a GPU, and measures what --memory costs.

    python tools/record_memory.py --out memory/ [--only eager,amp] [--no-cost]

Each program of tools/memory_programs.py runs under `profiling-lab record --memory`, several at a time. Then
the recording and the snapshot that torch itself wrote are read, and their peaks are compared with
torch.cuda.max_memory_allocated(), to the byte. Exit code 1 if one differs.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import statistics
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PROGRAMS = ("eager", "checkpointing", "list_of_activations", "logged_loss", "out_of_memory", "fragmentation",
            "zero_grad", "amp", "inference", "cuda_graph", "expandable", "streams")  # fmt: skip
AT_A_TIME = 6
SHOWN = {"eager": ("--by", "kind"), "checkpointing": ("--by", "kind"), "list_of_activations": ("--growth",),
         "logged_loss": ("--growth",), "zero_grad": ("--growth",)}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default=",".join(PROGRAMS))
    parser.add_argument("--no-cost", action="store_true")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    names = args.only.split(",")
    began = time.perf_counter()
    record_all(names, args.out)
    print(f"recorded in {time.perf_counter() - began:.1f} s", flush=True)
    rows = []
    for name in names:
        with going_on(name):
            rows.append(compare(name, args.out))
    costs = []
    for small in () if args.no_cost else (False, True):
        with going_on("cost"):
            costs.append(cost(args.out, small))
    write(costs, args.out / "memory.jsonl")
    print(
        f"\n{'program':20} {'torch':>14} {'recording':>14} {'snapshot':>14} {'lines':>14} reserved complete"
    )
    for row in rows:
        print(row["text"])
    (args.out / "summary.json").write_text(json.dumps(rows, indent=1))
    wrong = [row["name"] for row in rows if not row["equal"]]
    print(f"{len(rows) - len(wrong)} of {len(names)} programs agree; not: {wrong or 'none'}")
    print(f"{time.perf_counter() - began:.1f} s in all")
    return 1 if wrong or len(rows) < len(names) else 0


def write(costs: list[dict[str, Any]], path: Path) -> None:
    """As lines of benchmarks/results."""
    from profiling_lab.measure import ResultsFile, machine

    results = ResultsFile(path, machine("cuda"))
    for one in costs:
        case = {name: one[name] for name in ("step", "allocations_per_step", "steps")}
        for who in ("plain", "record", "memory"):
            results.add("memory_cost", case, who, "step", one[f"{who}_ms"], "ms")
        for who in ("record", "memory"):
            results.add("memory_cost", case, who, "stop", one[f"stop_{who}_s"], "s")


@contextlib.contextmanager
def going_on(what: str) -> Any:
    try:
        yield
    except Exception:
        print(f"!! {what} failed")
        traceback.print_exc(file=sys.stdout)


def record_all(names: list[str], out: Path) -> None:
    waiting, running = list(names), {}
    while waiting or running:
        while waiting and len(running) < AT_A_TIME:
            name = waiting.pop(0)
            running[name] = start(name, out)
        for name, process in list(running.items()):
            try:
                text, _ = process.communicate(timeout=0.2)
            except subprocess.TimeoutExpired:
                continue
            del running[name]
            print(f"== {name}: exit {process.returncode}\n{text[-1500:]}", flush=True)


def start(name: str, out: Path) -> Any:
    settings = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"} if name == "expandable" else {}
    return subprocess.Popen(
        [sys.executable, "-m", "profiling_lab", "record", "--memory", "--overwrite",
         "-o", str(out / f"{name}.sqlite"), str(HERE / "memory_programs.py"), name, "--out", str(out)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, **settings},
    )  # fmt: skip


def compare(name: str, out: Path) -> dict[str, Any]:
    import profiling_lab

    torch_says = json.loads((out / f"{name}.json").read_text())
    found: dict[str, Any] = {}
    for kind in ("sqlite", "pickle"):
        with profiling_lab.open(out / f"{name}.{kind}") as trace:
            began = time.perf_counter()
            table = trace.memory()
            took = time.perf_counter() - began
            (device,) = table.facts["devices"]
            found[kind] = device | {"sum": sum(table["bytes"]), "analysis_s": took}
    show(name, out)
    peak, ours, theirs = torch_says["peak_bytes"], found["sqlite"], found["pickle"]
    equal = peak == ours["peak_bytes"] == theirs["peak_bytes"] == ours["sum"]
    reserved = torch_says["reserved_peak_bytes"] == ours["reserved_peak_bytes"]
    print(f"-- {name}: {ours['events']} events, analysis {ours['analysis_s']:.2f} s, corrected blocks "
          f"{ours['corrected_blocks']} and {theirs['corrected_blocks']}, sqlite "
          f"{(out / f'{name}.sqlite').stat().st_size:,} bytes, pickle "
          f"{(out / f'{name}.pickle').stat().st_size:,} bytes")  # fmt: skip
    sizes = (peak, ours["peak_bytes"], theirs["peak_bytes"], ours["sum"])
    text = f"{name:20} " + " ".join(f"{size:14,}" for size in sizes)
    text += f" {'equal' if reserved else 'DIFFER':8} {ours['is_complete']} {'' if equal else 'DIFFERS'}"
    return {
        "name": name,
        "equal": equal,
        "torch": torch_says,
        "recording": ours,
        "snapshot": theirs,
        "text": text,
    }


def show(name: str, out: Path) -> None:
    from profiling_lab.cli import main as command

    for options in ((), *((SHOWN[name],) if name in SHOWN else ())):
        stream = io.StringIO()
        with contextlib.redirect_stdout(stream), contextlib.redirect_stderr(stream):
            code = command(["memory", str(out / f"{name}.sqlite"), "--limit", "12", *options])
        print(
            f"\n$ profiling-lab memory {name}.sqlite {' '.join(options)}  (exit {code})\n{stream.getvalue()}"
        )


def cost(out: Path, small: bool) -> dict[str, Any]:
    """The median step without a recorder, with one, and with --memory, interleaved."""
    import torch

    sys.path.insert(0, str(HERE))
    import memory_programs

    from profiling_lab.recording import Recorder

    rows, width, layers = (256, 256, 12) if small else (8192, 2048, 12)
    model = memory_programs.Net(width, layers).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    x = torch.randn(rows, width, device="cuda")
    labels = torch.randint(1000, (rows,), device="cuda")

    def steps(count: int) -> list[float]:
        times = []
        for _ in range(count):
            torch.cuda.synchronize()
            began = time.perf_counter()
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.bfloat16, enabled=not small):
                loss = torch.nn.functional.cross_entropy(model(x), labels)
            loss.backward()
            optimizer.step()
            torch.cuda.synchronize()
            times.append(time.perf_counter() - began)
        return times

    steps(5)
    times: dict[str, list[float]] = {"none": [], "record": [], "memory": []}
    stop_s = {"record": 0.0, "memory": 0.0}
    for turn in range(3):
        for what in times:
            if what == "none":
                times[what] += steps(20)[2:]
                continue
            recorder = Recorder(out / f"cost_{turn}_{what}.sqlite", overwrite=True, memory=what == "memory")
            recorder.start()
            times[what] += steps(20)[2:]
            began = time.perf_counter()
            recorder.stop()
            stop_s[what] = time.perf_counter() - began
            recorder.path.unlink()
    plain, record, memory = (statistics.median(times[what]) for what in times)
    made = torch.cuda.memory_stats()["allocation.all.allocated"]
    steps(1)
    made = torch.cuda.memory_stats()["allocation.all.allocated"] - made
    print(
        f"\ncost, {'small' if small else 'ordinary'} step: {1e3 * plain:.3f} ms plain, {1e3 * record:.3f} ms "
        f"recorded ({100 * (record / plain - 1):+.2f} %), {1e3 * memory:.3f} ms with --memory "
        f"({100 * (memory / plain - 1):+.2f} % of plain, {100 * (memory / record - 1):+.2f} % of recorded); "
        f"stop took {stop_s['record']:.2f} and {stop_s['memory']:.2f} s; {made} allocations in a step",
        flush=True,
    )
    return {
        "step": "small" if small else "ordinary",
        "allocations_per_step": made,
        "steps": len(times["none"]),
        "plain_ms": 1e3 * plain,
        "record_ms": 1e3 * record,
        "memory_ms": 1e3 * memory,
        "stop_record_s": stop_s["record"],
        "stop_memory_s": stop_s["memory"],
    }


if __name__ == "__main__":
    sys.exit(main())
