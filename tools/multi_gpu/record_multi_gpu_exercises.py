# SPDX-License-Identifier: Apache-2.0
"""Records E04, E11 and E38 on two GPUs, starter and solution, and judges them. It takes about two minutes.

    python tools/multi_gpu/record_multi_gpu_exercises.py --out recordings/ --tar recordings.tar.gz

`--only SLUG,...` records some of them.

`--out` gets the folders of profiling_lab/exercises with what belongs there: recorded/starter_h200 and
solution_h200 with a file for each rank, recorded/console.txt, solutions/answer.toml with the figures of these
recordings. Copy it over profiling_lab/exercises. The end says for each exercise whether the planted cause is
named, whether the solution's recordings are silent, and what the repair wins. raw/ has the recordings as they
were: they are not to be shipped.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import importlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import rank_runs

from profiling_lab.exercises import answers as answers_file
from profiling_lab.exercises import find, job_repair, ncu_questions, workspace
from profiling_lab.exercises.exercise import CheckStatus, Exercise
from profiling_lab.exercises.program_repair import Goal, judged, load

sys.path.append(str(rank_runs.REPO / "tools"))
from ncu_solutions import filled

SLUGS = ("multi-gpu-timeline", "distributed-profiling", "cold-collectives")
JOBS = {
    SLUGS[0]: {"": "run"},
    SLUGS[1]: {"ddp": "train_ddp", "fsdp2": "train_fsdp", "torch": "trace"},
    SLUGS[2]: {"": "run"},
}
"""of each exercise the folders with recordings, and what their files are called"""
STARTER, SOLUTION, COPY = "starter_h200", "solution_h200", "copy"
BUCKETS_MB = (1, 5, 25, 100, 4096)
MOST_TAR_BYTES = 10_000_000
Row = dict[str, object]


@dataclass
class Recorded:
    """One exercise: where its folders go, what a learner would see, and what was found."""

    exercise: Exercise
    out: Path
    raw: Path
    console: list[str] = field(default_factory=list)
    row: Row = field(default_factory=dict)

    def say(self, command: str, text: str) -> None:
        self.console.append(f"$ {command}\n{text.rstrip()}\n")

    def program(self, name: str, solved: bool) -> Path:
        """A copy of a program of the starter, or of the solution: what lies among packages is no user's."""
        folder = self.exercise.folder / workspace.SOLUTIONS if solved else self.exercise.folder
        target = self.raw / ("solved" if solved else COPY) / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(folder / name, target)
        return target

    def keep(self, job: str = "", program: str = "run") -> None:
        """Small copies of the recordings of starter and solution into recorded/."""
        strip = [self.raw / COPY, self.raw / "solved"]
        samples = job == "fsdp2" or bool(self.exercise.record_options)  # where the host is at fault
        for name in (STARTER, SOLUTION):
            if (source := self.raw / name / job).is_dir():
                target = self.out / workspace.RECORDED / name / job
                sizes = rank_runs.small_copies(source, target, strip, program, samples)
                self.row[f"{name}/{job} bytes"] = sizes


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="where the folders go")
    parser.add_argument("--only", default="", help="slugs, with commas (default: all)")
    parser.add_argument("--tar", type=Path, help="pack all of it into this file, of at most 10 MB")
    args = parser.parse_args()
    wanted = tuple(filter(None, args.only.split(","))) or SLUGS
    if unknown := set(wanted) - set(SLUGS):
        parser.error(f"no exercise on several GPUs is called {', '.join(sorted(unknown))}")
    import torch  # noqa: F401  the forks need not import it again

    began = time.monotonic()
    out = args.out.resolve()
    found = []
    for slug in wanted:
        exercise = find(slug)
        found.append(Recorded(exercise, out / exercise.entry.package, out / "raw" / exercise.entry.package))
    # First all that uses GPUs: this process has no threads yet, so it can be forked.
    for one in found:
        _timed(one, "seconds on GPUs", RUNS[one.exercise.slug])
    for one in found:
        _timed(one, "seconds of analysis", _analysed)
        print(json.dumps({"exercise": one.exercise.label, **one.row}), flush=True)
    if args.tar:
        _pack(out, args.tar.resolve())
    print(f"\nin all {time.monotonic() - began:.0f} s")
    for one in found:
        print(f"{one.exercise.label}: {'good' if one.row.get('good') else 'NOT GOOD'}")
    return 0 if all(one.row.get("good") for one in found) else 1


def _timed(one: Recorded, name: str, part: Callable[[Recorded], None]) -> None:
    """What fails in one exercise must not take the others with it."""
    began = time.monotonic()
    try:
        part(one)
    except Exception as error:
        traceback.print_exc()
        one.row["failed"] = f"{one.row.get('failed', '')} {type(error).__name__}: {error}".strip()[-1500:]
    one.row[name] = round(time.monotonic() - began, 1)


# What runs on the GPUs.


def _timeline(one: Recorded) -> None:
    """E04. The starter as a learner records it, with torchrun."""
    name = one.exercise.program[0]
    copy = workspace.start(one.exercise, one.raw / COPY)
    command = [sys.executable, "-m", "profiling_lab", "exercise", "profile", str(copy)]
    own = {**os.environ, "XDG_STATE_HOME": str(one.raw / "state")}
    done = subprocess.run(command, cwd=one.raw, env=own, capture_output=True, text=True, timeout=120)
    one.say("profiling-lab exercise profile", (done.stdout + done.stderr).replace(f"{copy}/", ""))
    (copy / "run1").rename(one.raw / STARTER)
    program = one.program(name, True)
    text = rank_runs.record(one.raw / SOLUTION, program)
    one.say(f"profiling-lab record -o after/run.sqlite torchrun --nproc-per-node 2 {name}", text)
    one.say("(the solution with other sizes of buckets)", _buckets(program))
    _race(one, name, goal_of(one.exercise))


def _buckets(program: Path) -> str:
    def rank(number: int) -> None:
        import torch
        from torch import distributed

        torch.cuda.set_device(number)
        distributed.init_process_group("nccl")
        module: Any = load(program, "buckets")
        for size_mb in BUCKETS_MB:
            module.BUCKET_MB = size_mb
            job = module.build("cuda")
            module.train(job, 3)
            torch.cuda.synchronize()
            begin = time.perf_counter()
            module.train(job, 20)
            took_ms = 1e3 * (time.perf_counter() - begin) / 20
            if not number:
                print(f"bucket_cap_mb={size_mb}: {took_ms:.2f} ms per step", flush=True)
            del job

    lines = rank_runs.on_ranks(rank).splitlines()
    return "\n".join(line for line in lines if line.startswith("bucket_cap_mb"))


def _distributed(one: Recorded) -> None:
    """E11. Both programs, and one with torch.profiler."""
    grade = importlib.import_module("profiling_lab.exercises.e11_distributed_profiling.grade")
    for planted in grade.JOBS:
        for name, solved in ((STARTER, False), (SOLUTION, True)):
            program, fewer = one.program(planted.program, solved), ("--steps", "2") if solved else ()
            text = rank_runs.record(one.raw / name / planted.name, program, arguments=fewer)
            one.say(f"{planted.program} of the {name.partition('_')[0]}, recorded", text)
    traces = one.raw / STARTER / grade.TORCH
    text = rank_runs.run(one.program("train_ddp.py", False), ["--trace", str(traces)], one.raw / STARTER)
    one.say("torchrun --nproc-per-node 2 train_ddp.py --trace run1/torch", text)
    for planted in grade.JOBS:
        _race(one, planted.program, planted.goal)


def _cold(one: Recorded) -> None:
    """E38. The job, and the measurement as it is and repaired."""
    judge = importlib.import_module("profiling_lab.exercises.e38_cold_collectives.repair")
    options, name = one.exercise.record_options, one.exercise.program[0]
    text = rank_runs.record(one.raw / STARTER, one.program(name, False), options)
    one.say(f"torchrun --nproc-per-node 2 {name}", text)
    text = rank_runs.run(one.program("bandwidth.py", False), [], one.raw / "naive")
    one.say("torchrun --nproc-per-node 2 bandwidth.py", text)
    solution = one.program("bandwidth.py", True)
    text = rank_runs.record(one.raw / SOLUTION, solution, options)
    one.say("torchrun --nproc-per-node 2 bandwidth.py (the solution)", text)
    found = job_repair.in_ranks(lambda _: judge.measured(solution), "nccl")
    one.row["measured"] = f"{found['given']:.1f} us, again {found['right']:.1f} us"
    one.row["good"] = abs(found["given"] - found["right"]) <= judge.REAL_OFF_FRAC * found["right"]


RUNS = dict(zip(SLUGS, (_timeline, _distributed, _cold), strict=True))


def goal_of(exercise: Exercise) -> Goal:
    goal: Goal = importlib.import_module(f"profiling_lab.exercises.{exercise.entry.package}.grade").GOAL
    return goal


def _race(one: Recorded, program: str, goal: Goal) -> None:
    """What `exercise repair` says of the speed of the solution."""
    seeds = [11, 22, 33]

    paths = [one.program(program, solved) for solved in (False, True)]

    def rank(_: int) -> Any:
        before, after = (load(path, f"race{number}") for number, path in enumerate(paths))
        return job_repair.race(before, after, seeds, goal.steps, "cuda")

    raced = job_repair.in_ranks(rank, "nccl")
    check = judged([old / new for old, new in raced["times"]], raced["times"], goal)
    wrong = raced["wrong"]
    one.row[f"{program} speed"] = f"failed: {wrong}" if wrong else f"{check.status.value}: {check.message}"
    one.say(f"profiling-lab exercise repair ({program})", str(one.row[f"{program} speed"]))
    is_right = not wrong and check.status is CheckStatus.PASSED
    one.row["good"] = one.row.get("good", True) is True and is_right


# What is read from the recordings.


def _analysed(one: Recorded) -> None:
    for job, program in JOBS[one.exercise.slug].items():
        one.keep(job, program)
    recorded, solutions = one.out / workspace.RECORDED, one.out / workspace.SOLUTIONS
    right = ANSWERS[one.exercise.slug](recorded / STARTER)
    one.row["answers"] = right
    solutions.mkdir(parents=True, exist_ok=True)
    before = (one.exercise.folder / workspace.SOLUTIONS / answers_file.FILE).read_text()
    (solutions / answers_file.FILE).write_text(filled(before, right))
    _looks(one)
    (recorded / "console.txt").write_text("\n".join(one.console).replace(f"{one.out}/", ""))
    _graded(one)
    if one.exercise.rules:
        _named(one)
    for path in sorted(one.raw.rglob("*.sqlite")):
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes(), 6, mtime=0))
        path.unlink()


def _timeline_answers(folder: Path) -> Row:
    grade, facts = _of("e04_multi_gpu_timeline", folder)
    file, line = facts.line_of("Broadcast") or ("", 0)
    return {**ncu_questions.right_answers(grade.QUESTIONS, facts), "finding.file": file, "finding.line": line}


def _distributed_answers(folder: Path) -> Row:
    right: Row = {}
    for name in ("ddp", "fsdp2"):
        grade, facts = _of("e11_distributed_profiling", folder / name)
        blame = grade.straggler(facts.job)
        if blame is None:
            raise LookupError(f"{name}: no straggler: {facts.job.verdict}")
        right |= ncu_questions.right_answers(grade.questions(name), facts.job)
        right |= dict(zip((f"{name}.file", f"{name}.line"), grade._line(blame), strict=True))
    grade, facts = _of("e11_distributed_profiling", folder / "torch")
    return right | ncu_questions.right_answers(grade.TORCH_QUESTIONS, facts.job)


def _cold_answers(folder: Path) -> Row:
    grade = importlib.import_module("profiling_lab.exercises.e38_cold_collectives.grade")
    facts = grade.cold_facts(folder)
    file, line = facts.line or ("", 0)
    right = ncu_questions.right_answers(grade.QUESTIONS, facts)
    return {**right, "late.step": int(right["late.step"]), "late.file": file, "late.line": line}


ANSWERS = dict(zip(SLUGS, (_timeline_answers, _distributed_answers, _cold_answers), strict=True))


def _of(package: str, folder: Path) -> tuple[Any, Any]:
    from profiling_lab.exercises.job_facts import job_facts

    return importlib.import_module(f"profiling_lab.exercises.{package}.grade"), job_facts(folder)


def _looks(one: Recorded) -> None:
    """What the commands of README.md print, of starter and solution."""
    for name in (STARTER, SOLUTION):
        for job in JOBS[one.exercise.slug]:
            folder = one.out / workspace.RECORDED / name / job
            if not folder.is_dir():
                continue
            for more in ((), ("--by", "collective", "--limit", "6")):
                one.say(f"profiling-lab ranks {folder} {' '.join(more)}", _printed("ranks", folder, *more))
            by_one = ("--by", "collective", "--limit", "6")
            one.say(f"profiling-lab collectives {folder}", _printed("collectives", folder))
            one.say(
                f"profiling-lab collectives {folder} --by collective",
                _printed("collectives", folder, *by_one),
            )
            for path in sorted(folder.glob("*.sqlite.gz")):
                one.say(f"profiling-lab check {path}", _printed("check", path))


def _printed(command: str, path: Path, *more: str) -> str:
    from profiling_lab.cli import main as profiling_lab

    text = io.StringIO()
    jobs = () if command == "check" else ("--jobs", "1")
    with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
        profiling_lab([command, str(path), *more, *jobs])
    return text.getvalue()


def _named(one: Recorded) -> None:
    """Whether `check` has the exercise's rule first on the starter's ranks, and not on the solution's."""
    from profiling_lab.rules import RULES
    from profiling_lab.rules.run import run
    from profiling_lab.trace import Trace

    told: dict[str, list[str]] = {STARTER: [], SOLUTION: []}
    for name, rules in told.items():
        for path in sorted((one.out / workspace.RECORDED / name).glob("*.sqlite.gz")):
            with Trace.open(path) as trace:
                found = [finding.rule for finding in run(trace, RULES).findings]
            rules.append(
                found[0] if name == STARTER else ",".join(r for r in found if r in one.exercise.rules)
            )
    one.row["check names first"], one.row["check on the solution"] = told[STARTER], told[SOLUTION]
    is_named = all(rule in one.exercise.rules for rule in told[STARTER]) and not any(told[SOLUTION])
    one.row["good"] = one.row["good"] is True and is_named


def _graded(one: Recorded) -> None:
    """What the grader says of the worked answer with these recordings, and of the starter's empty one."""
    copy = one.raw / "graded"
    shutil.rmtree(copy, ignore_errors=True)
    workspace.start(one.exercise, copy)
    shutil.copytree(one.out / workspace.RECORDED, copy / workspace.RECORDED, dirs_exist_ok=True)
    own = {"trace": f"{workspace.RECORDED}/{STARTER}", "fix.after": f"{workspace.RECORDED}/{SOLUTION}"}
    worked = answers_file.read(one.out / workspace.SOLUTIONS).replaced(own)
    checks = one.exercise.findings(copy, worked)
    grade = importlib.import_module(f"profiling_lab.exercises.{one.exercise.entry.package}.grade")
    if one.exercise.slug == SLUGS[0]:
        checks.append(grade.overlap(copy, worked))
    if one.exercise.slug == SLUGS[1]:
        checks += [grade.after(planted, copy, worked) for planted in grade.JOBS]
    told = [f"{check.name}: {check.status.value}: {check.message}" for check in checks]
    print("\n".join((f"--- {one.exercise.label}, the worked answer:", *told)), flush=True)
    one.row["rejected"] = [
        line for line, check in zip(told, checks, strict=True) if check.status is CheckStatus.FAILED
    ]
    empty = one.exercise.findings(copy, answers_file.read(copy).replaced(own))
    starter_fails = any(check.status is CheckStatus.FAILED for check in empty)
    good = one.row.get("good") is True and not one.row.get("failed")
    one.row["good"] = good and not one.row["rejected"] and starter_fails
    shutil.rmtree(copy)


def _pack(out: Path, target: Path) -> None:
    """All of it; without raw/ if it would be too large."""
    for names in (None, "raw"):
        with tarfile.open(target, "w:gz") as archive:
            for path in sorted(out.iterdir()):
                if path.name != names:
                    archive.add(path, path.name)
        if target.stat().st_size <= MOST_TAR_BYTES:
            break
    print(f"{target}: {target.stat().st_size} bytes{', without raw' if names else ''}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
