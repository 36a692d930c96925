# SPDX-License-Identifier: Apache-2.0
"""Records the exercises of the bottleneck clinic on this GPU, starter and solution, and judges both.

    python tools/record_exercises.py --out recordings/ [--only many-small-kernels,memory-layout]

`--out` gets the folders of profiling_lab/exercises with what belongs there: recorded/starter_h200.sqlite and
solution_h200.sqlite, recorded/console.txt (what a learner sees), solutions/answer.toml with the figures of
this recording. Copy it over profiling_lab/exercises. The table at the end says for each exercise whether the
planted line tops the recording, whether `check` names it, and whether the repair reaches its goal.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import json
import os
import re
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

from profiling_lab.exercises import answers as answers_file
from profiling_lab.exercises import catalogue, questions, workspace
from profiling_lab.exercises.clinic import PROGRAM, ClinicExercise, right_answers, truth
from profiling_lab.exercises.exercise import CheckStatus, Exercise

REPO = Path(__file__).resolve().parents[1]
SOLUTION = "recorded/solution_h200.sqlite"
STARTER = "recorded/starter_h200.sqlite"
LOOKS = (("steps",), ("lines", "--limit", "8"), ("copies",), ("syncs",), ("gaps", "--limit", "6"), ("check",))
TIMELINE = (
    ("copies", "--by", "direction"),
    ("overlap",),
    ("streams", "--limit", "8"),
    ("kernels", "--occupancy", "--depth", "0", "--limit", "6"),
)
"""for exercises that ask about the timeline"""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="where the folders go")
    parser.add_argument("--only", default="", help="slugs, with commas (default: all)")
    args = parser.parse_args()
    wanted = set(filter(None, args.only.split(",")))
    chosen = [each for each in catalogue() if isinstance(each, ClinicExercise)]
    if unknown := wanted - {each.slug for each in chosen}:
        parser.error(f"no exercise of the clinic is called {', '.join(sorted(unknown))}")
    import torch  # noqa: F401  the children need not import it again

    rows = []
    for exercise in chosen:
        if wanted and exercise.slug not in wanted:
            continue
        began = time.monotonic()
        try:
            row = _one(exercise, args.out.resolve() / exercise.entry.package)
        except Exception as error:
            traceback.print_exc()
            row = {"failed": f"{type(error).__name__}: {error}"}
        rows.append({"exercise": exercise.label, **row, "seconds": round(time.monotonic() - began, 1)})
        print(json.dumps(rows[-1]), flush=True)
    print()
    for row in rows:
        print("  ".join(f"{name}: {value}" for name, value in row.items()))
    return 0 if all(row.get("good") for row in rows) else 1


def _one(exercise: ClinicExercise, out: Path) -> dict[str, object]:
    for name in ("recorded", "solutions"):
        (out / name).mkdir(parents=True, exist_ok=True)
    console: list[str] = []
    row: dict[str, object] = {}
    for source, name in ((exercise.folder, STARTER), (exercise.folder / workspace.SOLUTIONS, SOLUTION)):
        row[f"{Path(name).stem.partition('_')[0]} bytes"] = _record(source / PROGRAM, out / name, console)
    assert exercise.defect is not None
    found = truth(exercise.defect, out / STARTER)
    repaired = truth(exercise.defect, out / SOLUTION)
    row["solution no longer shows it"] = isinstance(repaired, str)
    row["speed"] = _repair(exercise, console)
    if isinstance(found, str):
        row["planted"] = found
    else:
        answers = right_answers(found[0])
        row["planted"] = f"{answers['finding.file']}:{answers['finding.line']}, {found[0].effect:.1f}"
        row["check names it"] = _named(exercise, out / STARTER, {each.line for each in found})
        row["check on the solution"] = _named(exercise, out / SOLUTION, {each.line for each in found})
        answers |= questions.right_answers(exercise.questions, out / STARTER)
        _write_answer(exercise, out, answers)
        row |= _graded(exercise, out)
    for look in (*LOOKS, *(TIMELINE if exercise.questions else ())):
        console.append(
            f"\n$ profiling-lab {' '.join(look[:1])} {STARTER} {' '.join(look[1:])}".rstrip() + "\n"
        )
        console.append(_command([look[0], str(out / STARTER), *look[1:]]).replace(f"{out}/", ""))
    (out / "recorded" / "console.txt").write_text("".join(console))
    row["good"] = bool(row.get("check names it")) and row["solution no longer shows it"] is True
    row["good"] = row["good"] and str(row["speed"]).startswith("passed")
    row["good"] = row["good"] and not row.get("right answers rejected") and row.get("starter fails", True)
    return row


def _graded(exercise: ClinicExercise, out: Path) -> dict[str, object]:
    """What the grader says of the worked answer, of an empty one, and of the solution's timeline."""
    worked = answers_file.read(out / workspace.SOLUTIONS).replaced({"trace": str(out / STARTER)})
    judged = exercise.findings(out, worked)
    empty = exercise.findings(out, answers_file.read(exercise.folder).replaced({"trace": str(out / STARTER)}))
    shown = worked.replaced({"fix.after": str(out / SOLUTION)})
    after = questions.after_checks(exercise.after, out, shown, out / STARTER)
    return {
        "answers": {key: value for key, value in worked.values.items() if key.startswith("timeline.")},
        "right answers rejected": [
            f"{c.name}: {c.message}" for c in judged if c.status is CheckStatus.FAILED
        ],
        "starter fails": any(check.status is CheckStatus.FAILED for check in empty),
        "after": [f"{check.name} {check.status.value}: {check.message}" for check in after],
    }


def _record(program: Path, target: Path, console: list[str]) -> int:
    """Record one program in a process of its own; returns the size of the reduced recording."""
    from profiling_lab.cli import main as profiling_lab

    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(program, Path(folder) / PROGRAM)

        def run() -> int:
            os.chdir(folder)
            return profiling_lab(["record", "-o", "run.sqlite", PROGRAM])

        status, text = _in_child(run)
        recording = Path(folder) / "run.sqlite"
        console.append(f"$ profiling-lab record -o {target.parent.name}/{target.name} {PROGRAM}\n")
        console.append(text.replace(f"{os.path.realpath(folder)}/", "").replace(f"{folder}/", ""))
        if status or not recording.is_file():
            raise RuntimeError(f"{program} recorded: status {status}: {text[-2000:]}")
        target.unlink(missing_ok=True)
        spec = importlib.util.spec_from_file_location("reduce_trace", REPO / "benchmarks" / "reduce_trace.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        size: int = module.reduce(
            recording, target, (folder, os.path.realpath(folder), str(REPO)), samples=True
        )
        return size


def repair_text(exercise: Exercise) -> str:
    """What `exercise repair` says of the solution."""

    def run() -> int:
        with tempfile.TemporaryDirectory() as folder:
            workspace.copy_starter(exercise, Path(folder))
            workspace.copy_solution(exercise, Path(folder))
            _, grading = workspace.check_repair(Path(folder))
            for check in grading.checks:
                print(f"{check.name}: {check.status.value}: {check.message}")
        return 0

    return _in_child(run)[1]


def _repair(exercise: ClinicExercise, console: list[str]) -> str:
    """The line about the speed."""
    text = repair_text(exercise)
    console.append(f"\n$ profiling-lab exercise repair {exercise.slug}\n{text}")
    said = text.strip().splitlines() or ["nothing"]
    return next((line for line in said if line.startswith("speed: ")), said[-1]).removeprefix("speed: ")


def _named(exercise: ClinicExercise, recording: Path, lines: set[int]) -> str:
    """The first of the exercise's rules that names one of these lines; empty where none does."""
    from profiling_lab.rules import RULES
    from profiling_lab.rules.run import run
    from profiling_lab.trace import Trace

    with Trace.open(recording) as trace:
        told = [each for first in run(trace, RULES).findings for each in (first, *first.effects)]
        for finding in told:
            if finding.rule in exercise.rules and finding.place and finding.place.line in lines:
                return f"{finding.rule}, {finding.severity}"
    return ""


def _write_answer(exercise: ClinicExercise, out: Path, answers: dict[str, object]) -> None:
    """The worked answer.toml with the figures of this recording."""
    text = (exercise.folder / workspace.SOLUTIONS / "answer.toml").read_text()
    for key, value in answers.items():
        name = key.rpartition(".")[2]
        shown = json.dumps(value)
        text = re.sub(
            rf'(?m)^{name} = ("(?:[^"\\]|\\.)*"|[\d.]+)', lambda _, n=name, v=shown: f"{n} = {v}", text
        )
    (out / workspace.SOLUTIONS / "answer.toml").write_text(text)


def _command(arguments: list[str]) -> str:
    """What a command prints."""
    from profiling_lab.cli import main as profiling_lab

    with _captured() as text:
        profiling_lab(arguments)
    return text.getvalue()


@contextlib.contextmanager
def _captured() -> Iterator[io.StringIO]:
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
        yield text


def _in_child(run: Callable[[], int]) -> tuple[int, str]:
    """Runs it in a fork of this process, where torch is imported but no CUDA context made. Returns the wait
    status and the output.
    """
    reading, writing = os.pipe()
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.dup2(writing, 1)
            os.dup2(writing, 2)
            os.close(reading)
            code = run()
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading, errors="replace") as pipe:
        text = pipe.read()
    return os.waitpid(child, 0)[1], text


if __name__ == "__main__":
    raise SystemExit(main())
