# SPDX-License-Identifier: Apache-2.0
"""How fast a torch.profiler file with stacks becomes a table: seconds, peak memory, events per second.

    python benchmarks/analysis_throughput_json.py -o benchmarks/results/analysis_throughput.jsonl

Every number is of a process of its own, from its start to its end, over a generated file
(chrome_trace_generator.py) whose truth is known; an answer of ours that is not the truth ends the benchmark.
Peers answer the smaller question of the GPU time per kernel, of a file without damage: json.load and msgspec
(typed structs of three fields) with a loop over the events, the least that a program in Python can do, and
Holistic Trace Analysis where --hta names a Python that has it.
"""

from __future__ import annotations

import argparse
import gzip
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from chrome_trace_generator import Truth, generate

from profiling_lab.measure import ResultsFile, machine

BENCHMARK = "analysis_throughput"
MSGSPEC_AT_MOST_MIB = 1000  # it needs three times the file in memory, the others up to ten times
PEERS_AT_MOST_MIB = 300
# A process says its own peak: what the system says of a child also counts its parent before the start.
PEAK = """
import atexit, sys, time
def say_peak():
    lines = open("/proc/self/status").read().splitlines()
    peak = next(line.split()[1] for line in lines if line.startswith("VmHWM"))
    print(peak, time.process_time(), file=sys.stderr)
atexit.register(say_peak)
"""
OURS = "from profiling_lab.cli import main; sys.exit(main())"
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
class Run:
    """What a process took and printed."""

    seconds: float
    cpu_seconds: float
    """of all its threads: what others do on the machine does not count"""
    peak_bytes: int
    output: str
    off_frac: float = 0.0
    """how far the answer is from the truth"""


def run(python: str, program: str, *arguments: str) -> Run:
    """Runs `program` in a process of its own. Ends the benchmark if it fails."""
    began = time.perf_counter()
    done = subprocess.run([python, "-c", PEAK + program, *arguments], capture_output=True, text=True)
    took = time.perf_counter() - began
    if done.returncode:
        sys.exit(f"{program}\nfailed with {done.returncode}:\n{done.stderr[-2000:]}")
    kibibytes, processors = done.stderr.splitlines()[-1].split()
    return Run(took, float(processors), int(kibibytes) * 1024, done.stdout)


def our_lines(path: Path, truth: Truth) -> Run:
    """`profiling-lab lines`, checked to the nanosecond."""
    own = ("--own", "model.py", "--own", "train.py")
    done = run(sys.executable, OURS, "lines", str(path), "--limit", "0", "--format", "json", *own)
    rows = json.loads(done.output)["data"]["rows"]
    found = {
        row["key"]: [row["gpu_ns"] - row["backward_ns"], row["backward_ns"], row["kernels"]] for row in rows
    }
    if found != truth.lines:
        sys.exit(f"{path}: lines are {found}, the truth is {truth.lines}")
    return done


def our_kernels(path: Path, truth: Truth) -> Run:
    """The question that the peers answer."""
    options = ("--by", "kernel", "--limit", "0", "--format", "json")
    done = run(sys.executable, OURS, "lines", str(path), *options)
    if sum(row["gpu_ns"] for row in json.loads(done.output)["data"]["rows"]) != truth.gpu_ns:
        sys.exit(f"{path}: kernels do not sum to {truth.gpu_ns}")
    return done


def peer(python: str, program: str, path: Path, truth: Truth) -> Run:
    """A program that prints the sum over all kernels in its last line."""
    done = run(python, program, str(path))
    return replace(done, off_frac=abs(int(done.output.splitlines()[-1]) / truth.gpu_ns - 1))


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


def fastest(repeats: int, ask: Callable[[], Run]) -> Run:
    return min((ask() for _ in range(repeats)), key=lambda done: done.seconds)


def measure(
    results: ResultsFile, folder: Path, mebibytes: list[float], repeats: int, hta: str | None
) -> None:
    """Adds seconds, peak memory and events per second of everybody over files of these sizes."""
    for size in mebibytes:
        file = sample(folder, size)
        answers: list[tuple[str, str, Path, Callable[[Path, Truth], Run]]] = [
            ("lines", "profiling-lab", file.plain, our_lines),
            ("lines", "profiling-lab", file.packed, our_lines),
            ("kernels", "profiling-lab", file.plain, our_kernels),
        ]
        if size <= MSGSPEC_AT_MOST_MIB:
            answers.append(("kernels", "msgspec", file.plain, partial(peer, sys.executable, MSGSPEC)))
        if size <= PEERS_AT_MOST_MIB:
            answers.append(("kernels", "json.load", file.plain, partial(peer, sys.executable, JSON_LOAD)))
        if size <= PEERS_AT_MOST_MIB and hta:
            answers.append(("kernels", "HTA", file.plain, partial(peer, hta, HTA)))
        for question, provider, path, ask in answers:
            done = fastest(repeats, partial(ask, path, file.truth))
            case = {
                "question": question,
                "file": "torch.profiler JSON with stacks",
                "packed": path.suffix == ".gz",
                "bytes": file.size_bytes,
                "events": file.truth.events,
            }
            results.add(BENCHMARK, case, provider, "time", done.seconds, "s")
            results.add(BENCHMARK, case, provider, "cpu_time", done.cpu_seconds, "s")
            results.add(BENCHMARK, case, provider, "peak_memory", done.peak_bytes, "bytes")
            results.add(
                BENCHMARK, case, provider, "memory_per_byte", done.peak_bytes / file.size_bytes, "ratio"
            )
            results.add(BENCHMARK, case, provider, "throughput", file.truth.events / done.seconds, "events/s")
            results.add(BENCHMARK, case, provider, "answer_off", done.off_frac, "ratio")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", "-o", type=Path, help="append JSON lines here")
    parser.add_argument("--mib", type=float, nargs="+", default=[125, 250, 500, 1000, 2000])
    parser.add_argument("--repeats", type=int, default=3, help="the fastest of so many counts (3)")
    parser.add_argument("--hta", metavar="PYTHON", help="a Python with HolisticTraceAnalysis")
    args = parser.parse_args()
    results = ResultsFile(args.output, machine("cpu"))
    with tempfile.TemporaryDirectory() as folder:
        measure(results, Path(folder), args.mib, args.repeats, args.hta)
    for line in results.lines:
        case = line["case"]
        assert isinstance(case, dict)
        kind = ".gz" if case["packed"] else ""
        print(f"{case['question']:8} {case['bytes'] / 2**20:6.0f} MiB{kind:3} {line['provider']:14}"
              f" {line['metric']:16} {line['value']:>16,.2f} {line['unit']}")  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
