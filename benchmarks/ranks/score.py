# SPDX-License-Identifier: Apache-2.0
"""Scores `profiling-lab ranks` on the golden cases, against what mending their delays won.

    python benchmarks/ranks/score.py OUT [--only NAME,NAME] [--format json] [-o results.jsonl]

OUT is a folder of run.py. A delay counts as found if the verdict names its rank, its line (none, where no
line is at fault) and its kind; of two, the one that costs more must come first. "Would save" counts as right
within a factor of 1.5 of what was measured. Where no rank is delayed the verdict must be one of those that
truth.toml allows; the same goes for a delay that was measured to cost nothing, because something else sets
the step. A delay that costs less than a tenth of the step is marked with * and not counted: what is
planted must be unmistakable. Collectives are counted with `profiling-lab collectives`.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from cases import AS_IT_IS, Case, Delay, cases

RIGHT_WITHIN = 1.5
LARGE_FRAC = 0.1
NOTHING_FRAC = 0.02
"""of the step: a delay that costs less holds nothing up, and naming no rank is right"""
ABOUT = 0.8
"""of the larger of two gains, from which on either may come first"""
_BETWEEN = re.compile(r"between (?P<first>.+):(?P<from>\d+) and (?P<last>.+):(?P<to>\d+)")


@dataclass(frozen=True)
class Scored:
    """One delay, or a job without one; None where the question does not apply."""

    case: str
    delay: str
    rank: bool | None
    line: bool | None
    cause: bool | None
    gain: bool | None
    verdict: bool | None
    """where no rank is delayed: it is an allowed one"""
    collectives: bool | None
    said: str
    predicted_ms: float | None
    measured_ms: float | None
    step_ms: float | None
    recorded_ms: float | None
    """the step in the recording, which may be longer"""

    @property
    def found(self) -> bool:
        return bool(self.rank and self.line and self.cause)

    @property
    def counts(self) -> bool:
        if self.measured_ms is None or not self.step_ms:
            return True
        return self.measured_ms >= LARGE_FRAC * self.step_ms


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, help="folder that run.py has filled")
    parser.add_argument("--only", default="", help="names of cases, with commas (default: all)")
    parser.add_argument("--format", choices=("table", "json"), default="table")
    parser.add_argument("-o", "--output", type=Path, help="append JSON lines here, too")
    args = parser.parse_args()
    only = args.only.split(",") if args.only else list(cases())
    recorded = args.out / "recorded"
    found = [case for name, case in cases().items() if name in only and (recorded / name).is_dir()]
    if not found:
        parser.error(f"{args.out} has no recording of a case: expected recorded/NAME from run.py")
    times = step_times(args.out / "times.jsonl")
    rows = [row for case in found for row in score(case, recorded / case.name, times.get(case.name, {}))]
    if args.output:
        _keep(rows, args.out / "times.jsonl", args.output)
    if args.format == "json":
        print(json.dumps([asdict(row) for row in rows], indent=1))
    else:
        _print(rows)
    return 0


def step_times(path: Path) -> dict[str, dict[str, float]]:
    """Milliseconds by case and way; the last run counts."""
    out: dict[str, dict[str, float]] = {}
    for text in path.read_text().splitlines() if path.is_file() else ():
        row = json.loads(text)
        out.setdefault(row["case"]["program"], {})[row["provider"]] = row["value"]
    return out


def score(case: Case, folder: Path, times: dict[str, float]) -> list[Scored]:
    """times: of this case. A row per delay; one for a job without."""
    answer = _ask("ranks", folder)
    collectives = _collectives(case, folder)
    if answer is None:
        return judge(case, None, times, None, collectives)
    return judge(case, answer["summary"], times, answer["trace"]["step_ns"] / 1e6, collectives)


def judge(
    case: Case,
    summary: dict[str, Any] | None,
    times: dict[str, float],
    recorded_ms: float | None = None,
    collectives: bool | None = None,
) -> list[Scored]:
    """summary: the verdict as `ranks --format json` gives it, None where it gave up."""
    step_ms = times.get(AS_IT_IS)

    def gain_of(name: str) -> float | None:
        mended = times.get(f"without {name}")
        return step_ms - mended if step_ms is not None and mended is not None else None

    gains = {delay.name: gain_of(delay.name) for delay in case.delays} or {"": gain_of("delay")}
    facts = {"collectives": collectives, "step_ms": step_ms, "recorded_ms": recorded_ms}
    if summary is None:
        wrong = False if case.delays else None
        right = None if case.delays else False
        return [
            Scored(case.name, name, wrong, wrong, wrong, wrong, right, said="gave up", predicted_ms=None,
                   measured_ms=gain, **facts)
            for name, gain in gains.items()
        ]  # fmt: skip
    if not case.delays:
        measured = gains[""]
        predicted = summary["cost_ns"] / 1e6
        right = _within(predicted, measured) if summary["kind"] == "transfer" else None
        said = f"{summary['kind']} {_blame_text(summary['blame'])}".strip()
        return [Scored(case.name, "", None, None, None, right, summary["kind"] in case.kinds, said=said,
                       predicted_ms=predicted, measured_ms=measured, **facts)]  # fmt: skip
    blames = [each for each in (summary["blame"], *summary["also"]) if each]
    return [_of_delay(case, delay, gains, blames, summary, facts) for delay in case.delays]


def _of_delay(
    case: Case,
    delay: Delay,
    gains: dict[str, float | None],
    blames: Sequence[dict[str, Any]],
    summary: dict[str, Any],
    facts: dict[str, Any],
) -> Scored:
    largest = max((gain for gain in gains.values() if gain is not None), default=0.0)
    top = {each.rank for each in case.delays if (gain := gains[each.name]) is None or gain >= ABOUT * largest}
    mine = gains[delay.name]
    blame = next((each for each in blames if each["rank"] == delay.rank), None)
    nothing = mine is not None and facts["step_ms"] and mine < NOTHING_FRAC * facts["step_ms"]
    if not blames and nothing and summary["rank"] is None:
        return Scored(case.name, delay.name, None, None, None, None, True, said=summary["kind"],
                      predicted_ms=None, measured_ms=mine, **facts)  # fmt: skip
    if blame is None:
        named = not blames and summary["rank"] == delay.rank
        told = _blame_text(blames[0]) if blames else summary["kind"] + f" rank {summary['rank']}" * named
        return Scored(case.name, delay.name, named, False, False, False, None, said=told, predicted_ms=None,
                      measured_ms=mine, **facts)  # fmt: skip
    predicted = blame["gain_ns"] / 1e6
    return Scored(
        case=case.name,
        delay=delay.name,
        rank=blames[0]["rank"] in top or delay.rank not in top,
        line=_is_line(blame["line"], case, delay),
        cause=blame["cause"] in delay.causes,
        gain=_within(predicted, mine),
        verdict=None,
        said="; ".join(_blame_text(each) for each in blames),
        predicted_ms=predicted,
        measured_ms=mine,
        **facts,
    )


def _is_line(said: str, case: Case, delay: Delay) -> bool:
    """Between two lines counts, where the planted one is there."""
    if not delay.line:
        return not said
    planted = case.lines(delay.name)
    if between := _BETWEEN.fullmatch(said):
        stems = {Path(between[side]).stem for side in ("first", "last")}
        return stems == {case.path.stem} and any(
            int(between["from"]) <= line <= int(between["to"]) for line in planted
        )
    file, _, number = said.rpartition(":")
    return Path(file).stem == case.path.stem and number.isdecimal() and int(number) in planted


def _within(predicted: float, measured: float | None) -> bool | None:
    if measured is None:
        return None
    return measured > 0 and predicted / RIGHT_WITHIN <= measured <= predicted * RIGHT_WITHIN


def _blame_text(blame: dict[str, Any] | None) -> str:
    if not blame:
        return ""
    places = re.sub(r"\S*/(?=[^/\s]+:\d)", "", blame["line"]) or blame["name"][:40] or "no line"
    return f"rank {blame['rank']} {blame['cause']} {places} {blame['doing']}".strip()


def _collectives(case: Case, folder: Path) -> bool | None:
    """Whether each kind that is known was made as often, with messages of that size."""
    if not case.collectives:
        return None
    answer = _ask("collectives", folder, "--by", "collective", "--limit", "0")
    steps = _steps(folder)
    if answer is None or steps is None:
        return False
    rows = answer["rows"]
    ranks = answer["trace"]["world_size"] or 0
    for wanted in case.collectives:
        alike = [
            row for row in rows
            if row["kind"] == wanted.kind and wanted.bytes in (None, row["size_median_bytes"])
        ]  # fmt: skip
        calls = sum(row["count"] for row in alike)
        ends = 2 * (ranks - 1) if wanted.neighbours else ranks
        expected = wanted.per_step * steps * ends
        if calls < expected or (wanted.exactly and calls != expected):
            told = f"{calls} {wanted.kind} of {wanted.bytes or 'any'} bytes, expected {expected}"
            print(f"{case.name}: {told}", file=sys.stderr)
            return False
    return True


def _steps(folder: Path) -> int | None:
    """That the program made while it was recorded."""
    path = folder / "steps.txt"
    return int(path.read_text()) if path.is_file() else None


def _ask(command: str, folder: Path, *options: str) -> dict[str, Any] | None:
    words = [sys.executable, "-m", "profiling_lab", command, str(folder.resolve()), *options]
    done = subprocess.run([*words, "--format", "json"], capture_output=True, text=True, check=False, cwd="/")
    if done.returncode:
        print(
            f"{folder.name}: {command} ended with {done.returncode}: {done.stderr.strip()}", file=sys.stderr
        )
        return None
    answer = json.loads(done.stdout)
    data: dict[str, Any] = answer["data"]
    return data | {"trace": data.get("trace", answer.get("trace"))}


def machine_of(times: Path) -> Any:
    """The machine of the recordings, the commit of today."""
    from profiling_lab.measure.device import Machine, machine

    recorded = json.loads(times.read_text().splitlines()[0])
    known = {field.name: recorded[field.name] for field in fields(Machine)}
    return Machine(**known | {"git": machine("cpu").git})


def _keep(rows: Sequence[Scored], times: Path, output: Path) -> None:
    """One line per answer: 1 is yes."""
    from profiling_lab.measure.results import ResultsFile

    results = ResultsFile(output, machine_of(times))
    ranks = json.loads(times.read_text().splitlines()[0])["case"]["ranks"]
    for row in rows:
        case = {"program": row.case, "delay": row.delay, "ranks": ranks, "counts": row.counts,
                "said": row.said}  # fmt: skip
        for metric in ("rank", "line", "cause", "gain", "verdict", "collectives"):
            if (value := getattr(row, metric)) is not None:
                results.add("ranks", case, "profiling-lab ranks", metric, float(value), "bool")
        for metric in ("predicted_ms", "measured_ms", "step_ms", "recorded_ms"):
            if (value := getattr(row, metric)) is not None:
                results.add("ranks", case, "profiling-lab ranks", metric.removesuffix("_ms"), value, "ms")


def _print(rows: Sequence[Scored]) -> None:
    print(
        f"{'case':30} {'rank':4} {'line':4} {'kind':4} {'gain':4} {'says':>9} {'true':>9} "
        f"{'step':>8} {'recorded':>8}  said"
    )
    for row in rows:
        name = (
            row.case + (f" {row.delay}" if row.delay not in ("", "delay") else "") + " *" * (not row.counts)
        )
        marks = (row.rank, row.line, row.cause) if row.verdict is None else (row.verdict, None, None)
        numbers = (row.predicted_ms, row.measured_ms, row.step_ms, row.recorded_ms)
        texts = [f"{_number(value):>{width}}" for value, width in zip(numbers, (9, 9, 8, 8), strict=True)]
        counted = {None: "", True: "; collectives counted right", False: "; COLLECTIVES WRONG"}
        print(
            f"{name:30} {' '.join(f'{_mark(mark):4}' for mark in (*marks, row.gain))} "
            f"{' '.join(texts)}  {row.said}{counted[row.collectives]}"
        )
    planted = [row for row in rows if row.verdict is None and row.counts]
    others = [row for row in rows if row.verdict is not None]
    gains = [row.gain for row in rows if row.gain is not None and row.counts]
    right = sum(bool(row.verdict) for row in others)
    print(
        f"rank, line and kind in {sum(row.found for row in planted)} of {len(planted)} delays; "
        f"an allowed verdict in {right} of {len(others)} jobs without one; "
        f"gain right in {sum(gains)} of {len(gains)}"
    )


def _mark(value: bool | None) -> str:
    return "" if value is None else "yes" if value else "NO"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


if __name__ == "__main__":
    raise SystemExit(main())
