# SPDX-License-Identifier: Apache-2.0
"""Records E15 and E16 on the GPUs of this machine (2 or 4), starter and solution, and judges them.

    python tools/record_scaling_exercises.py --out recordings/ [--only communication-overhead] [--repair]

`--out` gets `exercises/`, to be copied over profiling_lab/exercises (recorded/, solutions/answer.toml and
notes with the figures of these recordings), `results/scaling.jsonl` for benchmarks/results, and
scaling_exercises.tar.gz with both. On two GPUs it takes about two and a half minutes; --repair also runs the
graders' races, about one more. The end says what the graders, `ranks` and `check` think of both programs.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ncu_solutions import filled, tabled

from profiling_lab.exercises import answers, rank_repair, workspace
from profiling_lab.exercises.e15_multi_gpu_scaling import grade as scaling
from profiling_lab.exercises.e15_multi_gpu_scaling.samples import scaling_facts
from profiling_lab.exercises.e16_communication_overhead import grade as communication
from profiling_lab.exercises.e16_communication_overhead.samples import (
    CommunicationFacts,
    communication_facts,
    predicted_ms,
)
from profiling_lab.exercises.exercise import CheckStatus, Exercise
from profiling_lab.measure import ResultsFile, machine
from profiling_lab.measure.scaling import strong_efficiency, weak_efficiency
from profiling_lab.rules import RULES
from profiling_lab.rules.run import run as checked
from profiling_lab.trace import Trace

REPO = Path(__file__).resolve().parents[1]
LIMIT_S = 300
LINKS = "links_h200.json"

Row = dict[str, Any]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="where the files go")
    parser.add_argument("--only", default="", help="slugs, with commas (default: both)")
    parser.add_argument(
        "--repair", action="store_true", help="also time the solutions as `exercise repair` does"
    )
    args = parser.parse_args()
    out = args.out.resolve()
    chosen = [part for part in PARTS if not args.only or part.ENTRY.slug in args.only.split(",")]
    if not chosen:
        parser.error(f"expected {' or '.join(part.ENTRY.slug for part in PARTS)}, got {args.only}")
    rows = [_recorded(part, out, args.repair) for part in chosen]
    for row in rows:
        print("\n".join(f"{name}: {value}" for name, value in row.items()), end="\n\n")
    return 0 if all(row.get("good") for row in rows) else 1


def _recorded(part: Any, out: Path, repair: bool) -> Row:
    """One exercise. What fails must not take the recordings with it, so the archive is written either way."""
    began = time.monotonic()
    exercise: Exercise = part.EXERCISE
    target = out / "exercises" / exercise.entry.package
    for name in (workspace.RECORDED, workspace.SOLUTIONS):
        (target / name).mkdir(parents=True, exist_ok=True)
    console: list[str] = []
    row: Row = {"exercise": exercise.label}
    try:
        PARTS[part](target, out, console, row)
        if repair:
            row |= _repaired(part, console)
    except Exception as error:
        traceback.print_exc()
        row |= {"failed": f"{type(error).__name__}: {error}", "good": False}
    (target / workspace.RECORDED / "console.txt").write_text("\n".join(console) + "\n")
    row["bytes"] = sum(path.stat().st_size for path in (target / workspace.RECORDED).iterdir())
    row["seconds"] = round(time.monotonic() - began, 1)
    with tarfile.open(out / "scaling_exercises.tar.gz", "w:gz") as archive:
        for name in ("exercises", "results"):
            if (out / name).is_dir():
                archive.add(out / name, name)
    print(json.dumps(row), flush=True)
    return row


def _scaling(target: Path, out: Path, console: list[str], row: Row) -> None:
    exercise = scaling.EXERCISE
    with _copy(exercise) as folder:
        _program(folder, [scaling.BENCHMARK], console)
        _kept(folder, "scaling", target / scaling.RECORDED)
        workspace.copy_solution(exercise, folder)
        _program(folder, [scaling.BENCHMARK, "-o", "after.json"], console, "train.py is the solution's")
        _kept(folder, "after", target / scaling.SOLUTION)
    before, after = (scaling_facts(target / name) for name in (scaling.RECORDED, scaling.SOLUTION))
    _looks(target, console, ("ranks",), [path.name for path in before.recordings])
    _looks(target, console, ("ranks",), [path.name for path in after.recordings])
    _looks(target, console, ("lines", "--limit", "5"), [before.recordings[0].name])
    row |= {
        "GPU": f"{before.most} x {before.gpu}",
        "strong efficiency": f"{before.strong_percent:.1f} %, repaired {after.strong_percent:.1f} %",
        "weak efficiency": f"{before.weak_percent:.1f} %, repaired {after.weak_percent:.1f} %",
        "Amdahl": f"{before.amdahl}; repaired {after.amdahl}",
        "Gustafson": f"{before.gustafson}; repaired {after.gustafson}",
        "ranks": f"rank {before.late_rank}, {before.late_line}, {before.cause}, {before.saved_ms:.3f} ms",
        "ranks on the solution": f"rank {after.late_rank}" if after.late_rank else "nobody",
        "check": [_first(path) for path in before.recordings],
        "check on the solution": [_first(path) for path in after.recordings],
        "difference": scaling.difference(before, after),
    }
    _results(out, before, "starter")
    _results(out, after, "solution")
    _solutions(exercise, target, scaling.right_answers(before))
    row["graded"] = _graded(exercise, target, {"fix.after": scaling.SOLUTION}, console)
    row["good"] = not row["difference"] and not row["graded"] and not after.late_rank


def _communication(target: Path, out: Path, console: list[str], row: Row) -> None:
    exercise = communication.EXERCISE
    with _copy(exercise) as folder:
        _program(folder, [communication.BENCHMARK], console)
        bucket = ["--bucket-mb", str(communication.BUCKET_MIB)]
        _program(folder, [communication.BENCHMARK, *bucket, "-o", "second.json"], console)
        for name, there in (("communication", communication.RECORDED), ("second", communication.SECOND)):
            _kept(folder, name, target / there, links=LINKS)
        shutil.copy(folder / "links.json", target / workspace.RECORDED / LINKS)
    before, after = (communication_facts(target / n) for n in (communication.RECORDED, communication.SECOND))
    _looks(target, console, ("interconnect",), [LINKS])
    _looks(target, console, ("interconnect", "--by", "size"), [LINKS])
    for facts in (before, after):
        files = [path.name for path in facts.recordings]
        _looks(target, console, ("ranks",), files)
        _looks(target, console, ("collectives", "--by", "kind", "--links", LINKS), files)
    predicted = predicted_ms(before, communication.BUCKET_MIB << 20, _sms(before))
    choice = before.choice
    exposed = 100 * after.exposed_ms / after.step_ms
    row |= {
        "GPU": f"{before.ranks} x {before.gpu}",
        "links": f"{before.fit.latency_ns / 1e3:.1f} us, {before.fit.bus_bytes_per_s / 1e9:.1f} GB/s, fit "
        f"{100 * before.fit.off_frac:.0f} % off, at most {100 * before.fit.most_off_frac:.0f} %",
        "step": f"{before.step_ms:.3f} ms, {before.exposed_ms:.3f} exposed, "
        f"{before.reached_percent:.1f} % of links",
        "messages": [size >> 20 for size in before.messages],
        "NCCL": f"{before.nccl.version}, {choice}",
        "second run": f"{after.step_ms:.3f} ms, {after.exposed_ms:.3f} exposed ({exposed:.1f} %)",
        "predicted": f"{predicted:.3f} ms, {100 * (predicted / after.step_ms - 1):+.1f} %",
        "as before": f"{100 * (before.step_ms / after.step_ms - 1):+.1f} %",
        "all hidden": f"{100 * ((before.step_ms - before.exposed_ms) / after.step_ms - 1):+.1f} %",
        "check": [_first(path) for path in before.recordings],
        "check on the solution": [_first(path) for path in after.recordings],
    }
    results = _file(out)
    case = {"exercise": exercise.slug, "ranks": before.ranks}
    for provider, value in (
        ("starter", before.step_ms),
        ("solution", after.step_ms),
        ("predicted", predicted),
    ):
        results.add("communication_overhead", case, provider, "step", round(value * 1e6), "ns")
    for kind, ranks in before.links.measured:
        fit, case = before.links.fit(kind, ranks), {"kind": kind, "ranks": ranks}
        results.add("links", case, before.links.backend, "latency", round(fit.latency_ns), "ns")
        results.add(
            "links", case, before.links.backend, "bus_bandwidth", round(fit.bus_bytes_per_s), "bytes/s"
        )
    right = communication.right_answers(before) | {"prediction.step_ms": float(f"{predicted:.4g}")}
    _solutions(exercise, target, right)
    row["graded"] = _graded(exercise, target, {"prediction.second": communication.SECOND}, console)
    named = all(first.partition(",")[0] in exercise.rules for first in row["check"])
    row["good"] = named and not row["graded"]


PARTS: dict[Any, Callable[[Path, Path, list[str], Row], None]] = {
    scaling: _scaling,
    communication: _communication,
}


@contextlib.contextmanager
def _copy(exercise: Exercise) -> Any:
    """A learner's copy."""
    with tempfile.TemporaryDirectory() as folder:
        workspace.copy_starter(exercise, Path(folder))
        shutil.rmtree(Path(folder, workspace.RECORDED), ignore_errors=True)
        yield Path(folder)


def _program(folder: Path, arguments: list[str], console: list[str], note: str = "") -> None:
    """Run a program of the exercise as a learner does."""
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    said = (done.stdout + done.stderr).replace(f"{folder}/", "")
    console.append(f"$ python {' '.join(arguments)}{f'    # {note}' if note else ''}\n{said.rstrip()}\n")
    print(f"{' '.join(arguments)}: {time.monotonic() - began:.1f} s", flush=True)
    if done.returncode:
        raise RuntimeError(f"status {done.returncode}: {said[-3000:]}")


def _kept(folder: Path, name: str, target: Path, **changes: str) -> None:
    """The JSON and the recordings that it names, reduced, under the names that the exercise ships."""
    data = json.loads((folder / f"{name}.json").read_text())
    files = []
    for rank, file in enumerate(data["recordings"]):
        files.append(f"{target.stem}.rank{rank}.sqlite")
        _reduced(folder / file, target.with_name(files[-1]), folder)
    target.write_text(json.dumps({**data, "recordings": files, **changes}, indent=1) + "\n")


def _reduced(source: Path, target: Path, folder: Path) -> None:
    target.unlink(missing_ok=True)
    spec = importlib.util.spec_from_file_location("reduce_trace", REPO / "benchmarks" / "reduce_trace.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.reduce(source, target, (str(folder), str(folder.resolve()), str(REPO)))


def _looks(target: Path, console: list[str], command: tuple[str, ...], files: list[str]) -> None:
    """What a command says of recordings."""
    from profiling_lab.cli import main as profiling_lab

    text, folder = io.StringIO(), target / workspace.RECORDED
    words = [str(folder / word) if word == LINKS else word for word in (*command, *files)]
    with contextlib.redirect_stdout(text):
        profiling_lab([str(folder / word) if word in files else word for word in words])
    said = text.getvalue().replace(f"{folder}/", "").rstrip()
    console.append(f"$ profiling-lab {' '.join([*command, *files])}\n{said}\n")


def _first(path: Path) -> str:
    """The first finding of `check`: its rule and place."""
    with Trace.open(path) as trace:
        found = checked(trace, RULES).findings
    return f"{found[0].rule}, {found[0].severity}, {found[0].place}" if found else "nothing"


def _sms(facts: CommunicationFacts) -> int:
    with Trace.open(facts.recordings[0]) as trace:
        return max(gpu.multiprocessors for gpu in trace.gpus)  # word: quoted


def _file(out: Path) -> ResultsFile:
    return ResultsFile(out / "results" / "scaling.jsonl", machine("cuda"))


def _results(out: Path, facts: Any, provider: str) -> None:
    results = _file(out)
    for kind, points, efficiency in (
        ("strong", facts.strong, strong_efficiency),
        ("weak", facts.weak, weak_efficiency),
    ):
        for point, frac in zip(points, efficiency(points).values(), strict=True):
            case = {"exercise": scaling.ENTRY.slug, "scaling": kind, "gpus": point.gpus}
            results.add("scaling", case, provider, "step", round(point.median_ns), "ns")
            results.add("scaling", case, provider, "efficiency", round(frac, 5), "fraction")


def _solutions(exercise: Exercise, target: Path, right: dict[str, object]) -> None:
    """answer.toml and the notes, with the figures of these recordings."""
    for name, text in ((answers.FILE, filled), (workspace.NOTES, tabled)):
        before = (exercise.folder / workspace.SOLUTIONS / name).read_text()
        (target / workspace.SOLUTIONS / name).write_text(text(before, right))


def _graded(exercise: Exercise, target: Path, more: dict[str, object], console: list[str]) -> list[str]:
    """What is wrong: right answers that are rejected, an empty answer file that passes."""
    with _copy(exercise) as copy:
        shutil.copytree(target / workspace.RECORDED, copy / workspace.RECORDED)
        given = answers.read(target / workspace.SOLUTIONS).replaced({"trace": exercise.recording, **more})
        found = exercise.findings(copy, given)
        empty = exercise.findings(copy, answers.read(copy).replaced({"trace": exercise.recording}))
    console.append("The worked answers, graded:")
    console += [f"{check.name}: {check.status.value}: {check.message}" for check in found]
    wrong = [f"{c.name}: {c.message}" for c in found if c.status is not CheckStatus.PASSED]
    passes = not any(check.status is CheckStatus.FAILED for check in empty)
    return [*wrong, *(["an empty answer file passes"] if passes else [])]


def _repaired(part: Any, console: list[str]) -> Row:
    """What the grader of repairs says of the solution."""
    folder = part.EXERCISE.folder
    solution = folder / workspace.SOLUTIONS / part.PROGRAM
    found = rank_repair.checks(folder / part.PROGRAM, solution, part.GOAL)
    said = {check.name: f"{check.status.value}: {check.message}" for check in found}
    console.append("\n$ profiling-lab exercise repair    # the solution")
    console += [f"{name}: {text}" for name, text in said.items()]
    return {f"repair, {name}": text for name, text in said.items()}


if __name__ == "__main__":
    sys.exit(main())
