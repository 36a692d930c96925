# SPDX-License-Identifier: Apache-2.0
"""How fast traces in the nsys schema become answers: seconds and memory of whole processes, on two cores.

    python benchmarks/analysis/analysis_throughput.py -o benchmarks/results/analysis_throughput.jsonl
    python benchmarks/analysis/analysis_throughput.py --plot analysis_throughput.svg --input RESULTS.jsonl

The files are synthetic (synthetic_trace.py), so the truth is known: an answer of ours that is not the truth
ends the benchmark. Files are in the page cache. All take turns. Other work on the machine slows
all of them: cores_of_others says how much there was, cpu_time (of all threads) suffers least from it, and
--calm waits until there is none. Peers, in the Python that --peer-python names:

    pandas         naive_pandas.py, what a plain user writes
    nsys-ai        its skills; once without the cache that it builds next to a file, once with it
    nsys stats     where nsys is on the PATH
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from synthetic_trace import Form, Truth, cached

from profiling_lab.measure import ResultsFile, Timing, interleaved, machine

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the scripts that all benchmarks share
from svg_charts import Line, Panel, Point, draw_panels

BENCHMARK = "analysis_throughput"
OURS, OURS_TOTALS, CORES, SLOWER = "profiling-lab", "profiling-lab --totals", 2, 1.3
COMMANDS = ("lines", "check", "kernels", "steps", "gaps", "diff")
PEERS_AT_MOST = 10_000_000
# A process says its own peak: what the system says of a child also counts its parent before the start.
PEAK = """
import atexit, runpy, sys
def say_peak():
    lines = open("/proc/self/status").read().splitlines()
    print(next(line for line in lines if line.startswith("VmHWM")), file=sys.stderr)
atexit.register(say_peak)
sys.argv = sys.argv[1:]
"""
RUN_FILE = PEAK + "runpy.run_path(sys.argv[0], run_name='__main__')"
RUN_OURS = PEAK + "from profiling_lab.cli import main\nsys.exit(main())"
RUN_NSYS_AI = PEAK + "from nsys_ai.cli.app import main\nsys.exit(main())"

Answer = Any
Judge = Callable[[Answer], bool]


@dataclass
class Asked:
    """A command that answers a question; calling it runs the process."""

    command: list[str]
    read: Callable[[str], Answer] = json.loads
    ok_codes: tuple[int, ...] = (0,)
    before: Callable[[], None] = lambda: None
    peak_bytes: int = 0
    cpu_s: list[float] = field(default_factory=list)
    others: list[float] = field(default_factory=list)
    answer: Answer = None
    environment: dict[str, str] = field(default_factory=dict)

    def __call__(self) -> None:
        self.before()
        used, all_used, began = _children_cpu_s(), _machine_cpu_s(), time.monotonic()
        done = subprocess.run(self.command, capture_output=True, text=True, env=os.environ | self.environment)
        if done.returncode not in self.ok_codes:
            sys.exit(f"{' '.join(self.command[3:])} failed with {done.returncode}:\n{done.stderr[-2000:]}")
        self.cpu_s.append(_children_cpu_s() - used)
        others = _machine_cpu_s() - all_used - self.cpu_s[-1]
        self.others.append(max(others, 0.0) / (time.monotonic() - began))
        peaks = [line.split() for line in done.stderr.splitlines() if line.startswith("VmHWM")]
        self.peak_bytes = max([self.peak_bytes, *(int(words[1]) * 1024 for words in peaks)])
        self.answer = self.read(done.stdout)


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _machine_cpu_s() -> float:
    """Processor time that anybody used since the machine started: user, nice and system."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:4]
    return sum(map(int, fields)) / os.sysconf("SC_CLK_TCK")


def wait_for_calm(seconds: float) -> None:
    """Until others used less than a tenth of a core for two seconds, at most so long."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        before = _machine_cpu_s()
        time.sleep(2)
        if _machine_cpu_s() - before < 0.2:
            return


def ours(command: str, *paths: Path, flags: tuple[str, ...] = ()) -> Asked:
    limit = [] if command == "diff" else ["--limit", "0"]
    arguments = [OURS, command, *map(str, paths), "--format", "json", *limit, *flags]
    return Asked([sys.executable, "-c", RUN_OURS, *arguments], ok_codes=(0, 1))


def our_truth(command: str, truth: Truth) -> Judge:
    """Whether an answer of ours is right."""

    def rows(answer: Answer) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = answer["data"]["rows"]
        return found

    def lines(answer: Answer) -> bool:
        found = {
            row["key"]: [
                row["gpu_ns"] - row["backward_ns"],
                row["backward_ns"],
                row["kernels"] + row["copies"],
            ]
            for row in rows(answer)
        }
        return found == truth.lines

    def kernels(answer: Answer) -> bool:
        found = {
            row["name"]: [row["total_ns"], row["count"]] for row in rows(answer) if row["kind"] == "kernel"
        }
        return found == truth.kernel_names

    def diff(answer: Answer) -> bool:
        slower = {row["key"].split()[0] for row in rows(answer) if row["state"] == "slower"}
        return slower <= {"/app/model.py:105"} or "/app/model.py:105" in slower

    judges: dict[str, Judge] = {
        "lines": lines,
        "kernels": kernels,
        "steps": lambda answer: answer["trace"]["steps"] == truth.steps,
        "gaps": lambda answer: answer["trace"]["idle_ns"] == truth.span_ns - truth.busy_ns,
        "check": lambda answer: any(row["rule"] == "tiny_kernels" for row in rows(answer)),
        "diff": diff,
    }
    return judges[command]


def peers(
    question: str, path: Path, truth: Truth, python: str | None, scratch: Path
) -> dict[str, tuple[Asked, Judge]]:
    """Every provider that answers this question about this file, and the judge of its answer."""
    judges: dict[str, Judge] = {
        "lines": lambda answer: answer == truth.lines,
        "kernels": lambda answer: answer == truth.kernel_names,
        "gaps": lambda answer: answer == truth.span_ns - truth.busy_ns,
    }
    found: dict[str, tuple[Asked, Judge]] = {}
    if python:
        script = str(Path(__file__).parent / "naive_pandas.py")
        asked = Asked([python, "-c", RUN_FILE, script, question, str(path)])
        found["pandas"] = (asked, judges[question])
    if question != "kernels":
        return found

    def in_milliseconds(answer: Answer) -> bool:
        # It rounds to hundredths of a millisecond.
        expected = {name: (round(ns / 1e6, 2), count) for name, (ns, count) in truth.kernel_names.items()}
        return bool(answer == expected)

    def nsys_ai(text: str) -> Answer:
        return {row["kernel_name"]: (row["total_ms"], row["invocations"]) for row in json.loads(text)}

    if python:
        copy = scratch / path.name  # its cache is next to the file
        if not copy.exists():
            shutil.copyfile(path, copy)
        arguments = [
            "nsys-ai",
            "skill",
            "run",
            "top_kernels",
            str(copy),
            "--format",
            "json",
            "-p",
            "limit=1000",
        ]
        command = [python, "-c", RUN_NSYS_AI, *arguments]

        def forget() -> None:
            shutil.rmtree(copy.with_suffix(".nsys-cache"), ignore_errors=True)

        found["nsys-ai"] = (Asked(command, nsys_ai, before=forget), in_milliseconds)
        found["nsys-ai, its cache built before"] = (Asked(command, nsys_ai), in_milliseconds)
    if nsys := shutil.which("nsys"):
        command = [nsys, "stats", "--report", "cuda_gpu_kern_sum", "--format", "csv", "--quiet", str(path)]

        def stats(text: str) -> Answer:
            lines = text[text.index("Time (%)") :].splitlines()
            return {row["Name"]: [int(row["Total Time (ns)"]), int(row["Instances"])]
                    for row in csv.DictReader(io.StringIO("\n".join(lines)))}  # fmt: skip

        found["nsys stats"] = (Asked(command, stats), judges["kernels"])
    return found


def warm(path: Path) -> None:
    with path.open("rb") as file:
        while file.read(1 << 24):
            pass


def take_turns(
    results: ResultsFile, case: dict[str, Any], asked: dict[str, tuple[Asked, Judge]], samples: int
) -> None:
    """Run everybody in turn and add what it took. Ends the benchmark if an answer of ours is wrong."""
    steps = {name: command for name, (command, _) in asked.items()}
    timings: dict[str, Timing] = interleaved(steps, steps_per_block=1, warmup=0, blocks=samples, device="cpu")
    for name, (command, right) in asked.items():
        is_right = right(command.answer)
        if name in (OURS, OURS_TOTALS) and not is_right:
            sys.exit(f"{case}: the answer is not the truth:\n{json.dumps(command.answer)[:2000]}")
        timing = timings[name]
        results.add(BENCHMARK, case, name, "time", timing.median_ns / 1e9, "s")
        results.add(BENCHMARK, case, name, "time_iqr", timing.iqr_ns / 1e9, "s")
        results.add(BENCHMARK, case, name, "time_samples", timing.n, "samples")
        results.add(BENCHMARK, case, name, "peak_memory", command.peak_bytes, "bytes")
        results.add(BENCHMARK, case, name, "throughput", case["events"] / timing.median_ns * 1e9, "events/s")
        results.add(BENCHMARK, case, name, "answer_is_the_truth", int(is_right), "boolean")
        cpu_s, others = statistics.median(command.cpu_s), statistics.median(command.others)
        results.add(BENCHMARK, case, name, "cpu_time", cpu_s, "s")
        results.add(BENCHMARK, case, name, "cores_of_others", others, "cores")
        print(f"{case['question']:8} {case['events']:>11,} {case['form']:9} {name:32} "
              f"{timing.median_ns / 1e9:7.2f} s, cpu {cpu_s:6.2f} s, {command.peak_bytes / 2**30:5.2f} GiB, "
              f"others {others:4.2f} cores"
              f"{'' if is_right else '  OTHER ANSWER'}", flush=True)  # fmt: skip


def measure(results: ResultsFile, args: argparse.Namespace, folder: Path, scratch: Path) -> None:
    form: Form
    for events in args.events:
        for form in args.forms:
            path, truth = cached(folder, events, form)
            case: dict[str, Any] = {"file": "nsys SQLite", "form": form, "events": truth.events}
            case |= {"bytes": path.stat().st_size, "cores": CORES, "cpu": args.cpu}
            for question in args.questions:
                paths = [path]
                if question == "diff":
                    if events > PEERS_AT_MOST:
                        continue  # it reads two files
                    paths.append(cached(folder, events, form, seed=1, slow=SLOWER)[0])
                asked = {OURS: (ours(question, *paths), our_truth(question, truth))}
                if question == "kernels":  # what the peers answer: times by kernel, without lines
                    asked[OURS_TOTALS] = (ours(question, *paths, flags=("--totals",)), asked[OURS][1])
                if events <= PEERS_AT_MOST and question in ("lines", "kernels", "gaps"):
                    asked |= peers(question, path, truth, args.peer_python, scratch)
                for each in paths:
                    warm(each)
                wait_for_calm(args.calm)
                few = events > PEERS_AT_MOST
                take_turns(results, case | {"question": question}, asked, 1 if few else args.samples)


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Seconds over events, a panel per form and a line per question; of the last run."""
    mine = [r for r in rows if r["provider"] == OURS and r["metric"] == "time" and "form" in r["case"]]
    forms: dict[str, dict[str, list[Point]]] = {}
    for row in mine:
        if row["run"] == mine[-1]["run"]:
            point = Point(row["case"]["events"] / 1e6, row["value"])
            forms.setdefault(row["case"]["form"], {}).setdefault(row["case"]["question"], []).append(point)
    panels = [
        Panel(form, tuple(Line(question, tuple(points)) for question, points in questions.items()))
        for form, questions in forms.items()
    ]
    title = "Traces in the nsys schema: a whole process on two cores"
    chart = draw_panels(title, mine[-1]["date"][:10], [panels], "million events", "seconds", log_y=True)
    path.write_text(chart)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", "-o", type=Path, help="append JSON lines here")
    parser.add_argument(
        "--events", type=int, nargs="+", default=[1_000_000, 3_000_000, 10_000_000, 30_000_000]
    )
    parser.add_argument("--forms", nargs="+", choices=("recorder", "nsys"), default=["recorder", "nsys"])
    parser.add_argument("--questions", nargs="+", choices=COMMANDS, default=COMMANDS)
    parser.add_argument(
        "--samples", type=int, default=3, help="runs of which the median counts (3); 1 over 10 million"
    )
    parser.add_argument("--calm", type=float, default=0, help="seconds to wait at most for a calm machine")
    parser.add_argument("--peer-python", help="a Python with pandas and nsys-ai")
    parser.add_argument(
        "--dir", type=Path, help="where the generated files stay (default: a temporary folder)"
    )
    parser.add_argument("--plot", type=Path, metavar="SVG", help="draw the results")
    parser.add_argument("--input", type=Path, help="with --plot: draw these results instead of measuring")
    args = parser.parse_args()
    if args.input:
        plot([json.loads(line) for line in args.input.read_text().splitlines()], args.plot)
        return 0
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    facts = machine("cpu")
    args.cpu = facts.gpu
    results = ResultsFile(args.output, replace(facts, gpu=None))
    with tempfile.TemporaryDirectory(dir=args.dir) as scratch:
        folder = args.dir or Path(scratch)
        measure(results, args, folder, Path(scratch))
    if args.plot:
        plot(results.lines, args.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
