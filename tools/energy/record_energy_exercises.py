# SPDX-License-Identifier: Apache-2.0
"""Records the exercises about energy (E12, E13) on this GPU, starter and solution, and judges both.

    python tools/energy/record_energy_exercises.py --out recordings/

`--out` gets the folders of profiling_lab/exercises with what belongs there: the samples and readings,
recorded/console.txt, solutions/ with the figures of this recording. Copy it over profiling_lab/exercises. It
takes about 50 seconds. The end says what each exercise's grader thinks of the solution and the starter.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from profiling_lab.exercises import answers, workspace
from profiling_lab.exercises.e12_power_measurement import grade as power
from profiling_lab.exercises.e12_power_measurement.samples import sample_facts
from profiling_lab.exercises.e13_energy_efficiency import grade as efficiency
from profiling_lab.exercises.e13_energy_efficiency.samples import EAGER, FUSED, read
from profiling_lab.exercises.energy_gpus import SimulatedGPU, TorchGPU
from profiling_lab.exercises.exercise import Exercise
from profiling_lab.exercises.ncu_questions import Question, right_answers
from profiling_lab.exercises.program_repair import load

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from ncu_solutions import filled, tabled

GPU = SimulatedGPU | TorchGPU
Facts = Callable[[Path], Any]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="where the folders go")
    args = parser.parse_args()
    import torch

    if not torch.cuda.is_available():
        print(f"this needs a GPU, and torch {torch.__version__} sees none", file=sys.stderr)
        return 2
    return 0 if recorded(TorchGPU(), args.out.resolve()) else 1


def recorded(gpu: GPU, out: Path) -> bool:
    """Both exercises; whether both graders accept the solution and refuse the starter."""
    good = []
    for grade, programs, facts in (
        (power, _power, sample_facts),
        (efficiency, _efficiency, read),
    ):
        exercise, began_s = grade.EXERCISE, time.monotonic()
        target = out / exercise.entry.package
        for name in (workspace.RECORDED, workspace.SOLUTIONS):
            (target / name).mkdir(parents=True, exist_ok=True)
        lines: list[str] = []
        print(f"=== {exercise.label}", flush=True)
        try:
            programs(gpu, exercise, target / exercise.recording, lines)
            _write_solutions(exercise, grade.QUESTIONS, facts, target)
            good.append(_is_graded_right(exercise, target, lines))
        except Exception:  # what the other exercise recorded must not be lost
            lines.append(traceback.format_exc())
            good.append(False)
        (target / workspace.RECORDED / "console.txt").write_text("\n".join(lines) + "\n")
        print("\n".join(lines))
        print(f"{exercise.label}: {'good' if good[-1] else 'NOT GOOD'}, {time.monotonic() - began_s:.1f} s")
    return all(good)


def _power(gpu: GPU, exercise: Exercise, samples: Path, lines: list[str]) -> None:
    _shown(lines, "python step_load.py", _program(exercise, power.PROGRAM).save, gpu, samples)
    for place in ("", workspace.SOLUTIONS):
        command = f"python {power.REPAIRED}" + (" (the solution)" if place else "")
        _shown(lines, command, _program(exercise, power.REPAIRED, place).show, gpu)


def _efficiency(gpu: GPU, exercise: Exercise, readings: Path, lines: list[str]) -> None:
    _shown(lines, "python readings.py", _program(exercise, efficiency.PROGRAM).save, gpu, readings)
    for place in ("", workspace.SOLUTIONS):
        command = f"python {efficiency.REPAIRED} readings.json" + (" (the solution)" if place else "")
        _shown(lines, command, _program(exercise, efficiency.REPAIRED, place).show, readings)


def _program(exercise: Exercise, name: str, place: str = "") -> Any:
    return load(exercise.folder / place / name, f"{Path(name).stem}_{place or 'starter'}")


def _shown(lines: list[str], command: str, function: Callable[..., None], *arguments: object) -> None:
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        function(*arguments)
    lines += [f"$ {command}", text.getvalue().rstrip()]


def _write_solutions(exercise: Exercise, questions: tuple[Question, ...], facts: Facts, target: Path) -> None:
    """answer.toml and the notes, with the figures of this recording."""
    found = facts(target / exercise.recording)
    right = right_answers([each for each in questions if _can_tell(each, found)], found)
    for name, text in ((answers.FILE, filled), (workspace.NOTES, tabled)):
        before = (exercise.folder / workspace.SOLUTIONS / name).read_text()
        (target / workspace.SOLUTIONS / name).write_text(text(before, right))


def _can_tell(question: Question, found: Any) -> bool:
    """Whether this recording can answer a question."""
    return question is not efficiency.FUSES or {EAGER, FUSED} <= set(found.workloads)


def _is_graded_right(exercise: Exercise, target: Path, lines: list[str]) -> bool:
    """What the grader says of the solution, and of the starter, in learners' copies with this recording."""
    passes = {}
    for what in ("solution", "starter"):
        with tempfile.TemporaryDirectory() as name:
            copy = Path(name)
            workspace.copy_starter(exercise, copy)
            shutil.copytree(target / workspace.RECORDED, copy / workspace.RECORDED, dirs_exist_ok=True)
            if what == "solution":
                workspace.copy_solution(exercise, copy)
                shutil.copy(target / workspace.SOLUTIONS / answers.FILE, copy)
            grading = exercise.grade(copy, answers.read(copy).replaced({"trace": exercise.recording}))
        passes[what] = grading.passed
        lines.append(f"\nThe {what}, graded:")
        lines += [f"{each.name}: {each.status.value}: {each.message}" for each in grading.checks]
    return passes["solution"] and not passes["starter"]


if __name__ == "__main__":
    sys.exit(main())
