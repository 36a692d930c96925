# SPDX-License-Identifier: Apache-2.0
"""Records the exercises of attention kernels (E32 to E35) on this GPU, starter and solution, and judges both.

    python tools/record_attention_exercises.py --out recordings/ [--only low-occupancy,long-kernel]
    python tools/record_attention_exercises.py --notes    # the figures of the recordings that are there

`--out` gets the folders of profiling_lab/exercises with what belongs there: recorded/ with the recordings and
the reports of ncu, and solutions/answer.toml with their figures. Copy it over profiling_lab/exercises. The
table at the end says for each exercise whether the planted kernel and its numbers show, whether the repair
reaches its goal, and whether the answers of starter and solution are judged as they should be.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

from profiling_lab.analysis.ncu import report as ncu_report
from profiling_lab.exercises import catalogue, workspace
from profiling_lab.exercises.answers import Answers
from profiling_lab.exercises.answers import read as read_answers
from profiling_lab.exercises.attention_kernels import Files, KernelExercise, Number, right_answers, usable
from profiling_lab.exercises.clinic import right_answers as right_of_line
from profiling_lab.exercises.clinic import truth
from profiling_lab.exercises.exercise import Exercise

REPO = Path(__file__).resolve().parents[1]
SIDES = ("starter", "solution")
FAILED_METRIC = re.compile(r"(?:Failed to find metric|metric)\W+(?:regex:)?\W*([a-z0-9_]+__[\w.]+)")
TRIES = 6
BEGIN, END = "<!-- figures: tools/record_attention_exercises.py --notes -->", "<!-- end of figures -->"
LIMIT_S = 200
LOOKS = (
    ("kernels", "--limit", "8"),
    ("kernels", "--occupancy", "--limit", "8"),
    ("lines", "--limit", "8"),
    ("check",),
)


def _module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


clinic_script = _module(REPO / "tools" / "record_exercises.py")
reduce_trace = _module(REPO / "benchmarks" / "reduce_trace.py")
benchmark_tables = _module(REPO / "tools" / "benchmark_tables.py")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, help="where the folders go")
    parser.add_argument("--notes", action="store_true", help="only the tables of the worked answers")
    parser.add_argument("--only", default="", help="slugs, with commas (default: all)")
    args = parser.parse_args()
    wanted = set(filter(None, args.only.split(",")))
    chosen = [each for each in catalogue() if each.number in (32, 33, 34, 35)]
    if unknown := wanted - {each.slug for each in chosen}:
        parser.error(f"no exercise of attention kernels is called {', '.join(sorted(unknown))}")
    chosen = [each for each in chosen if not wanted or each.slug in wanted]
    if args.notes:
        for exercise in chosen:
            notes = exercise.folder / workspace.SOLUTIONS / workspace.NOTES
            notes.write_text(with_figures(exercise, notes.read_text()))
        return 0
    if args.out is None:
        parser.error("--out says where the folders go")
    import torch  # noqa: F401  the children need not import it again

    rows = []
    with tempfile.TemporaryDirectory() as root:
        folders = {each.slug: _folders(each, Path(root)) for each in chosen}
        builds = [folder for pair in folders.values() for folder in pair.values()]
        with ThreadPoolExecutor(8) as pool:
            print("\n".join(filter(None, pool.map(_build, builds))), flush=True)
        for exercise in chosen:
            began = time.monotonic()
            row: dict[str, object] = {"exercise": exercise.label}
            try:
                _one(exercise, folders[exercise.slug], args.out.resolve() / exercise.entry.package, row)
            except Exception as error:
                traceback.print_exc()
                row["failed"] = f"{type(error).__name__}: {error}"
            row["seconds"] = round(time.monotonic() - began, 1)
            rows.append(row)
            print(json.dumps(row), flush=True)
    if any(each.slug == "low-occupancy" for each in chosen):
        _sweep(args.out.resolve() / "occupancy_sweep.jsonl")
    print()
    for row in rows:
        print("\n    ".join(f"{name}: {value}" for name, value in row.items()))
    return 0 if all(row.get("good") for row in rows) else 1


def _sweep(target: Path) -> None:
    """The benchmark that E34's page quotes: benchmarks/results/occupancy_sweep.jsonl."""
    target.unlink(missing_ok=True)
    command = [sys.executable, str(REPO / "benchmarks" / "occupancy_sweep.py"), "-o", str(target)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    print(f"occupancy_sweep ended with {done.returncode}\n{done.stdout}{done.stderr[-3000:]}", flush=True)


def _folders(exercise: Exercise, root: Path) -> dict[str, Path]:
    """A learner's copy with the starter, and one with the solution."""
    made = {}
    for side in SIDES:
        made[side] = root / side / exercise.slug
        made[side].mkdir(parents=True)
        workspace.copy_starter(exercise, made[side])
        if side == "solution":
            workspace.copy_solution(exercise, made[side])
    return made


def _build(folder: Path) -> str:
    if not (folder / "attention.cu").is_file():
        return ""
    done = subprocess.run(["make"], cwd=folder, capture_output=True, text=True, timeout=LIMIT_S)
    return f"{folder.name}: make ended with {done.returncode}\n{done.stdout}{done.stderr}"


def _one(exercise: Exercise, folders: dict[str, Path], out: Path, row: dict[str, object]) -> None:
    for name in ("recorded", "solutions"):
        (out / name).mkdir(parents=True, exist_ok=True)
    console: list[str] = []
    for side, folder in folders.items():
        try:
            row[f"{side} bytes"] = _record(exercise, folder, out / f"recorded/{side}_h200.sqlite", console)
        except Exception as error:
            traceback.print_exc()
            row[f"{side} recording"] = f"{error}"
        if side == "starter" or isinstance(exercise, KernelExercise):
            try:
                row[f"{side} report"] = _report(folder, out / f"recorded/{side}_h200.csv", console)
            except Exception as error:
                traceback.print_exc()
                row[f"{side} report"] = f"failed: {error}"
    _looks(exercise, out, console)
    row["repair"] = _repair(exercise, console)
    (out / "recorded" / "console.txt").write_text("".join(console))
    _judge(exercise, out, row)
    row["good"] = row.get("solution's answer") == "passes" and ": passed" in str(row["repair"])
    row["good"] = row["good"] and "speed: passed" in str(row["repair"])


def _record(exercise: Exercise, folder: Path, target: Path, console: list[str]) -> int:
    """Record in a process of its own; returns the size of the reduced recording."""
    from profiling_lab.cli import main as profiling_lab

    def run() -> int:
        os.chdir(folder)
        return profiling_lab(["record", "-o", "run.sqlite", *exercise.program])

    status, text = clinic_script._in_child(run)
    text = text.replace(f"{os.path.realpath(folder)}/", "").replace(f"{folder}/", "")
    console.append(f"$ profiling-lab record -o recorded/{target.name} {' '.join(exercise.program)}\n{text}\n")
    print(console[-1], flush=True)
    recording = folder / "run.sqlite"
    if status or not recording.is_file():
        raise RuntimeError(f"record ended with {status}")
    target.unlink(missing_ok=True)
    size: int = reduce_trace.reduce(recording, target, (str(folder), os.path.realpath(folder), str(REPO)))
    return size


def _report(folder: Path, target: Path, console: list[str]) -> str:
    """Run `make report`, without the metrics that this ncu does not know. Returns what was left out."""
    makefile = (folder / "Makefile").read_text()
    metrics = re.search(r"^METRICS = ((?:.*\\\n)*.*)", makefile, re.M)
    assert metrics is not None
    names = metrics[1].replace("\\\n", " ").split()
    dropped: list[str] = []
    for _ in range(TRIES):
        (folder / "report.csv").unlink(missing_ok=True)
        command = ["make", "report", f"PYTHON={sys.executable}", f"METRICS={' '.join(names)}"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S)
        text = (folder / "report.csv").read_text() if (folder / "report.csv").is_file() else ""
        said = f"{done.stdout}{done.stderr}".replace(f"{folder}/", "")
        unknown = [name for name in FAILED_METRIC.findall(said + text) if name in names]
        if '"Kernel Name"' in text or not unknown:
            break
        print(f"ncu does not know {unknown}\n{said}\n{text[:2000]}", flush=True)
        dropped += unknown
        names = [name for name in names if name not in unknown]
    print(said[-3000:], flush=True)
    try:
        report = ncu_report.read(folder / "report.csv")
    except ncu_report.ReportError as error:
        raise RuntimeError(f"{error}; report.csv begins: {text[:3000]}") from None
    _write_columns(text, names, target)
    numbers = [name for name in names if name != ncu_report.DEVICE_NAME]
    missing = [name for name in numbers if not all(launch.has(name) for launch in report.launches)]
    console.append("$ make report\n")
    for launch in report.launches:
        console.append(f"{launch.number} {launch.function} grid {launch.grid} block {launch.block}\n")
        console += [f"    {launch.metrics[name]:16.6g}  {name}\n" for name in names if launch.has(name)]
    print("".join(console[-len(report.launches) * len(names) :]), flush=True)
    return f"{len(report.launches)} launches; unknown to ncu: {dropped}; without a value: {missing}"


def _write_columns(text: str, metrics: list[str], target: Path) -> None:
    """The table with the metrics that `make report` names: ncu adds every attribute of the GPU."""
    table = list(csv.reader(line for line in text.splitlines() if line.startswith('"')))
    kept = [index for index, name in enumerate(table[0]) if "__" not in name or name in metrics]
    host = table[0].index("Host Name")
    with target.open("w", newline="") as file:
        writer = csv.writer(file, quoting=csv.QUOTE_ALL, lineterminator="\n")
        for number, row in enumerate(table):
            row[host] = "localhost" if number > 1 else row[host]
            writer.writerow([row[index] for index in kept])


def _looks(exercise: Exercise, out: Path, console: list[str]) -> None:
    for side in SIDES:
        name = f"recorded/{side}_h200.sqlite"
        for look in LOOKS:
            try:
                text = clinic_script._command([look[0], str(out / name), *look[1:]]).replace(f"{out}/", "")
            except (Exception, SystemExit) as error:
                text = f"{type(error).__name__}: {error}\n"
            console.append(f"\n$ profiling-lab {look[0]} {name} {' '.join(look[1:])}".rstrip() + f"\n{text}")
            print(console[-1], flush=True)


def _repair(exercise: Exercise, console: list[str]) -> str:
    """The last lines of what `exercise repair` says of the solution."""
    text = clinic_script.repair_text(exercise)
    console.append(f"\n$ profiling-lab exercise repair {exercise.slug}\n{text}")
    print(console[-1], flush=True)
    return " | ".join(text.strip().splitlines()[-3:])


def _judge(exercise: Exercise, out: Path, row: dict[str, object]) -> None:
    """Write the worked answer with the figures of these files, and grade it and the empty one with them."""
    trace, report = out / "recorded/starter_h200.sqlite", out / "recorded/starter_h200.csv"
    if isinstance(exercise, KernelExercise):
        files = usable(exercise.parts, trace, report)
        if not isinstance(files, Files):
            row["planted"] = ": ".join(files)
            return
        answers = right_answers(exercise.parts, exercise.folder / "attention.cu", files)
        after = usable(
            exercise.parts, out / "recorded/solution_h200.sqlite", out / "recorded/solution_h200.csv"
        )
        row["solution no longer shows it"] = not isinstance(after, Files) and after[1]
    else:
        from profiling_lab.exercises.e32_flash_attention import grade

        found = truth(grade.DEFECT, trace)
        if isinstance(found, str):
            row["planted"] = found
            return
        answers = right_of_line(found[0]) | grade.right_answers(ncu_report.read(report))
        after_line = truth(grade.DEFECT, out / "recorded/solution_h200.sqlite")
        row["solution no longer shows it"] = after_line if isinstance(after_line, str) else False
    row["planted"] = json.dumps(answers)
    for side in SIDES:
        row[f"rules on the {side}"] = _rules(out / f"recorded/{side}_h200.sqlite")
    _write_answer(exercise, out, answers)
    given = read_answers(out / "solutions").replaced({"trace": str(trace), "report": str(report)})
    wrong = [f"{c.name}: {c.message}" for c in exercise.findings(out, given) if c.status.value == "failed"]
    row["solution's answer"] = wrong or "passes"
    empty = Answers({"exercise": exercise.slug, "trace": str(trace), "report": str(report)})
    row["empty answer fails"] = sum(c.status.value == "failed" for c in exercise.findings(out, empty))


def with_figures(exercise: Exercise, notes: str) -> str:
    """The worked answer with the table of the recorded reports."""
    if isinstance(exercise, KernelExercise):
        numbers = {number.key: number for part in exercise.parts for number in part.numbers}
        rows = [row for side in SIDES for row in _rows(exercise, side, numbers)]
        table = benchmark_tables.table(("kernel", "of", "µs", *numbers), rows)
    else:
        from profiling_lab.exercises.e32_flash_attention import grade

        report = ncu_report.read(exercise.folder / grade.REPORT)
        table = benchmark_tables.table(
            ("rung", "FLOP per byte", "TFLOP/s", "busiest"),
            [
                (f"`{name}`", f"{rung.intensity:.1f}", f"{rung.rate:.2f}", ", ".join(rung.busiest))
                for name, rung in grade.rungs(report).items()
            ],
        )
    block = f"{BEGIN}\n{chr(10).join(table)}\n{END}"
    return re.sub(f"{re.escape(BEGIN)}.*?{re.escape(END)}", lambda _: block, notes, flags=re.S)


def _rows(exercise: Exercise, side: str, numbers: dict[str, Number]) -> list[tuple[str, ...]]:
    report = ncu_report.read(exercise.folder / f"recorded/{side}_h200.csv")
    found = []
    for function in dict.fromkeys(launch.function for launch in report.launches):
        launch = report.last(function)
        read = [number.read(launch) for number in numbers.values()]
        values = [f"{value:,.0f}" if value >= 1000 else f"{value:.4g}" for value in read]
        found.append((f"`{function}`", side, f"{launch.duration_ns / 1e3:,.1f}", *values))
    return found


def _rules(recording: Path) -> str:
    from profiling_lab.rules import RULES
    from profiling_lab.rules.run import run
    from profiling_lab.trace import Trace

    with Trace.open(recording) as trace:
        told = run(trace, RULES).findings
    return ", ".join(f"{f.rule} at {f.place.line if f.place else None}" for f in told)


def _write_answer(exercise: Exercise, out: Path, answers: dict[str, object]) -> None:
    """The worked answer.toml with the figures of these files: each key in its own table."""
    lines, section = [], ""
    for line in (exercise.folder / workspace.SOLUTIONS / "answer.toml").read_text().splitlines():
        if match := re.match(r"\[(\w+)\]", line):
            section = match[1]
        elif match := re.match(r'(\w+)( *= *)("(?:[^"\\]|\\.)*"|[-\w.+]+)(.*)', line):
            key = f"{section}.{match[1]}"
            if key in answers:
                line = f"{match[1]}{match[2]}{json.dumps(answers[key])}{match[4]}"
        lines.append(line)
    (out / workspace.SOLUTIONS / "answer.toml").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    raise SystemExit(main())
