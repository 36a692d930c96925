# SPDX-License-Identifier: Apache-2.0
"""Make the recordings of E04, E11 and E38 from what record_in_turns.py has recorded. It needs no GPU.

    python tools/multi_gpu/assemble_exercises.py raw/ --out recordings/ [--only multi-gpu-timeline]

`--out` gets the folders of profiling_lab/exercises with what belongs there: recorded/starter_h200 and
solution_h200 with a file for each rank, recorded/console.txt, solutions/answer.toml with the figures of these
recordings. Copy it over profiling_lab/exercises. The end says for each exercise whether the planted cause is
named, whether the solution's recordings are silent, and whether the grader accepts the worked answers.
`--last ddp_starter=3` keeps the last steps only: for recordings of whole runs.
"""

from __future__ import annotations

import argparse
import gzip
import importlib
import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import assembly
from ncu_solutions import filled

from profiling_lab.exercises import answers, find, ncu_questions, workspace
from profiling_lab.exercises.exercise import Exercise
from profiling_lab.exercises.job_facts import job_facts
from profiling_lab.rules import RULES
from profiling_lab.rules.run import run
from profiling_lab.trace import Trace

TIMELINE, DISTRIBUTED, COLD = "multi-gpu-timeline", "distributed-profiling", "cold-collectives"
Row = dict[str, Any]


@dataclass(frozen=True)
class Job:
    """Recordings of one program: what they are called in raw/ and in recorded/."""

    piece: str
    folder: str
    name: str
    samples: bool = False
    """those of Python stacks are kept: where the host is at fault"""


JOBS = {
    TIMELINE: (Job("timeline", "", "run"),),
    DISTRIBUTED: (Job("ddp", "ddp", "train_ddp"), Job("fsdp2", "fsdp2", "train_fsdp", True)),
    COLD: (Job("cold", "", "run", True),),
}
STARTER, SOLUTION = "starter", "solution"
NOT_THE_PROGRAMS = re.compile(r"profiling-lab: |\S+\.py:\d+: \w*Warning: |  return func\(")
"""in what is printed: our own words, and torch's warnings"""
TRACES = "ddp_torch"
"""of torch.profiler: a folder in raw/"""


@dataclass
class Part:
    """One exercise: where its files are and go, what a learner would see, and what was found."""

    exercise: Exercise
    raw: Path
    out: Path
    console: list[str] = field(default_factory=list)
    row: Row = field(default_factory=dict)

    @property
    def recorded(self) -> Path:
        return self.out / workspace.RECORDED

    @property
    def ends(self) -> dict[str, str]:
        """What starter and solution are called in raw/, and their folders in recorded/: starter_h200."""
        name = Path(self.grade().STARTER).name
        return {end: name.replace(STARTER, end) for end in (STARTER, SOLUTION)}

    @property
    def starter(self) -> Path:
        return self.recorded / self.ends[STARTER]

    def grade(self) -> Any:
        return importlib.import_module(f"profiling_lab.exercises.{self.exercise.entry.package}.grade")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("raw", type=Path, help="the folder of record_in_turns.py --out")
    parser.add_argument("--out", type=Path, required=True, help="where the folders go")
    parser.add_argument("--only", default="", help="slugs, with commas (default: all that were recorded)")
    parser.add_argument(
        "--last", action="append", default=[], metavar="PIECE=N", help="keep the last N steps of this piece"
    )
    args = parser.parse_args()
    last = {name: int(steps) for name, _, steps in (each.partition("=") for each in args.last)}
    wanted = tuple(filter(None, args.only.split(","))) or tuple(JOBS)
    if unknown := set(wanted) - set(JOBS):
        parser.error(f"expected slugs among {', '.join(JOBS)}, got {', '.join(sorted(unknown))}")
    is_good = True
    for slug in wanted:
        exercise = find(slug)
        part = Part(exercise, args.raw / exercise.entry.package, args.out / exercise.entry.package)
        if not args.only and not part.raw.is_dir():
            continue
        assembled(part, last)
        print(json.dumps({"exercise": exercise.label, **part.row}), flush=True)
        print(f"{exercise.label}: {'good' if part.row['good'] else 'NOT GOOD'}", flush=True)
        is_good &= bool(part.row["good"])
    return 0 if is_good else 1


def assembled(part: Part, last: dict[str, int]) -> None:
    keep(part, last)
    right = ANSWERS[part.exercise.slug](part)
    solutions = part.out / workspace.SOLUTIONS
    solutions.mkdir(parents=True, exist_ok=True)
    before = (part.exercise.folder / workspace.SOLUTIONS / answers.FILE).read_text()
    (solutions / answers.FILE).write_text(filled(before, right))
    part.row["answers"] = right
    look(part)
    (part.recorded / "console.txt").write_text("\n".join(part.console))
    after: Row = (
        {} if part.exercise.slug == COLD else {"fix.after": f"{workspace.RECORDED}/{part.ends[SOLUTION]}"}
    )
    said = assembly.graded(part.exercise, part.out, after, lambda *of: after_repair(part, *of))
    print("\n".join((f"--- {part.exercise.label}, the worked answer:", *said)), flush=True)
    part.row["rejected"] = [line for line in said if line.startswith("FAILED")]
    part.row["good"] = not part.row["rejected"] and named(part)


def keep(part: Part, last: dict[str, int]) -> None:
    """Small copies of what was recorded, and what the programs printed."""
    for job in JOBS[part.exercise.slug]:
        for end, target in part.ends.items():
            piece, sizes = f"{job.piece}_{end}", []
            for source in sorted(part.raw.glob(f"{piece}.rank*.sqlite")):
                name = f"{source.name.replace(piece, job.name, 1)}.gz"
                steps = last.get(piece, 0)
                small = part.recorded / target / job.folder / name
                sizes.append(assembly.packed(source, small, samples=job.samples, last_steps=steps))
                if steps and len(sizes) == 1:
                    part.console.append(f"{piece}: the last {steps} steps of a recorded run\n")
            part.row[f"{piece} bytes"] = sizes
    traces = sorted((part.raw / TRACES).glob("trace.rank*.json.gz"))
    for source in traces:
        data = assembly.small_trace(gzip.decompress(source.read_bytes()))
        assembly.written(part.starter / "torch" / source.name, data)
    for printed in sorted(part.raw.glob("*.txt")):
        lines = printed.read_text(errors="replace").splitlines()
        told = [line for line in lines if line.strip() and not NOT_THE_PROGRAMS.match(line)]
        if told:
            part.console.append("\n".join((f"{printed.stem}:", *told, "")))
    if (measured := part.raw / "cold_measured.json").is_file():
        part.row["measured"] = json.loads(measured.read_text())


def look(part: Part) -> None:
    """What the commands of README.md print, of starter and solution."""
    more = ("--by", "collective", "--limit", "6")
    for end in part.ends.values():
        for folder in sorted({path.parent for path in (part.recorded / end).rglob("*.gz")}):
            here = str(folder.relative_to(part.out))
            for words in (
                ("ranks", here), ("ranks", here, *more), ("collectives", here), ("collectives", here, *more)
            ):  # fmt: skip
                part.console.append(assembly.shown(part.out, *words))
            for path in sorted(folder.glob("*.sqlite.gz")):
                part.console.append(assembly.shown(part.out, "check", f"{here}/{path.name}"))


def after_repair(part: Part, copy: Path, given: answers.Answers) -> list[Any]:
    """The checks of the solution's recordings."""
    grade = part.grade()
    if part.exercise.slug == TIMELINE:
        return [grade.overlap(copy, given)]
    if part.exercise.slug == DISTRIBUTED:
        return [grade.after(planted, copy, given) for planted in grade.JOBS]
    return []


def named(part: Part) -> bool:
    """Whether `check` has the exercise's rule first on the starter's ranks, and not on the solution's."""
    rules = part.exercise.rules
    if not rules:
        return True
    told: dict[str, list[str]] = {}
    for end, folder in part.ends.items():
        for path in sorted((part.recorded / folder).glob("*.sqlite.gz")):
            with Trace.open(path) as trace:
                told.setdefault(end, []).append(",".join(f.rule for f in run(trace, RULES).findings))
    part.row["check"] = told
    first = all(names.partition(",")[0] in rules for names in told[STARTER])
    return first and not any(set(names.split(",")) & set(rules) for names in told.get(SOLUTION, []))


# The right answers.


def timeline(part: Part) -> Row:
    facts = job_facts(part.starter)
    file, line = facts.line_of("Broadcast") or ("", 0)
    right = ncu_questions.right_answers(part.grade().QUESTIONS, facts)
    return {**right, "finding.file": file, "finding.line": line}


def distributed(part: Part) -> Row:
    grade = part.grade()
    right: Row = {}
    for planted in grade.JOBS:
        name = planted.name
        facts = job_facts(part.starter / name)
        blame = grade.straggler(facts.job)
        if blame is None:
            raise LookupError(f"{name}: no straggler: {facts.job.verdict}")
        right |= ncu_questions.right_answers(grade.questions(name), facts.job)
        right |= dict(zip((f"{name}.file", f"{name}.line"), grade._line(blame), strict=True))
    facts = job_facts(part.starter / grade.TORCH)
    return right | ncu_questions.right_answers(grade.TORCH_QUESTIONS, facts.job)


def cold(part: Part) -> Row:
    grade = part.grade()
    facts = grade.cold_facts(part.starter)
    file, line = facts.line or ("", 0)
    right = ncu_questions.right_answers(grade.QUESTIONS, facts)
    return {**right, "late.step": int(right["late.step"]), "late.file": file, "late.line": line}


ANSWERS: dict[str, Callable[[Part], Row]] = {TIMELINE: timeline, DISTRIBUTED: distributed, COLD: cold}


if __name__ == "__main__":
    sys.exit(main())
