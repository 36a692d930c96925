# SPDX-License-Identifier: Apache-2.0
"""Records E01, E02 and E03 on this GPU, and the system calls of E22, starter and solution, and judges them.

    python tools/record_timelines.py --out recordings/ [--only timeline-basics,osrt-tracing]

The first three as tools/record_exercises.py does, which it uses. E22 needs strace (its recording_cpu, which
the worked answer is about) or nsys (its recording_h200); what is not on the PATH is left out and said.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import record_exercises

from profiling_lab.exercises import answers, find, questions, workspace
from profiling_lab.exercises.clinic import PROGRAM, ClinicExercise, right_answers, truth
from profiling_lab.exercises.e01_timeline_basics import twin
from profiling_lab.exercises.e22_osrt_tracing import calls
from profiling_lab.exercises.exercise import CheckStatus, Exercise

SYSTEM_CALLS, CUDA_TWIN = "osrt-tracing", "timeline-basics"
SLUGS = (CUDA_TWIN, "kernel-overlap", "memory-timeline", SYSTEM_CALLS)
FOLDERS = re.compile(r'"/(?:[^"]*/)?([^"/]*)"')
HOMES = re.compile(r"/(?:root|home|work|usr/local)/[^\s\"]*")
KEPT = ("OSRT_API", "StringIds", "META_DATA_EXPORT")
ENOUGH_S = 60


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="where the folders go")
    parser.add_argument("--only", default="", help="slugs, with commas (default: all)")
    args = parser.parse_args()
    wanted = list(filter(None, args.only.split(","))) or [*SLUGS]
    import torch  # noqa: F401  the children need not import it again

    rows = []
    for slug in wanted:
        began = time.monotonic()
        try:
            exercise = find(slug)
            out = args.out.resolve() / exercise.entry.package
            if isinstance(exercise, ClinicExercise):
                row = record_exercises._one(exercise, out)
                for more in (_cuda, _by_nsys) if slug == CUDA_TWIN else (_by_nsys,):
                    row |= _tried(more, exercise, out)
            else:
                row = _system_calls(exercise, out)
        except Exception as error:
            traceback.print_exc()
            row = {"failed": f"{type(error).__name__}: {error}"}
        rows.append({"exercise": slug, **row, "seconds": round(time.monotonic() - began, 1)})
        print(json.dumps(rows[-1]), flush=True)
    print()
    for row in rows:
        print("\n".join(f"{name}: {value}" for name, value in row.items()), end="\n\n")
    return 0 if all(row.get("good") for row in rows) else 1


def _tried(
    part: Callable[[ClinicExercise, Path], dict[str, object]], exercise: ClinicExercise, out: Path
) -> dict[str, object]:
    """What fails here must not take the recording with it."""
    try:
        return part(exercise, out)
    except Exception as error:
        traceback.print_exc()
        return {part.__name__: f"{type(error).__name__}: {error}"}


def _cuda(exercise: ClinicExercise, out: Path) -> dict[str, object]:
    """What the twin in CUDA C++ prints, what nsys says of it, and what the grader says of the solution."""
    said = []
    with tempfile.TemporaryDirectory() as folder:
        for name in ("Makefile", "baseline.cu"):
            shutil.copy(exercise.folder / name, folder)
        shutil.copy(exercise.folder / workspace.SOLUTIONS / twin.NAME, folder)
        commands = [["make"], *([f"./{name}"] for name in ("baseline", "improved") * 2)]
        if shutil.which("nsys"):
            commands.append(["nsys", "profile", "--trace=cuda", "--sample=none", "-o", "run", "./baseline"])
            reports = "cuda_api_sum,cuda_gpu_sum"
            commands.append(["nsys", "stats", "--force-export=true", "--report", reports, "run.nsys-rep"])
        for command in commands:
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=ENOUGH_S)
            shown = (done.stdout + done.stderr).replace(f"{folder}/", "")
            said.append(f"$ {' '.join(command)}\n{shown}")
    judged = twin.checks(exercise.folder / "baseline.cu", exercise.folder / workspace.SOLUTIONS / twin.NAME)
    said.append("".join(f"{check.name}: {check.status.value}: {check.message}\n" for check in judged))
    (out / workspace.RECORDED / "console_cuda.txt").write_text("\n".join(said))
    print("\n".join(said), flush=True)
    return {check.name: f"{check.status.value}: {check.message}" for check in judged}


def _by_nsys(exercise: ClinicExercise, _: Path) -> dict[str, object]:
    """What the grader finds in a recording of nsys: it must be usable too."""
    if not shutil.which("nsys"):
        return {"recorded by nsys": "nsys is not on the PATH"}
    assert exercise.defect is not None
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(exercise.folder / PROGRAM, folder)
        backtraces = ("--python-backtrace=cuda", "--cudabacktrace=all:0", "--sample=process-tree")
        record = ("nsys", "profile", "--trace=cuda,nvtx", *backtraces, "-o", "run", sys.executable, PROGRAM)
        export = (
            "nsys",
            "export",
            "--type=sqlite",
            "--include-json=true",
            "-o",
            "run.sqlite",
            "run.nsys-rep",
        )
        for command in (record, export):
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=ENOUGH_S)
            if done.returncode:
                said = (done.stdout + done.stderr)[-500:]
                return {"recorded by nsys": f"{command[1]}: {done.returncode}: {said}"}
        recording = Path(folder) / "run.sqlite"
        found = truth(exercise.defect, recording)
        if isinstance(found, str):
            return {"recorded by nsys": found}
        print(record_exercises._command(["copies", str(recording)]), flush=True)
        return {
            "recorded by nsys": right_answers(found[0])
            | questions.right_answers(exercise.questions, recording)
        }


def _system_calls(exercise: Exercise, out: Path) -> dict[str, object]:
    for name in (workspace.RECORDED, workspace.SOLUTIONS):
        (out / name).mkdir(parents=True, exist_ok=True)
    row: dict[str, object] = {}
    console = []
    for tool, suffix in (("strace", "cpu.strace.gz"), ("nsys", "h200.sqlite")):
        if not shutil.which(tool):
            row[tool] = "not on the PATH"
            continue
        for source, name in (
            (exercise.folder, "starter"),
            (exercise.folder / workspace.SOLUTIONS, "solution"),
        ):
            target = out / workspace.RECORDED / f"{name}_{suffix}"
            said = _record_calls(tool, source / "convert.py", target)
            shown = subprocess.run(
                (sys.executable, exercise.folder / "calls.py", target), capture_output=True, text=True
            )
            console.append(f"$ python calls.py {target.relative_to(out)}\n{shown.stdout}{shown.stderr}\n")
            row[f"{tool} {name}"] = f"{target.stat().st_size} bytes, {said}"
        row[f"{tool} answers"] = _judged(exercise, out, suffix)
    print("".join(console))
    (
        out / workspace.RECORDED / f"console_{'_'.join(t for t in ('strace', 'nsys') if t not in row)}.txt"
    ).write_text("".join(console))
    row["good"] = bool(console) and not any("rejected" in str(value) for value in row.values())
    return row


def _record_calls(tool: str, program: Path, target: Path) -> str:
    """Records with this tool. Returns what the program printed."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(program, Path(folder) / program.name)
        commands = calls.commands(tool, "python3" if tool == "strace" else sys.executable)
        said = ""
        for command in commands:
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=ENOUGH_S)
            said += done.stdout + done.stderr
            if done.returncode:
                raise RuntimeError(f"{command}: {done.returncode}: {said[-2000:]}")
        recording = Path(folder) / calls.RECORDING
        if tool == "strace":
            text = FOLDERS.sub(r'".../\1"', HOMES.sub("/...", recording.read_text(errors="replace")))
            target.write_bytes(gzip.compress(text.encode(), mtime=0))
        else:
            _reduce(recording, target)
    return next((line for line in said.splitlines() if " records, " in line), said[-300:])


def _reduce(source: Path, target: Path) -> None:
    """The calls of the traced process that calls.py reads, without their call chains (0 in nsys' schema)."""
    shutil.copyfile(source, target)
    with sqlite3.connect(target) as file:
        tables = [name for (name,) in file.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table in tables:
            if table not in KEPT:
                file.execute(f'DROP TABLE "{table}"')
        signals = ",".join("?" * len(calls.SIGNALS))
        file.execute(
            f"DELETE FROM OSRT_API WHERE nameId IN (SELECT id FROM StringIds WHERE value IN ({signals}))",
            calls.SIGNALS,
        )
        file.execute("UPDATE OSRT_API SET callchainId = 0")
        file.execute("DELETE FROM StringIds WHERE id NOT IN (SELECT nameId FROM OSRT_API)")
        if "META_DATA_EXPORT" in tables:
            file.execute("DELETE FROM META_DATA_EXPORT WHERE name NOT LIKE 'EXPORT_SCHEMA_%'")
    file.execute("VACUUM")
    file.close()


def _judged(exercise: Exercise, out: Path, suffix: str) -> str:
    """Writes the worked answer for the recording of strace; what the grader says of the right answers."""
    starter, solution = (out / workspace.RECORDED / f"{name}_{suffix}" for name in ("starter", "solution"))
    rows = calls.by_function(calls.read(starter))
    often = max(rows, key=lambda row: row[1])
    all_ns = sum(total_ns for *_, total_ns in rows)
    right: dict[str, object] = {
        "finding.often": often[0],
        "finding.often_calls": often[1],
        "finding.per_record": round(often[1] / 2000, 2),
        "finding.longest": rows[0][0],
        "finding.longest_share": round(100 * rows[0][2] / all_ns, 1),
    }
    if "strace" in suffix:
        record_exercises._write_answer(exercise, out, right)
    given = answers.read(exercise.folder / workspace.SOLUTIONS)
    given = given.replaced({**right, "trace": str(starter), "fix.after": str(solution)})
    with tempfile.TemporaryDirectory() as folder:
        workspace.copy_starter(exercise, Path(folder))
        workspace.copy_solution(exercise, Path(folder))
        grading = exercise.grade(Path(folder), given)
    wrong = [f"{check.name}: {check.message}" for check in grading.failed]
    after = [check.message for check in grading.checks if check.name in ("work", "after")]
    unknown = [c.name for c in grading.checks if c.status is CheckStatus.NOT_CHECKED]
    return f"{'rejected: ' + str(wrong) if wrong else 'accepted'}; {after}; not checked: {unknown}; {right}"


if __name__ == "__main__":
    raise SystemExit(main())
