# SPDX-License-Identifier: Apache-2.0
"""Make the recordings of E15 and E16 from what record_in_turns.py has measured and recorded. It needs no GPU.

    python tools/multi_gpu/assemble_scaling.py raw/ --out recordings/ [--only communication-overhead]

`--out` gets `exercises/`, to be copied over profiling_lab/exercises (recorded/, solutions/answer.toml and
notes with the figures of these recordings), and `results/scaling.jsonl` for benchmarks/results. The end says
what the graders, `ranks` and `check` think of both programs.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import shutil
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import assembly
from ncu_solutions import filled, tabled

from profiling_lab.analysis.collectives.nccl_text import telling_lines
from profiling_lab.exercises import answers, workspace
from profiling_lab.exercises.e15_multi_gpu_scaling import grade as scaling
from profiling_lab.exercises.e15_multi_gpu_scaling.samples import scaling_facts, scaling_times
from profiling_lab.exercises.e16_communication_overhead import grade as communication
from profiling_lab.exercises.e16_communication_overhead.samples import (
    CommunicationFacts,
    communication_facts,
    predicted_ms,
)
from profiling_lab.exercises.exercise import Exercise
from profiling_lab.measure import ResultsFile
from profiling_lab.measure.device import Machine
from profiling_lab.measure.scaling import strong_efficiency, weak_efficiency
from profiling_lab.rules import RULES
from profiling_lab.rules.run import run as checked
from profiling_lab.trace import Trace

LINKS = "links_h200.json"
GPU = "H200"

Row = dict[str, Any]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("raw", type=Path, help="the folder of record_in_turns.py --out")
    parser.add_argument("--out", type=Path, required=True, help="where the files go")
    parser.add_argument("--only", default="", help="slugs, with commas (default: both)")
    args = parser.parse_args()
    chosen = [part for part in PARTS if not args.only or part.ENTRY.slug in args.only.split(",")]
    if not chosen:
        parser.error(f"expected {' or '.join(part.ENTRY.slug for part in PARTS)}, got {args.only}")
    rows = [assembled(part, args.raw, args.out.resolve()) for part in chosen]
    for row in rows:
        print("\n".join(f"{name}: {value}" for name, value in row.items()), end="\n\n")
    return 0 if all(row.get("good") for row in rows) else 1


def assembled(part: Any, raw: Path, out: Path) -> Row:
    """One exercise. What fails must not take the other one with it."""
    exercise: Exercise = part.EXERCISE
    target = out / "exercises" / exercise.entry.package
    for name in (workspace.RECORDED, workspace.SOLUTIONS):
        (target / name).mkdir(parents=True, exist_ok=True)
    console: list[str] = []
    row: Row = {"exercise": exercise.label}
    try:
        PARTS[part](raw / exercise.entry.package, target, out, console, row)
    except Exception as error:
        traceback.print_exc()
        row |= {"failed": f"{type(error).__name__}: {error}", "good": False}
    (target / workspace.RECORDED / "console.txt").write_text("\n".join(console) + "\n")
    row["bytes"] = sum(path.stat().st_size for path in (target / workspace.RECORDED).iterdir())
    return row


def of_scaling(raw: Path, target: Path, out: Path, console: list[str], row: Row) -> None:
    exercise = scaling.EXERCISE
    for name, there, note in (
        ("scaling", scaling.RECORDED, ""),
        ("after", scaling.SOLUTION, "    # train.py is the solution's"),
    ):
        kept(raw, name, target / there)
        console.append(printed(exercise, scaling.BENCHMARK, target / there, note))
    before, after = scaling_facts(target / scaling.RECORDED), scaling_times(target / scaling.SOLUTION)
    recorded, is_recorded = target / workspace.RECORDED, bool(after.recordings)
    for facts in (before, after) if is_recorded else (before,):
        console.append(assembly.shown(recorded, "ranks", *(path.name for path in facts.recordings)))
    console.append(assembly.shown(recorded, "lines", "--limit", "5", before.recordings[0].name))
    row |= {
        "GPU": f"{before.most} x {before.gpu}",
        "strong efficiency": f"{before.strong_percent:.1f} %, repaired {after.strong_percent:.1f} %",
        "weak efficiency": f"{before.weak_percent:.1f} %, repaired {after.weak_percent:.1f} %",
        "Amdahl": f"{before.amdahl}; repaired {after.amdahl}",
        "Gustafson": f"{before.gustafson}; repaired {after.gustafson}",
        "ranks": f"rank {before.late_rank}, {before.late_line}, {before.cause}, {before.saved_ms:.3f} ms",
        "ranks on the solution": (after.late_rank or "nobody") if is_recorded else "not recorded",
        "check": [first(path) for path in before.recordings],
        "check on the solution": [first(path) for path in after.recordings],
        "difference": scaling.difference(before, after) if is_recorded else "not recorded",
    }
    for facts, name, provider in ((before, "scaling", "starter"), (after, "after", "solution")):
        results = results_file(raw, out, name)
        for kind, points, efficiency in (
            ("strong", facts.strong, strong_efficiency),
            ("weak", facts.weak, weak_efficiency),
        ):
            for point, frac in zip(points, efficiency(points).values(), strict=True):
                case: Row = {"exercise": scaling.ENTRY.slug, "scaling": kind, "gpus": point.gpus}
                results.add("scaling", case, provider, "step", round(point.median_ns), "ns")
                results.add("scaling", case, provider, "efficiency", round(frac, 5), "fraction")
    write_solutions(exercise, target, scaling.right_answers(before))
    row["graded"] = graded(exercise, target, {"fix.after": scaling.SOLUTION}, console)
    row["good"] = not row["difference"] and not row["graded"]


def of_communication(raw: Path, target: Path, out: Path, console: list[str], row: Row) -> None:
    exercise = communication.EXERCISE
    recorded = target / workspace.RECORDED
    shutil.copy(raw / "links.json", recorded / LINKS)
    bucket = f" --bucket-mb {communication.BUCKET_MIB} -o second.json"
    for name, there, more in (
        ("communication", communication.RECORDED, ""),
        ("second", communication.SECOND, bucket),
    ):
        kept(raw, name, target / there, links=LINKS)
        console.append(printed(exercise, communication.BENCHMARK, target / there, more))
    before, after = (communication_facts(target / n) for n in (communication.RECORDED, communication.SECOND))
    console.append(assembly.shown(recorded, "interconnect", LINKS))
    console.append(assembly.shown(recorded, "interconnect", "--by", "size", LINKS))
    for facts in (before, after):
        files = [path.name for path in facts.recordings]
        console.append(assembly.shown(recorded, "ranks", *files))
        console.append(assembly.shown(recorded, "collectives", "--by", "kind", "--links", LINKS, *files))
    predicted = predicted_ms(before, communication.BUCKET_MIB << 20, sms(before))
    exposed = 100 * after.exposed_ms / after.step_ms
    row |= {
        "GPU": f"{before.ranks} x {before.gpu}",
        "links": f"{before.fit.latency_ns / 1e3:.1f} us, {before.fit.bus_bytes_per_s / 1e9:.1f} GB/s, fit "
        f"{100 * before.fit.off_frac:.0f} % off, at most {100 * before.fit.most_off_frac:.0f} %",
        "step": f"{before.step_ms:.3f} ms, {before.exposed_ms:.3f} exposed, "
        f"{before.reached_percent:.1f} % of links",
        "messages": [size >> 20 for size in before.messages],
        "NCCL": f"{before.nccl.version}, {before.choice}",
        "second run": f"{after.step_ms:.3f} ms, {after.exposed_ms:.3f} exposed ({exposed:.1f} %)",
        "predicted": f"{predicted:.3f} ms, {100 * (predicted / after.step_ms - 1):+.1f} %",
        "as before": f"{100 * (before.step_ms / after.step_ms - 1):+.1f} %",
        "all hidden": f"{100 * ((before.step_ms - before.exposed_ms) / after.step_ms - 1):+.1f} %",
        "check": [first(path) for path in before.recordings],
        "check on the solution": [first(path) for path in after.recordings],
    }
    results = results_file(raw, out, "communication")
    case: Row = {"exercise": exercise.slug, "ranks": before.ranks}
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
    write_solutions(exercise, target, right)
    row["graded"] = graded(exercise, target, {"prediction.second": communication.SECOND}, console)
    named = all(each.partition(",")[0] in exercise.rules for each in row["check"])
    row["good"] = named and not row["graded"]


PARTS: dict[Any, Callable[[Path, Path, Path, list[str], Row], None]] = {
    scaling: of_scaling,
    communication: of_communication,
}


def kept(raw: Path, name: str, target: Path, **changes: str) -> None:
    """The JSON and the recordings that it names, reduced, under the names that the exercise ships."""
    data = described(raw, name)
    data.pop("git", None)
    files = []
    for rank, file in enumerate(data["recordings"]):
        files.append(f"{target.stem}.rank{rank}.sqlite.gz")
        assembly.packed(raw / file, target.with_name(files[-1]))
    target.write_text(json.dumps({**data, "recordings": files, **changes}, indent=1) + "\n")


def described(raw: Path, name: str) -> Row:
    """What the exercise's benchmark would have written: as it is, or put together from what there is."""
    whole = raw / f"{name}.json"
    if whole.is_file():
        found: Row = json.loads(whole.read_text())
        return found
    here = json.loads((raw / "machine.json").read_text())
    facts = {key: here[key] for key in ("gpu", "driver", "torch", "date")}
    files = sorted(path.name for path in raw.glob(f"{name}.rank*.sqlite"))
    if times := sorted(raw.glob(f"{name}[0-9].json")):
        runs = [run for path in times for run in json.loads(path.read_text())]
        return {**facts, "runs": runs, "recordings": files}
    texts = [path.read_text(errors="replace") for path in sorted(raw.glob(f"{name}.nccl.*"))]
    nccl = telling_lines("\n".join(texts))
    bucket_mb = communication.BUCKET_MIB if name == "second" else 0
    return {**facts, "bucket_mb": bucket_mb, "links": "links.json", "recordings": files, "nccl": nccl}


def printed(exercise: Exercise, program: str, path: Path, more: str) -> str:
    """What the exercise's program prints of such a file at its end."""
    data, show = json.loads(path.read_text()), assembly.module(exercise.folder / program).show
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        show(data.get("runs", data))
    return f"$ python {program}{more}\n{text.getvalue().rstrip()}\n"


def first(path: Path) -> str:
    """The first finding of `check`: its rule and place."""
    with Trace.open(path) as trace:
        found = checked(trace, RULES).findings
    return f"{found[0].rule}, {found[0].severity}, {found[0].place}" if found else "nothing"


def sms(facts: CommunicationFacts) -> int:
    with Trace.open(facts.recordings[0]) as trace:
        return max(gpu.multiprocessors for gpu in trace.gpus)  # word: quoted


def results_file(raw: Path, out: Path, name: str) -> ResultsFile:
    """Lines of the machine that measured, when it did."""
    machine, measured = json.loads((raw / "machine.json").read_text()), described(raw, name)
    machine |= {key: measured[key] for key in machine if key in measured}
    return ResultsFile(out / "results" / "scaling.jsonl", Machine(**machine))


def write_solutions(exercise: Exercise, target: Path, right: dict[str, object]) -> None:
    """answer.toml and the notes, with the figures of these recordings."""
    folder = exercise.folder / workspace.SOLUTIONS
    files = {
        answers.FILE: filled((folder / answers.FILE).read_text(), right),
        workspace.NOTES: tabled((folder / workspace.NOTES).read_text(), right, GPU),
    }
    for name, text in files.items():
        (target / workspace.SOLUTIONS / name).write_text(text)


def graded(exercise: Exercise, target: Path, more: dict[str, object], console: list[str]) -> list[str]:
    """What is wrong: right answers that are rejected, an empty answer file that passes."""
    said = assembly.graded(exercise, target, more)
    console += ["The worked answers, graded:", *said]
    return [line for line in said if ": passed: " not in line]


if __name__ == "__main__":
    sys.exit(main())
