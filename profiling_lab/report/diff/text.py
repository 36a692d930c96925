# SPDX-License-Identifier: Apache-2.0
"""The sentences of a comparison: its verdict, the evidence, and whether limits were kept."""

from __future__ import annotations

from profiling_lab.analysis.diff.diff import DiffResult, StepTimes
from profiling_lab.analysis.diff.memory import MemoryLimit
from profiling_lab.analysis.diff.noise import MIN_STEPS, Interval
from profiling_lab.analysis.diff.verdict import LimitResult
from profiling_lab.report import numbers

CHECK_NAMES = {
    "gpu": "GPU",
    "driver": "driver",
    "method": "how it was recorded",
    "window": "part of the recording",
    "steps": "steps",
    "workload": "workload",
    "shapes": "shapes",
    "overhead": "cost of recording",
}
LITTLE_FRAC = 0.1
"""of the GPU time in rows that both sides have: with less, they hardly run the same program"""
_OUTCOMES = {"pass": "passed", "fail": "FAILED", "undecided": "UNDECIDED"}


def verdict(result: DiffResult) -> str:
    """One sentence. It claims nothing that the noise or the recordings do not allow."""
    if not result.comparable:
        differs = "; ".join(
            f"{CHECK_NAMES[check.name]}: {check.before or 'unknown'} before, {check.after or 'unknown'} after"
            for check in result.checks
            if check.refuses
        )
        return f"NOT COMPARABLE: {differs}"
    unit = unit_of(result)
    times = f"{numbers.time(result.before.median_ns)} -> {numbers.time(result.after.median_ns)} per {unit}"
    change = f"{signed_time(result.change_ns)} ({_percent(result.change_ns, result.before.median_ns)})"
    found = result.interval
    if result.state == "undecided":
        count = min(result.before.count, result.after.count)
        return (
            f"NO VERDICT: {times}, {change}, but {numbers.counted(count, unit)} on a side cannot "
            f"tell the noise; it takes {MIN_STEPS} steps, from one recording or several"
        )
    if result.change_ns == 0 and found == Interval(0, 0):
        return f"NO CHANGE: {times}"
    return f"{result.state.upper()}: {times}, {change}, 95 % interval {interval_text(found)}"


def unit_of(result: DiffResult) -> str:
    """What was timed: without steps it is whole recordings."""
    return "step" if result.captures_before[0].has_steps else "recording"


def step_lines(result: DiffResult) -> list[str]:
    """What the verdict rests on, and single steps that do not fit it."""
    before, after = result.before, result.after
    mean = f"mean {numbers.time(before.mean_ns)} -> {numbers.time(after.mean_ns)}"
    how = " and ".join(dict.fromkeys(c.origin.how for c in (*result.captures_before, *result.captures_after)))
    lines = [f"  median of {before.count} and {after.count} {unit_of(result)}s ({how}); {mean}"]
    if result.comparable and result.common_frac is not None and result.common_frac < LITTLE_FRAC:
        instead = "" if result.by == "kernel" else "; --by kernel compares the kernels that both run"
        share = numbers.share(result.common_frac)
        lines.append(
            f"  note: {share} of the GPU time is in {result.by}s that both have: these look like two "
            f"programs, not like one before and after a change{instead}"
        )
    if max(len(result.captures_before), len(result.captures_after)) == 1 and not result.is_identical:
        lines.append("  note: one recording a side: how much runs differ is not in the interval; record more")
    if result.change_ns * (after.mean_ns - before.mean_ns) < 0:
        lines.append("  note: the mean went the other way than the median: a few steps are far off")
    if result.state == "faster" and after.slowest_ns > before.slowest_ns:
        slowest = numbers.time(after.slowest_ns)
        lines.append(f"  note: yet the slowest step after, {slowest}, is slower than every step before")
    if result.state == "slower" and after.fastest_ns < before.fastest_ns:
        fastest = numbers.time(after.fastest_ns)
        lines.append(f"  note: yet the fastest step after, {fastest}, is faster than every step before")
    return lines


def limit_line(what: str, judged: LimitResult | MemoryLimit) -> str:
    """`gate +3% (5.3 ms): -49.7 ms, 95 % interval ..: passed`; `what`: as in `DiffResult.limits`."""
    if isinstance(judged, MemoryLimit):
        return _memory_limit_line(what, judged)
    is_change = what == "gate"
    value = signed_time(judged.value_ns) if is_change else numbers.time(judged.value_ns)
    limit = f" ({numbers.time(judged.limit_ns)})" if judged.text.endswith("%") else ""
    found = f", 95 % interval {interval_text(judged.interval, is_change)}" if judged.interval else ""
    why = ""
    if judged.outcome == "undecided":
        why = (
            ": the limit lies inside of the noise, record more steps"
            if judged.interval
            else ": too few steps"
        )
    return f"{what} {judged.text}{limit}: {value}{found}: {_OUTCOMES[judged.outcome]}{why}"


def _memory_limit_line(what: str, judged: MemoryLimit) -> str:
    limit = f" ({numbers.size(judged.limit_bytes)})" if judged.text.endswith("%") else ""
    outcome = ": ".join(filter(None, (_OUTCOMES[judged.outcome], judged.why)))
    return f"{what} {judged.text}{limit}: {signed_size(judged.change_bytes)}: {outcome}"


def peaks_text(before_bytes: int, after_bytes: int) -> str:
    """`12.3 GiB -> 9.8 GiB, -2.5 GiB (-20.3 %)`"""
    change = after_bytes - before_bytes
    told = f"{signed_size(change)} ({_percent(change, before_bytes)})" if change else "no change"
    return f"{numbers.size(before_bytes)} -> {numbers.size(after_bytes)}, {told}"


def signed_size(value_bytes: int) -> str:
    return f"{'+' if value_bytes > 0 else ''}{numbers.size(value_bytes)}"


def share_of(part_ns: int, side: StepTimes) -> float | None:
    return part_ns / side.whole_ns if side.whole_ns else None


def _percent(change_ns: int, base_ns: int) -> str:
    return f"{100 * change_ns / base_ns:+.1f} %" if base_ns else "from nothing"


def signed_time(value_ns: int) -> str:
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
