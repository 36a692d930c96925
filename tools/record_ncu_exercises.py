# SPDX-License-Identifier: Apache-2.0
"""Records the exercises about Nsight Compute (E05 to E08) on this GPU, starter and solution, and judges both.

    python tools/record_ncu_exercises.py --out recordings/ [--only memory-metrics,roofline-practice]

`--out` gets the folders of profiling_lab/exercises with what belongs there: the reports of ncu as CSV,
recorded/console.txt, solutions/answer.toml with the figures of this recording, the figure of E07. Copy it
over profiling_lab/exercises. The end says what each exercise's grader thinks of the solution and the starter.
"""

from __future__ import annotations

import argparse
import csv
import os
import re
import shutil
import subprocess
import tempfile
import time
import traceback
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import ncu_solutions

from profiling_lab.analysis.ncu import report as ncu_report
from profiling_lab.analysis.ncu.consistency import contradictions
from profiling_lab.exercises import (
    answers,
    find,
    ncu_profile,
    ncu_questions,
    workspace,
)
from profiling_lab.exercises.e05_memory_metrics import grade as memory
from profiling_lab.exercises.e06_compute_metrics import grade as compute
from profiling_lab.exercises.e07_roofline_practice import grade as roofline
from profiling_lab.exercises.e08_optimization_loop import grade as loop
from profiling_lab.exercises.e08_optimization_loop import reports as log
from profiling_lab.exercises.exercise import Exercise, Need
from profiling_lab.exercises.ncu_table import table

REPO = Path(__file__).resolve().parents[1]
SLUGS = ("memory-metrics", "compute-metrics", "roofline-practice", "optimization-loop")
SOURCES = {each.ENTRY.slug: each for each in (memory, compute, roofline)}
LIMIT_S, BUILD_S = 120.0, 300.0
SHOWN = 1500


class Console:
    """What is printed, and what goes into console.txt."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        print(text if len(text) < SHOWN else f"{text[:SHOWN]} ...", flush=True)
        self.note(text)

    def note(self, text: str) -> None:
        """Not printed."""
        self.lines.append(text)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="where the folders go")
    parser.add_argument("--only", default="", help="slugs, with commas (default: all)")
    args = parser.parse_args()
    chosen = list(filter(None, args.only.split(","))) or list(SLUGS)
    if unknown := set(chosen) - set(SLUGS):
        parser.error(f"no exercise about ncu is called {', '.join(sorted(unknown))}")
    with tempfile.TemporaryDirectory() as folder:
        built = _build([find(slug) for slug in chosen], Path(folder))
        rows = [_guarded(find(slug), built, args.out.resolve()) for slug in chosen]
    print()
    for row in rows:
        print("  ".join(f"{name}: {value}" for name, value in row.items()))
    return 0 if all(row.get("good") for row in rows) else 1


def _guarded(exercise: Exercise, built: dict[str, Path], out: Path) -> dict[str, object]:
    began, console = time.monotonic(), Console()
    print(f"\n=== {exercise.label}", flush=True)
    target = out / exercise.entry.package
    for name in ("recorded", "solutions"):
        (target / name).mkdir(parents=True, exist_ok=True)
    try:
        record = _rounds if exercise.slug == loop.ENTRY.slug else _pair
        row = record(exercise, built, target, console)
    except Exception as error:
        traceback.print_exc()
        row = {"failed": f"{type(error).__name__}: {error}"}
    (target / "recorded" / "console.txt").write_text("\n".join(console.lines) + "\n")
    return {"exercise": exercise.label, **row, "seconds": round(time.monotonic() - began, 1)}


def _build(exercises: list[Exercise], folder: Path) -> dict[str, Path]:
    """Every version of every program, in a folder of its own, all at once."""
    versions: dict[str, tuple[Exercise, str]] = {}
    for exercise in exercises:
        source = exercise.program[0].removeprefix("./") + ".cu"
        starter = (exercise.folder / source).read_text()
        solution = exercise.folder / workspace.SOLUTIONS / source
        versions[f"{exercise.slug} starter"] = exercise, starter
        if exercise.slug == loop.ENTRY.slug:
            text = (exercise.folder / workspace.SOLUTIONS / "rounds.cu").read_text()
            for number, (_, code) in loop.rounds_of(text).items():
                versions[f"{exercise.slug} round{number}"] = exercise, loop.assembled(starter, code)
        elif solution.is_file():
            versions[f"{exercise.slug} solution"] = exercise, solution.read_text()

    def build(item: tuple[str, tuple[Exercise, str]]) -> tuple[str, Path]:
        name, (exercise, text) = item
        place = folder / name.replace(" ", "_")
        place.mkdir()
        shutil.copy(exercise.folder / ncu_profile.MAKEFILE, place)
        (place / f"{exercise.program[0].removeprefix('./')}.cu").write_text(text)
        program = exercise.program[0].removeprefix("./")
        nvcc = ["nvcc", "-O3", "-std=c++17", "-lineinfo", "-arch=native", "-o", program, f"{program}.cu"]
        command = ["make"] if shutil.which("make") else nvcc
        try:
            subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=BUILD_S, check=True)
        except (subprocess.SubprocessError, OSError) as error:  # the other programs go on
            print(f"{name} does not build: {error} {getattr(error, 'stderr', '')}", flush=True)
        return name, place

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return dict(pool.map(build, versions.items()))


def _run(place: Path, command: list[str], console: Console, shown: str = "") -> str:
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=LIMIT_S)
    console.say(f"$ {shown or ' '.join(command)}")
    console.say((done.stdout + done.stderr).rstrip())
    if done.returncode:
        console.say(f"(exit code {done.returncode})")
    return done.stdout + done.stderr


def _profile(exercise: Exercise, place: Path, target: Path, console: Console) -> ncu_report.Report:
    """Profile one version; metrics that this ncu does not know are left out, and said."""
    counters = list(exercise.counters)
    for _ in range(4):
        command = ncu_profile.command(exercise.program, counters, str(target))
        done = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=LIMIT_S)
        told = done.stdout + done.stderr + (target.read_text() if target.is_file() else "")
        unknown = [
            name for name in counters
            if any(name in line for line in told.splitlines() if "==" in line and "etric" in line)
        ]  # fmt: skip
        if not unknown:
            break
        console.say(f"ncu does not know {', '.join(unknown)}: left out")
        counters = [name for name in counters if name not in unknown]
    shown = ncu_profile.command(exercise.program, counters, target.name)
    console.note(f"$ {' '.join(shown)}")
    if done.returncode:
        console.say(f"(exit code {done.returncode}) {told[-2000:]}")
    report = ncu_report.read(target)
    reduce(target, counters)
    missing = sorted({name for each in report.launches for name in counters if not each.has(name)})
    if missing:
        console.say(f"n/a: {', '.join(missing)}")
    console.note(table([report]))
    for text in contradictions(report):
        console.say(f"CONTRADICTION: {text}")
    return report


def reduce(target: Path, counters: Sequence[str]) -> None:
    """Keep the table of a report, with the metrics that were asked for: ncu adds some hundred others."""
    lines = [line for line in target.read_text().splitlines() if line.startswith('"')]
    rows = list(csv.reader(lines))
    wanted = {*ncu_profile.LAUNCH, *counters}
    kept = [n for n, name in enumerate(rows[0]) if "__" not in name or name in wanted]
    with target.open("w", newline="") as file:
        table = csv.writer(file, quoting=csv.QUOTE_ALL, lineterminator="\n")
        table.writerows([row[n] for n in kept] for row in rows)


def _pair(exercise: Exercise, built: dict[str, Path], out: Path, console: Console) -> dict[str, object]:
    """E05 to E07: the starter's report, the solution's, the answers."""
    source = SOURCES[exercise.slug].SOURCE
    program = exercise.program[0].removeprefix("./")
    starter = built[f"{exercise.slug} starter"]
    row: dict[str, object] = {}
    _run(starter, [f"./{program}"], console, f"make && ./{program}")
    report = _profile(exercise, starter, out / ncu_questions.STARTER, console)
    row["planted"] = source.planted(report) or "shows"
    row["contradictions"] = len(contradictions(report))
    _write_solutions(exercise, out)
    if f"{exercise.slug} solution" in built:
        solution = built[f"{exercise.slug} solution"]
        console.say("\nThe solution:")
        _run(solution, [f"./{program}"], console, f"make && ./{program}")
        after = _profile(exercise, solution, out / ncu_questions.SOLUTION, console)
        row["solution no longer shows it"] = bool(source.planted(after))
        for effect in SOURCES[exercise.slug].EFFECTS:
            gain = report.last(effect.function).duration_ns / after.last(effect.function).duration_ns
            row[f"{effect.function} by ncu"] = f"{gain:.2f} times"
            console.say(
                f"{effect.function}: {effect.metric(report):.4g} to {effect.metric(after):.4g} "
                f"{effect.what}; "
                f"{effect.work(after):.4g} is done, {effect.least(report):.4g} must be"
            )
    if exercise.slug == memory.ENTRY.slug:
        seed = ["ncu", "--section", "MemoryWorkloadAnalysis", "--clock-control", "none", f"./{program}", "1"]
        print(_run(starter, seed, Console())[-3000:], flush=True)
    if exercise.slug == roofline.ENTRY.slug:
        _peaks(console)
    return {**row, **_graded(exercise, out, console, after=ncu_questions.SOLUTION)}


def _peaks(console: Console) -> None:
    """The roofs as PyTorch reaches them, to compare with those of the report."""
    if Need.GPU.missing():
        return
    from profiling_lab.measure.peaks import copy_rate, matmul_rate

    rates = copy_rate() / 1e9, matmul_rate("float32") / 1e12
    console.say(
        f"profiling_lab.measure.peaks: copy {rates[0]:.0f} GB/s, matmul float32 {rates[1]:.1f} TFLOP/s"
    )


def _write_solutions(exercise: Exercise, out: Path) -> None:
    """answer.toml, the notes and the figure, with the figures of this recording."""
    files = ncu_solutions.written(exercise.slug, exercise.folder / workspace.SOLUTIONS, out / "recorded")
    for name, text in files.items():
        (out / workspace.SOLUTIONS / name).write_text(text)
    for line in files[answers.FILE].splitlines():
        if re.match(r"\[|\w+ = [\d\"]", line):
            print(line, flush=True)


def _rounds(exercise: Exercise, built: dict[str, Path], out: Path, console: Console) -> dict[str, object]:
    """E08: a report for each round, and the log that they bear out."""
    found = {}
    for name in sorted(each for each in built if each.startswith(exercise.slug)):
        version = name.partition(" ")[2].replace("starter", "round0")
        console.say(f"\n{version}:")
        _run(built[name], ["./optimization_loop"], console, "make && ./optimization_loop")
        target = out / "recorded" / f"{version}_h200.csv"
        _profile(exercise, built[name], target, console)
        found[int(version[-1])] = log.opened(target, target.name)
    _write_solutions(exercise, out)
    said = [f"round {number} {found[number].duration_ns / 1e3:.0f} us" for number in sorted(found)]
    best = min(found.values(), key=lambda each: each.duration_ns)
    gain = found[0].duration_ns / best.duration_ns
    return {"rounds": "; ".join(said), "gain": f"{gain:.1f} times", **_graded(exercise, out, console)}


def _graded(exercise: Exercise, out: Path, console: Console, after: str = "") -> dict[str, object]:
    """What the grader says of the solution, and of the starter, in learners' copies with this recording."""
    row: dict[str, object] = {}
    for what in ("solution", "starter"):
        with tempfile.TemporaryDirectory() as name:
            copy = Path(name)
            workspace.copy_starter(exercise, copy)
            shutil.copytree(out / "recorded", copy / "recorded", dirs_exist_ok=True)
            if what == "solution":
                workspace.copy_solution(exercise, copy)
                shutil.copy(out / workspace.SOLUTIONS / answers.FILE, copy)
            given = answers.read(copy).replaced({"trace": exercise.recording})
            if what == "solution" and after and (copy / after).is_file():
                given = given.replaced({"after": after})
            grading = exercise.grade(copy, given)
        if what == "solution":
            console.say("\nThe solution, graded:")
            for check in grading.checks:
                console.say(f"{check.name}: {check.status.value}: {check.message}")
            row["speed"] = next((each.message for each in grading.checks if each.name == "speed"), "")
            row["not checked"] = len(grading.not_checked)
            row["good"] = grading.passed
        else:
            row["starter fails"] = len(grading.failed)
    row["good"] = bool(row["good"]) and bool(row["starter fails"])
    return row


if __name__ == "__main__":
    raise SystemExit(main())
