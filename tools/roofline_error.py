# SPDX-License-Identifier: Apache-2.0
"""Make the errors of `roofline` from the results of tools/record_roofline.py.

python tools/roofline_error.py            # writes model_error.json and docs/roofline/accuracy.md
python tools/roofline_error.py --check    # exit code 1 if they are not what the results say
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from profiling_lab.work.kinds import BACKWARD, KINDS

REPO = Path(__file__).resolve().parents[1]
RESULTS = REPO / "benchmarks" / "results" / "roofline_accuracy.jsonl"
ERRORS = REPO / "profiling_lab" / "analysis" / "roofline" / "model_error.json"
LINES = RESULTS.with_name("roofline_lines.jsonl")
PAGE = REPO / "docs" / "roofline" / "accuracy.md"
_BLOCK = re.compile(r"(<!-- roofline error -->\n).*?(<!-- end of roofline error -->)", re.DOTALL)
_LINES = re.compile(r"(<!-- roofline lines -->\n).*?(<!-- end of roofline lines -->)", re.DOTALL)
MODEL = "model"

Values = dict[str, float]


def pairs(lines: Iterable[dict[str, Any]]) -> dict[tuple[str, ...], dict[str, Values]]:
    """By case the counted and the measured values; of a case that was measured twice the later ones."""
    found: dict[tuple[str, ...], dict[str, Values]] = {}
    for line in lines:
        case = tuple(line["case"][name] for name in ("kind", "op", "shape", "dtype"))
        found.setdefault(case, {}).setdefault(line["provider"], {})[line["metric"]] = line["value"]
    return {case: both for case, both in found.items() if {"modelled"} < set(both)}


def measured(case: dict[str, Values]) -> Values:
    """Sampled counters for the bytes, ncu for what they do not have."""
    return {**case.get("ncu", {}), **case.get("sampled", {})}


def error(counted: float, measured: float) -> float | None:
    """None: there is nothing to compare with."""
    return abs(counted - measured) / measured if measured else None


def errors_of(case: dict[str, Values]) -> tuple[float | None, float | None]:
    """Of the bytes, and of the FLOPs where they are counted."""
    counted, found = case["modelled"], measured(case)
    flops = error(counted["flops"], found.get("flops", 0.0)) if "flops" in counted else None
    if "read_bytes" not in found:
        return None, flops
    return error(*moved(case)), flops


def moved(case: dict[str, Values]) -> list[float]:
    """Bytes as counted and as measured."""
    return [values["read_bytes"] + values["written_bytes"] for values in (case["modelled"], measured(case))]


def by_kind(found: dict[tuple[str, ...], dict[str, Values]]) -> dict[str, list[Any]]:
    """[pairs, median error of bytes, of FLOPs or None, largest of bytes], the kinds in order."""
    kinds: dict[str, list[tuple[float, float | None]]] = {}
    for (kind, op, *_), case in found.items():
        kind += BACKWARD if op.endswith(BACKWARD) and kind + BACKWARD in KINDS else ""
        of_bytes, of_flops = errors_of(case)
        if of_bytes is not None:
            kinds.setdefault(kind, []).append((of_bytes, of_flops))
    return {kind: summary(values) for kind, values in sorted(kinds.items())}


def summary(values: list[tuple[float, float | None]]) -> list[Any]:
    flops = [of_flops for _, of_flops in values if of_flops is not None]
    of_bytes = [value for value, _ in values]
    return [
        len(values),
        round(statistics.median(of_bytes), 4),
        round(statistics.median(flops), 4) if flops else None,
        round(max(of_bytes), 4),
    ]


def table(kinds: dict[str, list[Any]], everything: list[Any], facts: str) -> str:
    rows = [
        "| kind | pairs | bytes, median error | largest | FLOPs, median error |",
        "|---|---:|---:|---:|---:|",
    ]
    for kind, (count, of_bytes, of_flops, most) in [*kinds.items(), ("**all operators**", everything)]:
        flops = "-" if of_flops is None else f"{100 * of_flops:.1f} %"
        rows.append(f"| {kind} | {count} | {100 * of_bytes:.1f} % | {100 * most:.0f} % | {flops} |")
    loose = [kind for kind, (_, of_bytes, of_flops, _) in kinds.items() if max(of_bytes, of_flops or 0) > 0.2]
    named = f"\nOver 20 %: {', '.join(loose)}.\n" if loose else "\nNo kind is over 20 %.\n"
    return "\n".join([facts, "", *rows]) + "\n" + named


def made(lines: list[dict[str, Any]], page: str) -> tuple[str, str]:
    """model_error.json and the page."""
    found = pairs(lines)
    operators = {case: both for case, both in found.items() if case[0] != MODEL}
    kinds = by_kind(operators)
    if not kinds:
        return json.dumps({"kinds": {}}) + "\n", _BLOCK.sub(r"\1Not measured yet.\n\2", page)
    facts = _facts(lines, RESULTS)
    all_errors = [errors_of(case) for case in operators.values()]
    everything = summary([(b, f) for b, f in all_errors if b is not None])
    text = table(kinds, everything, facts)
    models = {case: both for case, both in found.items() if case[0] == MODEL}
    if models:
        text += "\n" + of_models(models)
    data = {"kinds": {kind: values[:3] for kind, values in kinds.items()}}
    return json.dumps(data, indent=1) + "\n", _BLOCK.sub(lambda m: m[1] + text + m[2], page)


def of_models(models: dict[tuple[str, ...], dict[str, Values]]) -> str:
    rows = ["| training step | bytes, counted / measured | FLOPs, counted / measured |", "|---|---:|---:|"]
    for (_, name, layers, _), case in sorted(models.items()):
        counted, found = case["modelled"], measured(case)
        mine, theirs = moved(case)
        flops = f"{counted['flops'] / found['flops']:.3f}" if found.get("flops") else "-"
        rows.append(f"| {name}, {layers} | {mine / theirs:.3f} | {flops} |")
    return "Steps of whole models (`benchmarks/roofline_models.py`):\n\n" + "\n".join(rows) + "\n"


def of_lines(lines: list[dict[str, Any]]) -> str:
    """Bytes by line: as counted, sampled, and summed over the line's kernels by ncu."""
    found: dict[tuple[str, int, str], Values] = {}
    for line in lines:
        case = line["case"]
        metric = f"{line['provider']} {line['metric']}"
        found.setdefault((case["model"], case["line"], case["phase"]), {})[metric] = line["value"]
    rows = [
        "| line | phase | ms | counted | sampled | ncu, warm | ncu, cold | FLOPs, counted / ncu |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    held = told = 0
    off: list[float] = []
    for (model, line, phase), v in found.items():
        amount, half = v.get("sampled bytes"), v.get("sampled, half of the interval bytes")
        sampled = "-" if amount is None or half is None else f"{amount / 1e6:,.0f} ± {half / 1e6:,.0f}"
        warm = v.get("ncu, warm bytes")
        if amount is not None and half is not None and warm is not None:
            told += 1
            held += abs(amount - warm) <= half
            off.append(abs(amount / warm - 1))
        both = [v.get(f"{who} flops") for who in ("modelled", "ncu")]
        flops = f"{both[0] / both[1]:.3f}" if both[0] and both[1] else "-"
        of = (v["modelled bytes"], warm, v["ncu bytes"])
        bytes_of = ["-" if value is None else f"{value / 1e6:,.0f}" for value in of]
        ms = v["recorded time"] / 1e6
        rows.append(
            f"| {model}:{line} | {phase} | {ms:.2f} | {bytes_of[0]} | {sampled} | {bytes_of[1]} | "
            f"{bytes_of[2]} | {flops} |"
        )
    facts = f"ncu's warm sum lies within the error of the samples (99 %) in {held} of {told} lines"
    if off:
        facts += f"; they differ by {100 * statistics.median(off):.1f} % in the median and "
        facts += f"{100 * max(off):.1f} % at most"
    return f"{_facts(lines, LINES)}\n\n" + "\n".join(rows) + f"\n\n{facts}.\n"


def _facts(lines: list[dict[str, Any]], file: Path) -> str:
    last = lines[-1]
    return (
        f"{last['gpu']}, driver {last['driver']}, torch {last['torch']}, {last['date'][:10]}, "
        f"at {last['git']} ([lines](../../benchmarks/results/{file.name})):"
    )


def main() -> int:
    lines = [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.is_file() else []
    data, page = made(lines, PAGE.read_text())
    by_line = [json.loads(line) for line in LINES.read_text().splitlines()] if LINES.is_file() else []
    text = of_lines(by_line) if by_line else "Not measured yet.\n"
    page = _LINES.sub(lambda m: m[1] + text + m[2], page)
    if "--check" in sys.argv[1:]:
        return int(data != ERRORS.read_text() or page != PAGE.read_text())
    ERRORS.write_text(data)
    PAGE.write_text(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
