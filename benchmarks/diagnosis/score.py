# SPDX-License-Identifier: Apache-2.0
"""Scores `profiling-lab check` on recordings of the diagnosis benchmark.

    python benchmarks/diagnosis/score.py RECORDED [--half open|held] [--format json]

RECORDED is a folder with NAME.sqlite and times.jsonl, as run.py writes them. A program counts as diagnosed if
the first finding names one of its planted causes (cause) on one of its planted lines (line). Where
times.jsonl has its step as it is and mended, the predicted gain counts as right within a factor of 1.5.
A healthy program should have no finding of high severity among its steady steps.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HERE = Path(__file__).parent
RIGHT_WITHIN = 1.5


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


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("recorded", type=Path, help="folder with the recordings and times.jsonl")
    parser.add_argument("--half", choices=("open", "held"), help="one half of the programs (default: both)")
    parser.add_argument("--format", choices=("table", "json"), default="table")
    args = parser.parse_args()
    truth = tomllib.loads((HERE / "truth.toml").read_text())
    times = _step_times(args.recorded / "times.jsonl")
    names = [name for name in truth if args.half in (None, truth[name]["half"])]
    found = [args.recorded / f"{name}.sqlite" for name in names]
    if not any(path.is_file() for path in found):
        parser.error(f"{args.recorded} holds no recording of the benchmark: expected NAME.sqlite from run.py")
    rows = [_score(path, truth[path.stem], times.get(path.stem)) for path in found if path.is_file()]
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
    predicted = (
        first["gain_per_step_ns"] / 1e6 if first and first.get("gain_per_step_ns") is not None else None
    )
    if not truth["causes"]:
        alarm = any(finding["severity"] == "high" for finding in findings)
        return Scored(name, truth["half"], None, None, None, alarm, said, predicted, None)
    source = (HERE / "programs" / f"{name}.py").read_text().splitlines()
    lines = {number for number, text in enumerate(source, 1) if text.strip() in truth["lines"]}
    cause = first is not None and bool({first["rule"], first.get("cause")} & set(truth["causes"]))
    line = first is not None and Path(first["file"] or "").stem == name and first["line"] in lines
    gain = None
    if predicted is not None and measured is not None and measured > 0:
        gain = 1 / RIGHT_WITHIN <= predicted / measured <= RIGHT_WITHIN
    return Scored(name, truth["half"], cause, line, gain, None, said, predicted, measured)


def _check(recording: Path) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "profiling_lab", "check", str(recording.resolve()), "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")
    if done.returncode not in (0, 1):
        print(f"{recording.name}: check ended with {done.returncode}: {done.stderr.strip()}", file=sys.stderr)
        return []
    return json.loads(done.stdout)["data"]["rows"]


def _step_times(path: Path) -> dict[str, tuple[float, float]]:
    """Milliseconds as it is and mended, by program; the last run counts."""
    if not path.is_file():
        return {}
    ms: dict[str, dict[str, float]] = {}
    for text in path.read_text().splitlines():
        row = json.loads(text)
        ms.setdefault(row["case"]["program"], {})[row["provider"]] = row["value"]
    return {name: (each["as it is"], each["mended"]) for name, each in ms.items() if len(each) == 2}


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
            f"{row.program:24} {row.half:5} {marks[0]:6} {marks[1]:5} {marks[2]:5} "
            f"{_ms(row.predicted_ms):>10} {_ms(row.measured_ms):>9}  {row.said}"
        )
    for half in sorted({row.half for row in rows}):
        mine = [row for row in rows if row.half == half]
        planted, healthy = [r for r in mine if r.cause is not None], [r for r in mine if r.cause is None]
        both = sum(bool(row.cause and row.line) for row in planted)
        gains = [row.gain for row in planted if row.gain is not None]
        print(
            f"{half}: cause and line first in {both} of {len(planted)}, cause alone in "
            f"{sum(bool(row.cause) for row in planted)}; gain right in {sum(gains)} of {len(gains)}; "
            f"false alarms in {sum(bool(row.false_alarm) for row in healthy)} of {len(healthy)} healthy ones"
        )


def _mark(value: bool | None) -> str:
    return "" if value is None else "yes" if value else "no"


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} ms"


if __name__ == "__main__":
    raise SystemExit(main())
