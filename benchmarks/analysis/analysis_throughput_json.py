# SPDX-License-Identifier: Apache-2.0
"""How fast a torch.profiler file with stacks becomes a table: seconds, peak memory, events per second.

    python benchmarks/analysis/analysis_throughput_json.py -o benchmarks/results/analysis_throughput.jsonl

Every number is of a process of its own, from its start to its end, over a generated file
(chrome_trace_generator.py) whose truth is known; an answer of ours that is not the truth ends the benchmark.
The fastest of several runs counts; cores_of_others says what else the machine did meanwhile, --calm waits.
Peers answer the smaller question of the GPU time per kernel, of a file without damage: json.load and msgspec
(typed structs of three fields) with a loop over the events, the least that a program in Python can do, and
Holistic Trace Analysis where --hta names a Python that has it.
"""

from __future__ import annotations

import argparse
import gzip
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis_throughput import BENCHMARK, OURS, PEAK, RUN_OURS, Asked, wait_for_calm
from chrome_trace_generator import Truth, generate

from profiling_lab.measure import ResultsFile, machine

MSGSPEC_AT_MOST_MIB = 1000  # it needs twice the file in memory, the others up to six times
PEERS_AT_MOST_MIB = 300
JSON_LOAD = """
import collections, json, sys
total = collections.Counter()
for event in json.load(open(sys.argv[1]))["traceEvents"]:
    if event.get("cat") == "kernel":
        total[event["name"]] += round(event["dur"] * 1000)
print(json.dumps(sum(total.values())))
"""
MSGSPEC = """
import json, msgspec, sys
class Event(msgspec.Struct, gc=False):
    cat: str = ""
    name: str = ""
    dur: float = 0
class File(msgspec.Struct, gc=False):
    traceEvents: list[Event]
total = {}
for event in msgspec.json.decode(open(sys.argv[1], "rb").read(), type=File).traceEvents:
    if event.cat == "kernel":
        total[event.name] = total.get(event.name, 0) + round(event.dur * 1000)
print(json.dumps(sum(total.values())))
"""
HTA = """
import json, os, sys
from hta.trace_analysis import TraceAnalysis
analysis = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir=os.path.dirname(sys.argv[1]))
_, kernels = analysis.get_gpu_kernel_breakdown(visualize=False, num_kernels=100000, duration_ratio=1.0)
print(json.dumps(round(float(kernels["sum (us)"].sum()) * 1000)))
"""


@dataclass(frozen=True)
class Sample:
    """A generated file, plain and packed."""

    plain: Path
    packed: Path
    size_bytes: int
    truth: Truth


def sample(folder: Path, mebibytes: float) -> Sample:
    plain, packed = folder / "trace.json", folder / "trace.json.gz"
    truth = generate(plain, int(mebibytes * 2**20))
    with plain.open("rb") as content, gzip.open(packed, "wb", 1) as out:
        shutil.copyfileobj(content, out, 1 << 20)
    return Sample(plain, packed, plain.stat().st_size, truth)


@dataclass(frozen=True)
class QueryCase:
    """One query of one provider over one file, and how far its answer is from the truth."""

    name: str
    provider: str
    file: Path
    asked: Asked
    off_frac: Callable[[Any], float]


def ours(name: str, file: Path, options: list[str], off_frac: Callable[[Any], float]) -> QueryCase:
    command = [OURS, "lines", str(file), "--limit", "0", "--format", "json", *options]
    return QueryCase(name, OURS, file, Asked([sys.executable, "-c", RUN_OURS, *command]), off_frac)


def peer(provider: str, python: str, program: str, file: Path, truth: Truth) -> QueryCase:
    """A program that prints the sum over all kernels in its last line."""

    def last_line(text: str) -> int:
        return int(text.splitlines()[-1])

    asked = Asked([python, "-c", PEAK + program, provider, str(file)], read=last_line)
    return QueryCase("kernels", provider, file, asked, lambda answer: abs(answer / truth.gpu_ns - 1))


def questions(file: Sample, mebibytes: float, hta: str | None) -> list[QueryCase]:
    truth = file.truth

    def off_lines(answer: Any) -> float:
        rows = {
            row["key"]: [row["gpu_ns"] - row["backward_ns"], row["backward_ns"], row["kernels"]]
            for row in answer["data"]["rows"]
        }
        return 0.0 if rows == truth.lines else 1.0

    def off_kernels(answer: Any) -> float:
        return abs(sum(row["gpu_ns"] for row in answer["data"]["rows"]) / truth.gpu_ns - 1)

    own = ["--own", "model.py", "--own", "train.py"]
    out = [
        ours("lines", file.plain, own, off_lines),
        ours("lines", file.packed, own, off_lines),
        ours("kernels", file.plain, ["--by", "kernel"], off_kernels),
    ]
    if mebibytes <= MSGSPEC_AT_MOST_MIB:
        out.append(peer("msgspec", sys.executable, MSGSPEC, file.plain, truth))
    if mebibytes <= PEERS_AT_MOST_MIB:
        out.append(peer("json.load", sys.executable, JSON_LOAD, file.plain, truth))
        if hta:
            out.append(peer("HTA", hta, HTA, file.plain, truth))
    return out


def measure(results: ResultsFile, question: QueryCase, file: Sample, repeats: int, calm_s: float) -> None:
    """Adds what the fastest run took. Ends the benchmark if we are wrong."""
    seconds = []
    for _ in range(repeats):
        wait_for_calm(calm_s)
        began = time.perf_counter()
        question.asked()
        seconds.append(time.perf_counter() - began)
    off_frac = question.off_frac(question.asked.answer)
    if question.provider == OURS and off_frac:
        sys.exit(f"{question.name} of {question.file} is not the truth")
    case = {
        "question": question.name,
        "file": "torch.profiler JSON with stacks",
        "packed": question.file.suffix == ".gz",
        "bytes": file.size_bytes,
        "events": file.truth.events,
    }
    best = seconds.index(min(seconds))
    numbers = {
        "time": (seconds[best], "s"),
        "cpu_time": (question.asked.cpu_s[best], "s"),
        "cores_of_others": (question.asked.others[best], "cores"),
        "peak_memory": (question.asked.peak_bytes, "bytes"),
        "memory_per_byte": (question.asked.peak_bytes / file.size_bytes, "ratio"),
        "throughput": (file.truth.events / seconds[best], "events/s"),
        "answer_off": (off_frac, "ratio"),
    }
    for metric, (value, unit) in numbers.items():
        results.add(BENCHMARK, case, question.provider, metric, value, unit)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", "-o", type=Path, help="append JSON lines here")
    parser.add_argument("--mib", type=float, nargs="+", default=[125, 250, 500, 1000, 2000])
    parser.add_argument("--repeats", type=int, default=3, help="runs of which the fastest counts (3)")
    parser.add_argument("--calm", type=float, default=0, help="seconds to wait at most for a calm machine")
    parser.add_argument("--hta", metavar="PYTHON", help="a Python with HolisticTraceAnalysis")
    args = parser.parse_args()
    results = ResultsFile(args.output, machine("cpu"))
    for mebibytes in args.mib:
        with tempfile.TemporaryDirectory() as folder:
            file = sample(Path(folder), mebibytes)
            for question in questions(file, mebibytes, args.hta):
                measure(results, question, file, args.repeats, args.calm)
    for line in results.lines:
        case: Any = line["case"]
        kind = ".gz" if case["packed"] else ""
        print(f"{case['question']:8} {case['bytes'] / 2**20:6.0f} MiB{kind:3} {line['provider']:14}"
              f" {line['metric']:16} {line['value']:>16,.2f} {line['unit']}")  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
