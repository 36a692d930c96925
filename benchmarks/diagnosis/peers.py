# SPDX-License-Identifier: Apache-2.0
"""Scores other tools on the diagnosis benchmark, as score.py scores `profiling-lab check`.

    python benchmarks/diagnosis/peers.py RECORDED --bin VENV/bin [--tools nsys-ai,HTA] [-o results.jsonl]

RECORDED is a folder of run.py: NAME.sqlite for nsys-ai and `nsys analyze`, NAME.json.gz (its part `profiler`)
for Holistic Trace Analysis (hta) and TraceLens. VENV is an environment with these tools; this project does
not need it. Each tool runs as its documentation says, without a language model. Each program is read twice:
whole, and from the middle of its GPU work to the end, where the start-up is over (`steady`). `nsys analyze`
has no window and reads the whole.

A tool that ranks answers with its first finding; a tool that only shows tables with the top row of each of
them, and is right if any of these rows is. peers.toml says which causes a tool's own words may mean. A line
counts if the answer names a planted line, or the first line of the innermost function that holds one:
torch.profiler writes no other. A false alarm is a finding of the tool's level `warning` or above on a healthy
program; tools that only show tables have no such level.
"""

from __future__ import annotations

import argparse
import ast
import csv
import gzip
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HERE = Path(__file__).parent
WORDS: dict[str, list[dict[str, Any]]] = tomllib.loads((HERE / "peers.toml").read_text())
GPU_EVENTS = ("kernel", "gpu_memcpy", "gpu_memset")
HTA = """
import os, sys
os.environ["HTA_DISABLE_NS_ROUNDING"] = "1"  # in whole microseconds its times of short kernels do not add up
from hta.trace_analysis import TraceAnalysis
traces = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir=sys.argv[2])
share = traces.get_temporal_breakdown(visualize=False).iloc[0]
names = ("idle_time", "compute_time", "non_compute_time")
print("HEADLINE timeline:", max(names, key=lambda name: share[name + "(us)"]))
idle, _ = traces.get_idle_time_breakdown(visualize=False)
idle = idle.groupby("idle_category")["idle_time"].sum()
if len(idle): print("HEADLINE idle:", idle.idxmax())
kinds, kernels = traces.get_gpu_kernel_breakdown(visualize=False)
print("HEADLINE kernel type:", kinds.loc[kinds["sum"].idxmax(), "kernel_type"])
kernels = kernels[kernels["name"] != "others"]
print("HEADLINE top kernel:", kernels.loc[kernels["sum (us)"].idxmax(), "name"])
"""


@dataclass(frozen=True)
class Answer:
    """What a tool says first; `alarm` is None where it has no verdict."""

    headlines: tuple[str, ...]
    alarm: bool | None


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("recorded", type=Path, help="folder with the recordings of run.py")
    parser.add_argument("--bin", type=Path, required=True, help="folder of the tools' programs and python")
    parser.add_argument("--tools", default=",".join(TOOLS), help="(default: %(default)s)")
    parser.add_argument("--window", choices=("whole", "steady"), help="read only so (default: both)")
    parser.add_argument("--nsys-version", default="unknown", help="of the nsys that wrote NAME.analyze.txt")
    parser.add_argument("-o", "--output", type=Path, help="append JSON lines here, too")
    args = parser.parse_args()
    truth = tomllib.loads((HERE / "truth.toml").read_text())
    if unknown := set(args.tools.split(",")) - set(TOOLS):
        parser.error(f"there is no tool {', '.join(sorted(unknown))}; expected some of {', '.join(TOOLS)}")
    os.environ["PATH"] = f"{args.bin.resolve()}{os.pathsep}{os.environ['PATH']}"
    rows = []
    for tool in args.tools.split(","):
        suffix, windows, ask = TOOLS[tool]
        found = [name for name in truth if (args.recorded / f"{name}{suffix}").is_file()]
        if not found:
            print(f"{tool}: {args.recorded} holds no NAME{suffix} of run.py", file=sys.stderr)
        for window in windows if args.window is None else {args.window}.intersection(windows):
            for name in found:
                with tempfile.TemporaryDirectory() as scratch:
                    answer = ask(args.recorded / f"{name}{suffix}", window, Path(scratch))
                rows.append((tool, window, name, answer, *judged(tool, answer, name, truth[name])))
                print(_text(*rows[-1]), flush=True)
    if args.output and rows:
        _keep(rows, truth, args.recorded / "times.jsonl", args.output, args.nsys_version)
    return 0 if rows else 2


def judged(
    tool: str, answer: Answer | None, name: str, truth: dict[str, Any]
) -> tuple[bool | None, bool | None, bool | None]:
    """Cause, line, false alarm. A tool that gave up on a recording has said nothing."""
    headlines = answer.headlines if answer else ()
    if not truth["causes"]:
        return None, None, answer.alarm if answer else None
    named = {cause for text in headlines for cause in meaning(tool, text)}
    return bool(named & set(truth["causes"])), bool(places(headlines, name) & lines(name, truth)), None


def meaning(tool: str, headline: str) -> list[str]:
    for row in WORDS[tool.split()[0]]:
        if re.search(row["says"], headline, re.IGNORECASE):
            return row["means"]
    return []


def places(headlines: Iterable[str], name: str) -> set[int]:
    """The lines of the program that an answer names: `name.py:12` or `name.py(12)`."""
    return {int(number) for text in headlines for number in re.findall(rf"\b{name}\.py[:(](\d+)", text)}


def lines(name: str, truth: dict[str, Any]) -> set[int]:
    """The planted lines, and the first lines of the functions that hold them."""
    text = (HERE / "programs" / f"{name}.py").read_text()
    planted = {n for n, line in enumerate(text.splitlines(), 1) if line.strip() in truth["lines"]}
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)]
    holding = set()
    for line in planted:
        around = [node for node in functions if node.lineno <= line <= (node.end_lineno or line)]
        if around:
            holding.add(max(around, key=lambda node: node.lineno).lineno)
    return planted | holding


def nsys_ai(recording: Path, window: str, scratch: Path, *command: str) -> Any:
    copy = shutil.copy(recording, scratch)  # it writes its cache next to the recording
    trim = [f"{ns / 1e9:.6f}" for ns in steady_ns(recording)] if window == "steady" else []
    text = _run(
        ["nsys-ai", *command, copy, "--format", "json", *(["--trim", *trim] if trim else [])], scratch
    )
    return None if text is None else json.loads(text)


def nsys_ai_diagnose(recording: Path, window: str, scratch: Path) -> Answer | None:
    said = nsys_ai(recording, window, scratch, "diagnose")
    if said is None:
        return None
    texts = [f"{each['label']}: {each.get('note', '')}" for each in said["findings"]]
    return Answer(tuple(texts[:1]), any(each["severity"] != "info" for each in said["findings"]))


def nsys_ai_root_cause(recording: Path, window: str, scratch: Path) -> Answer | None:
    said = nsys_ai(recording, window, scratch, "skill", "run", "root_cause_matcher")
    if said is None:
        return None
    texts = [f"{each['pattern']}: {each.get('recommendation', '')}" for each in said if "pattern" in each]
    return Answer(tuple(texts[:1]), any(each.get("severity") not in (None, "info") for each in said))


def nsys_analyze(recording: Path, window: str, scratch: Path) -> Answer | None:
    """Its default rules: each tells its name, then lists what it found, or says that it found nothing.

    NAME.analyze.txt next to the recording, what it printed on another machine, is read instead.
    """
    kept = recording.with_suffix(".analyze.txt")
    if kept.is_file():
        text: str | None = kept.read_text()
    else:
        text = _run(["nsys", "analyze", shutil.copy(recording, scratch)], scratch)
    if text is None:
        return None
    parts = re.split(r"(?m)^\s*\*\* .*\((\w+)\):\s*$", text)
    found = tuple(name for name, said in zip(parts[1::2], parts[2::2], strict=True) if lists_something(said))
    return Answer(found, bool(found))


def lists_something(text: str) -> bool:
    return bool(re.search(r"(?m)^\s*-{3,}", text)) and "no problems detected" not in text


def hta(trace: Path, window: str, scratch: Path) -> Answer | None:
    copy = of_window(trace, window, scratch)
    text = _run(["python", "-c", HTA, copy.name, str(scratch)], scratch)
    headlines = re.findall(r"(?m)^HEADLINE (.+)$", text or "")
    return Answer(tuple(headlines), None) if headlines else None


def tracelens(trace: Path, window: str, scratch: Path) -> Answer | None:
    copy, sheets = of_window(trace, window, scratch), scratch / "sheets"
    command = ["TraceLens_generate_perf_report_pytorch", "--profile_json_path", str(copy)]
    if _run([*command, "--output_csvs_dir", str(sheets), "--include_call_stack"], scratch) is None:
        return None
    spans = {row["type"]: float(row["time ms"]) for row in _sheet(sheets / "gpu_timeline.csv")}
    spans = {kind: spans[kind] for kind in spans if kind not in ("busy_time", "total_time")}
    headlines = [f"timeline: {max(spans, key=lambda kind: spans[kind])}"]
    for row in _sheet(sheets / "unified_perf_summary.csv")[:1]:
        told = ("Input type", "Compute Bound", "call_stack_full")
        headlines.append(f"op: {row['name']} " + " ".join(str(row.get(key, "")) for key in told))
    return Answer(tuple(headlines), None)


def steady_ns(recording: Path) -> tuple[int, int]:
    """The second half of the time from the first kernel to the last."""
    with sqlite3.connect(recording) as file:
        first, last = file.execute('select min(start), max("end") from CUPTI_ACTIVITY_KIND_KERNEL').fetchone()
    return (first + last) // 2, last


def of_window(trace: Path, window: str, scratch: Path) -> Path:
    """A copy of the trace, cut to the second half of its GPU work where the window says so."""
    copy = scratch / trace.name
    if window != "steady":
        return Path(shutil.copy(trace, copy))
    with gzip.open(trace, "rt") as file:
        content = json.load(file)
    events = content["traceEvents"]
    gpu = [each for each in events if each.get("cat") in GPU_EVENTS]
    first, last = min(each["ts"] for each in gpu), max(each["ts"] + each["dur"] for each in gpu)
    middle = (first + last) / 2
    content["traceEvents"] = [
        each for each in events if each.get("ph") == "M" or each["ts"] + each.get("dur", 0) >= middle
    ]
    with gzip.open(copy, "wt", compresslevel=1) as file:
        json.dump(content, file)
    return copy


TOOLS: dict[str, tuple[str, tuple[str, ...], Callable[[Path, str, Path], Answer | None]]] = {
    "nsys-ai diagnose": (".sqlite", ("whole", "steady"), nsys_ai_diagnose),
    "nsys-ai root_cause_matcher": (".sqlite", ("whole", "steady"), nsys_ai_root_cause),
    "nsys analyze": (".sqlite", ("whole",), nsys_analyze),
    "hta": (".json.gz", ("whole", "steady"), hta),
    "TraceLens": (".json.gz", ("whole", "steady"), tracelens),
}


def _run(command: list[str], folder: Path) -> str | None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    if done.returncode:
        print(f"{' '.join(command)[:80]}: {done.stderr.strip()[-300:]}", file=sys.stderr)
        return None
    return done.stdout


def _sheet(path: Path) -> list[dict[str, str]]:
    if not path.is_file():
        return []
    csv.field_size_limit(2**30)
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def _text(tool: str, window: str, name: str, answer: Answer | None, *marks: bool | None) -> str:
    told = " ".join("-" if mark is None else "yes" if mark else "no" for mark in marks)
    said = " | ".join(answer.headlines)[:160] if answer else "gave up"
    return f"{tool:26} {window:6} {name:28} {told:12} {said}"


def _keep(rows: list[Any], truth: dict[str, Any], times: Path, output: Path, nsys: str) -> None:
    """One line per answer, as score.py keeps them: 1 is yes."""
    from score import LARGE_FRAC, facts, step_times

    from profiling_lab.measure.results import ResultsFile

    results = ResultsFile(output, facts(times))
    small = {
        name for name, (plain, mended) in step_times(times).items() if plain - mended < LARGE_FRAC * plain
    }
    for tool, window, name, _, *marks in rows:
        case = {
            "program": name,
            "half": truth[name]["half"],
            "counts": not truth[name]["causes"] or name not in small,
        }
        case["window"] = window
        for metric, value in zip(("cause", "line", "false_alarm"), marks, strict=True):
            if value is not None:
                results.add(
                    "diagnosis",
                    case,
                    f"{tool}, {nsys if tool == 'nsys analyze' else _version(tool)}",
                    metric,
                    float(value),
                    "bool",
                )


@cache
def _version(tool: str) -> str:
    package = {"hta": "HolisticTraceAnalysis"}.get(tool, tool.split()[0])
    text = _run(["python", "-c", f"import importlib.metadata as m; print(m.version('{package}'))"], HERE)
    return (text or "unknown").strip()


if __name__ == "__main__":
    raise SystemExit(main())
