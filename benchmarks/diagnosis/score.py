# SPDX-License-Identifier: Apache-2.0
"""Scores `profiling-lab check` on recordings of the diagnosis benchmark.

    python benchmarks/diagnosis/score.py RECORDED [--half open|held] [--format json] [-o results.jsonl]

RECORDED is a folder with NAME.sqlite and times.jsonl, as run.py writes them. A program counts as diagnosed if
the first finding names one of its planted causes (cause) on one of its planted lines (line). Where
times.jsonl has its step as it is and mended, the predicted gain counts as right within a factor of 1.5. One
that is not said, because the finding knows only how much could be saved at most, counts as not right.
Where `check` takes a part of the program's step for a step, such as a token of an answer, its gain is that of
all of them. A healthy program should have no finding of high severity among its steady steps. A program
whose mending saves less than a quarter of its step is marked with * and not counted: its defect may not cost
most.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HERE = Path(__file__).parent
RIGHT_WITHIN = 1.5
LARGE_FRAC = 0.25
STEPS = re.compile(r"(?m)^STEPS, WARM = \((\d+)")
"""how many a program makes on a GPU"""


@dataclass(frozen=True)
class Scored:
    """One program; None where the question does not apply."""

    program: str
    half: str
    cause: bool | None
    line: bool | None
    gain: bool | None
    false_alarm: bool | None
    said: str
    predicted_ms: float | None
    measured_ms: float | None
    saves_frac: float | None
    """of the step, by mending"""

    @property
    def counts(self) -> bool:
        return self.saves_frac is None or self.saves_frac >= LARGE_FRAC


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("recorded", type=Path, help="folder with the recordings and times.jsonl")
    parser.add_argument("--half", choices=("open", "held"), help="one half of the programs (default: both)")
    parser.add_argument("--format", choices=("table", "json"), default="table")
    parser.add_argument("-o", "--output", type=Path, help="append JSON lines here, too")
    args = parser.parse_args()
    truth = tomllib.loads((HERE / "truth.toml").read_text())
    times = step_times(args.recorded / "times.jsonl")
    names = [name for name in truth if args.half in (None, truth[name]["half"])]
    found = [args.recorded / f"{name}.sqlite" for name in names]
    if not any(path.is_file() for path in found):
        parser.error(f"{args.recorded} holds no recording of the benchmark: expected NAME.sqlite from run.py")
    rows = [_score(path, truth[path.stem], times.get(path.stem)) for path in found if path.is_file()]
    if args.output:
        _keep(rows, args.recorded / "times.jsonl", args.output)
    if args.format == "json":
        print(json.dumps([asdict(row) for row in rows], indent=1))
    else:
        _print(rows)
    return 0


def _score(recording: Path, truth: dict[str, Any], times: tuple[float, float] | None) -> Scored:
    findings = _check(recording)
    first = findings[0] if findings else None
    name, measured = recording.stem, times[0] - times[1] if times else None
    said = (
        f"{first['rule']} {first.get('cause') or ''} {Path(first['file'] or '?').name}:{first['line']}"
        if first
        else "-"
    )
    predicted = None
    if first and first.get("gain_per_step_ns") is not None:
        predicted = first["gain_per_step_ns"] / 1e6 * _steps_in_one(recording)
    if not truth["causes"]:
        alarm = any(finding["severity"] == "high" for finding in findings)
        return Scored(name, truth["half"], None, None, None, alarm, said, predicted, None, None)
    source = (HERE / "programs" / f"{name}.py").read_text().splitlines()
    lines = {number for number, text in enumerate(source, 1) if text.strip() in truth["lines"]}
    cause = first is not None and bool({first["rule"], first.get("cause")} & set(truth["causes"]))
    line = first is not None and Path(first["file"] or "").stem == name and first["line"] in lines
    gain = None
    if measured is not None and measured > 0:
        gain = predicted is not None and 1 / RIGHT_WITHIN <= predicted / measured <= RIGHT_WITHIN
    saves = measured / times[0] if measured is not None and times else None
    return Scored(name, truth["half"], cause, line, gain, None, said, predicted, measured, saves)


def _steps_in_one(recording: Path) -> int:
    """How many steps of `check` are one of the program."""
    from profiling_lab.trace import Trace
    from profiling_lab.trace.step_windows import step_windows

    match = STEPS.search((HERE / "programs" / f"{recording.stem}.py").read_text())
    with Trace.open(recording) as trace:
        return max(1, round(len(step_windows(trace)) / int(match[1]))) if match else 1


def _check(recording: Path) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "profiling_lab", "check", str(recording.resolve()), "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")
    if done.returncode not in (0, 1):
        print(f"{recording.name}: check ended with {done.returncode}: {done.stderr.strip()}", file=sys.stderr)
        return []
    return json.loads(done.stdout)["data"]["rows"]


def step_times(path: Path) -> dict[str, tuple[float, float]]:
    """Milliseconds as it is and mended, by program; the last run counts."""
    if not path.is_file():
        return {}
    ms: dict[str, dict[str, float]] = {}
    for text in path.read_text().splitlines():
        row = json.loads(text)
        ms.setdefault(row["case"]["program"], {})[row["provider"]] = row["value"]
    return {name: (each["as it is"], each["mended"]) for name, each in ms.items() if len(each) == 2}


def _keep(rows: list[Scored], times: Path, output: Path) -> None:
    """One line per answer: 1 is yes. The machine and the date are those of the recordings."""
    from profiling_lab.measure.results import ResultsFile

    results = ResultsFile(output, facts(times))
    for row in rows:
        case = {"program": row.program, "half": row.half, "counts": row.counts}
        for metric in ("cause", "line", "gain", "false_alarm"):
            if (value := getattr(row, metric)) is not None:
                results.add("diagnosis", case, "profiling-lab check", metric, float(value), "bool")
        if row.cause is not None and row.predicted_ms is not None:
            case = case | {"first": row.said.split()[0]}
            results.add("diagnosis", case, "profiling-lab check", "predicted", row.predicted_ms, "ms")


def facts(times: Path) -> Any:
    """The machine of the recordings, the commit of today."""
    from profiling_lab.measure.device import Machine, machine

    recorded = json.loads(times.read_text().splitlines()[0])
    known = {field.name: recorded[field.name] for field in fields(Machine)}
    return Machine(**known | {"git": machine("cpu").git})


def _print(rows: list[Scored]) -> None:
    print(
        f"{'program':24} {'half':5} {'cause':6} {'line':5} {'gain':5} {'predicted':>10} {'measured':>9}  "
        "first finding"
    )
    for row in sorted(rows, key=lambda row: (row.half, row.false_alarm is not None, row.program)):
        marks = [_mark(row.cause), _mark(row.line), _mark(row.gain)]
        if row.false_alarm is not None:
            marks = ["alarm" if row.false_alarm else "quiet", "", ""]
        print(
            f"{row.program + ' *' * (not row.counts):24} {row.half:5} {marks[0]:6} {marks[1]:5} {marks[2]:5} "
            f"{_ms(row.predicted_ms):>10} {_ms(row.measured_ms):>9}  {row.said}"
        )
    for half in sorted({row.half for row in rows}):
        mine = [row for row in rows if row.half == half]
        planted = [r for r in mine if r.cause is not None and r.counts]
        healthy = [r for r in mine if r.cause is None]
        both = sum(bool(row.cause and row.line) for row in planted)
        gains = [row.gain for row in planted if row.gain is not None]
        unsaid = sum(row.gain is not None and row.predicted_ms is None for row in planted)
        print(
            f"{half}: cause and line first in {both} of {len(planted)}, cause alone in "
            f"{sum(bool(row.cause) for row in planted)}; gain right in {sum(gains)} of {len(gains)}, "
            f"of which {unsaid} do not say it; "
            f"false alarms in {sum(bool(row.false_alarm) for row in healthy)} of {len(healthy)} healthy ones"
        )


def _mark(value: bool | None) -> str:
    return "" if value is None else "yes" if value else "no"


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} ms"


if __name__ == "__main__":
    raise SystemExit(main())
