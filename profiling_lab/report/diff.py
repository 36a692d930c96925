# SPDX-License-Identifier: Apache-2.0
"""What a change did: the verdict, the limits, and the table of what each line took before and after."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from profiling_lab.report import numbers
from profiling_lab.report.coverage_text import coverage_data, coverage_header
from profiling_lab.report.lines import shown_path
from profiling_lab.report.table import Column, Report, Table, Unit, Value
from profiling_lab.trace.diff import DiffResult, DiffRow, PartChange, StepTimes
from profiling_lab.trace.diff_measure import Capture
from profiling_lab.trace.diff_noise import MIN_STEPS, Interval
from profiling_lab.trace.diff_verdict import Judged

COLUMNS = (
    Column("key", "median"),
    Column("phase", "phase"),
    Column("before_ns", "before", Unit.NS, "step"),
    Column("after_ns", "after", Unit.NS, "step"),
    Column("change_ns", "change", Unit.NS, "step"),
    Column("interval", "95 % interval"),
    Column("before_frac", "of it before", Unit.FRAC),
    Column("after_frac", "after", Unit.FRAC),
    Column("state", ""),
)
WARNING_FRAC = 0.005
"""of the step: a line that grew by less is worth no warning, among many rows chance alone lets some grow"""

_SPECIAL = {
    "idle": "GPU idle",
    "twice": "side by side, counted once",
    "rest": "left over: medians of parts do not add up",
}
_STATES = {"same": "within the noise", "small": "", "equal": "", "undecided": ""}
_CHECKS = {
    "gpu": "GPU",
    "driver": "driver",
    "method": "how it was recorded",
    "steps": "steps",
    "workload": "workload",
    "overhead": "cost of recording",
}
_OUTCOMES = {"pass": "passed", "fail": "FAILED", "undecided": "UNDECIDED"}


def diff_report(result: DiffResult, limit: int | None = None, parts: int = 2) -> Report:
    """`limit`: at most so many rows, the others summed in one; `parts`: kernels or causes under each."""
    shown = result.rows[:limit]
    if len(result.rows) - len(shown) < 3:  # what is left would take as many lines as its sum
        shown = result.rows
    others = result.rows[len(shown) :]
    rows = [_cells(row, result) for row in shown]
    details = [_details(row, parts) for row in shown]
    if others:
        times = [sum(row.before_ns for row in others), sum(row.after_ns for row in others)]
        name = f"{numbers.counted(len(others), 'other row')}"
        rows.append(_line(name, "", times[0], times[1], "", result, ""))
        details.append(())
    devices = max(capture.devices for capture in (*result.captures_before, *result.captures_after))
    total = f"the median {_unit(result)}" + (f" on {devices} devices" if devices > 1 else "")
    whole = (result.before.whole_ns, result.after.whole_ns)
    rows.append(_line(total, "", *whole, interval_text(result.interval) if devices == 1 else "", result, ""))
    details.append(())
    return Report(
        command="diff",
        trace={
            "before": [str(capture.trace.path) for capture in result.captures_before],
            "after": [str(capture.trace.path) for capture in result.captures_after],
        },
        header=_header(result),
        table=Table(
            COLUMNS,
            tuple(rows),
            len(result.rows),
            tuple(details),
            tuple(row_data(row, result) for row in shown),
        ),
        coverage={
            side: [coverage_data(capture.coverage) for capture in captures]
            for side, captures in (("before", result.captures_before), ("after", result.captures_after))
        },
        summary=summary(result),
    )


def verdict(result: DiffResult) -> str:
    """One sentence. It claims nothing that the noise or the recordings do not allow."""
    if not result.comparable:
        differs = "; ".join(
            f"{_CHECKS[check.name]}: {check.before or 'unknown'} before, {check.after or 'unknown'} after"
            for check in result.checks
            if check.refuses
        )
        return f"NOT COMPARABLE: {differs}"
    unit = _unit(result)
    times = f"{numbers.time(result.before.median_ns)} -> {numbers.time(result.after.median_ns)} per {unit}"
    change = f"{_signed(result.change_ns)} ({_percent(result.change_ns, result.before.median_ns)})"
    found = result.interval
    if result.state == "undecided":
        count = min(result.before.count, result.after.count)
        return (
            f"NO VERDICT: {times}, {change}, but {numbers.counted(count, unit)} on a side cannot "
            f"tell the noise; it takes {MIN_STEPS} steps, from one recording or several"
        )
    if result.state == "same":
        if result.change_ns == 0 and found == Interval(0, 0):
            return f"NO CHANGE: {times}"
        return f"NO DIFFERENCE beyond the noise: {times}, {change}, 95 % interval {interval_text(found)}"
    return f"{result.state.upper()}: {times}, {change}, 95 % interval {interval_text(found)}"


def _unit(result: DiffResult) -> str:
    """What was timed: without steps it is whole recordings."""
    return "step" if result.captures_before[0].has_steps else "recording"


def _header(result: DiffResult) -> tuple[str, ...]:
    lines = [verdict(result), *_step_lines(result)]
    if result.comparable:
        lines += [_limit_line("gate", result.gate)] if result.gate else []
        lines += [_limit_line("budget", budget) for budget in result.budgets]
    for check in result.checks:
        if check.state == "allowed":
            lines.append(
                f"  note: {_CHECKS[check.name]}: {check.before} before, {check.after} after; allowed"
            )
    if unknown := [_CHECKS[check.name] for check in result.checks if check.state == "unknown"]:
        lines.append(f"  note: not told by the files, so not compared: {', '.join(unknown)}")
    for side, captures in (("before", result.captures_before), ("after", result.captures_after)):
        for capture in captures:
            header = coverage_header(capture.trace, capture.coverage)
            lines += [f"{side}: {header[0]}", *(f"  {line.strip()}" for line in header[1:])]
    return tuple(lines)


def _step_lines(result: DiffResult) -> list[str]:
    before, after = result.before, result.after
    mean = f"mean {numbers.time(before.mean_ns)} -> {numbers.time(after.mean_ns)}"
    how = " and ".join(
        dict.fromkeys(c.windows.how for c in (*result.captures_before, *result.captures_after))
    )
    lines = [f"  median of {before.count} and {after.count} {_unit(result)}s ({how}); {mean}"]
    if result.state == "faster" and after.slowest_ns > before.slowest_ns:
        slowest = numbers.time(after.slowest_ns)
        lines.append(f"  note: yet the slowest step after, {slowest}, is slower than every step before")
    if result.state == "slower" and after.fastest_ns < before.fastest_ns:
        fastest = numbers.time(after.fastest_ns)
        lines.append(f"  note: yet the fastest step after, {fastest}, is faster than every step before")
    return lines


def _limit_line(what: str, judged: Judged) -> str:
    is_change = what == "gate"
    value = _signed(judged.value_ns) if is_change else numbers.time(judged.value_ns)
    limit = f" ({numbers.time(judged.limit_ns)})" if judged.text.endswith("%") else ""
    found = f", 95 % interval {interval_text(judged.interval, is_change)}" if judged.interval else ""
    why = ""
    if judged.outcome == "undecided":
        why = (
            ": the limit lies inside of the noise, record more steps"
            if judged.interval
            else ": too few steps"
        )
    return f"{what} {judged.text}{limit}: {value} per step{found}: {_OUTCOMES[judged.outcome]}{why}"


def _cells(row: DiffRow, result: DiffResult) -> tuple[Value, ...]:
    found = interval_text(row.interval) if row.interval else ""
    return _line(
        place(row), row.phase, row.before_ns, row.after_ns, found, result, _STATES.get(row.state, row.state)
    )


def _line(
    name: str, phase: str, before_ns: int, after_ns: int, found: str, result: DiffResult, state: str
) -> tuple[Value, ...]:
    shares = (_frac(before_ns, result.before), _frac(after_ns, result.after))
    return (name, phase, before_ns, after_ns, after_ns - before_ns, found, *shares, state)


def place(row: DiffRow) -> str:
    """What a row is, as people read it."""
    if row.kind in _SPECIAL:
        return _SPECIAL[row.kind]
    if row.kind == "kernel":
        return row.function
    if row.kind == "no line":
        return "no line of your code"
    if row.kind == "function":
        return f"{row.function} ({shown_path(row.file)})"
    number = row.line or row.line_before
    moved = f" (was {row.line_before})" if row.line_before and row.line else ""
    return f"{shown_path(row.file)}:{number}{moved} {row.function}".rstrip()


def _details(row: DiffRow, parts: int) -> tuple[str, ...]:
    """The kernels, or the causes of idle time, that explain the row."""
    changed = [part for part in row.parts if part.before_ns != part.after_ns]
    if row.state in ("small", "equal") or not changed or not parts:
        return ()
    lines = [f"{_signed(p.after_ns - p.before_ns)} {_part(p)}{_fate(p)}" for p in changed[:parts]]
    if len(changed) > parts:
        noun = "more cause" if row.kind == "idle" else "more kernel"
        lines.append(f"and {numbers.counted(len(changed) - parts, noun)}")
    return tuple(lines)


def _part(part: PartChange) -> str:
    if not part.file:
        return _shortened(part.name)
    at = "" if part.name.endswith("before") else "at "  # the host was there, or on its way
    return f"{part.name} {at}{shown_path(part.file)}:{part.line}"


def _shortened(name: str) -> str:
    """Names of matrix kernels are long, and all alike in the middle."""
    return name if len(name) <= 64 else f"{name[:44]}...{name[-16:]}"


def _fate(part: PartChange) -> str:
    return " (new)" if not part.before_ns else " (removed)" if not part.after_ns else ""


def _frac(part_ns: int, side: StepTimes) -> float | None:
    return part_ns / side.whole_ns if side.whole_ns else None


def _percent(change_ns: int, base_ns: int) -> str:
    return f"{100 * change_ns / base_ns:+.1f} %" if base_ns else "from nothing"


def _signed(value_ns: int) -> str:
    return f"{'+' if value_ns > 0 else ''}{numbers.time(value_ns)}"


def interval_text(found: Interval | None, signed: bool = True) -> str:
    """`-1.2 .. +3.4 ms`"""
    if found is None:
        return ""
    unit, size = numbers.time_unit((found.low_ns, found.high_ns))
    low, high = (
        f"{'+' if signed and value > 0 else ''}{numbers.in_unit(value, size)}"
        for value in (found.low_ns, found.high_ns)
    )
    return f"{low} .. {high} {unit}"


def row_data(row: DiffRow, result: DiffResult) -> dict[str, Any]:
    """A row for machines."""
    low, high = (row.interval.low_ns, row.interval.high_ns) if row.interval else (None, None)
    shares = [_frac(row.before_ns, result.before), _frac(row.after_ns, result.after)]
    return {
        "key": row.key,
        "kind": row.kind,
        "file": row.file,
        "function": row.function,
        "line": row.line,
        "line_before": row.line_before,
        "phase": row.phase,
        "before_ns": row.before_ns,
        "after_ns": row.after_ns,
        "change_ns": row.change_ns,
        "low_ns": low,
        "high_ns": high,
        "before_frac": None if shares[0] is None else round(shares[0], 6),
        "after_frac": None if shares[1] is None else round(shares[1], 6),
        "state": row.state,
        "parts": [asdict(part) for part in row.parts],
    }


def summary(result: DiffResult) -> dict[str, Any]:
    """The verdict for machines."""
    return {
        "verdict": result.state if result.comparable else "not comparable",
        "sentence": verdict(result),
        "change_ns": result.change_ns,
        "interval": asdict(result.interval) if result.interval else None,
        "before": asdict(result.before),
        "after": asdict(result.after),
        "checks": [asdict(check) for check in result.checks],
        "gate": asdict(result.gate) if result.gate else None,
        "budgets": [asdict(budget) for budget in result.budgets],
        "steps": {
            "before": [_steps_data(capture) for capture in result.captures_before],
            "after": [_steps_data(capture) for capture in result.captures_after],
        },
    }


def _steps_data(capture: Capture) -> dict[str, Any]:
    return {"sign": capture.windows.sign, "step_ns": capture.step_ns.tolist()}


def workflow_warnings(result: DiffResult) -> tuple[str, ...]:
    """Workflow commands that pin a warning to each line that got slower or is over its budget."""
    if not result.comparable:
        return ()
    worth_ns = WARNING_FRAC * result.before.whole_ns
    found = []
    for row in result.rows:
        grew = row.interval is not None and row.interval.low_ns > 0 and row.change_ns >= worth_ns
        if grew and row.kind == "line" and row.line:
            change = f"{_signed(row.change_ns)} per step"
            was = f"{numbers.time(row.before_ns)} -> {numbers.time(row.after_ns)}"
            message = f"{row.phase}: {was} ({change}), 95 % interval {interval_text(row.interval)}"
            found.append(_annotation(row.file, row.line, "GPU time grew", message))
    for budget in result.budgets:
        if budget.outcome == "fail" and budget.file and budget.line:
            found.append(
                _annotation(budget.file, budget.line, "over its budget", _limit_line("budget", budget))
            )
    return tuple(found)


def _annotation(file: str, line: int, title: str, message: str) -> str:
    where = f"file={_property(shown_path(file))},line={line},title={_property(title)}"
    return f"::warning {where}::{_escaped(message)}"


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _escaped(text).replace(":", "%3A").replace(",", "%2C")
