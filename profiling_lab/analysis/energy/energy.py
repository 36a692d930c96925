# SPDX-License-Identifier: Apache-2.0
"""Joules per step and by line, from the energy counter that the recorder read."""

from __future__ import annotations

import numpy as np

from profiling_lab.analysis.coverage import coverage
from profiling_lab.analysis.device_spans import device_spans
from profiling_lab.analysis.energy.counter import Counter
from profiling_lab.analysis.energy.device import (
    INTERVALS_PER_PART,
    Fitted,
    Known,
    Usage,
    energy_of,
)
from profiling_lab.analysis.energy.result import DeviceEnergy, EnergyResult, EnergyRow, Spread
from profiling_lab.analysis.lines import needs_operations, needs_stacks
from profiling_lab.analysis.lines_groups import Label, groups
from profiling_lab.errors import NotEnoughDataError, UsageError
from profiling_lab.trace.columns import I32, I64, dense
from profiling_lab.trace.extras import CLOCK_LIMITS, UNKNOWN_READING, EnergySamples
from profiling_lab.trace.ownership import Ownership
from profiling_lab.trace.phases import LINE_PHASES
from profiling_lab.trace.platform import in_words_of
from profiling_lab.trace.step_windows import StepWindows, step_windows
from profiling_lab.trace.trace import Trace

MOST_PARTS = 24
"""lines and phases that are fitted, by time"""
LEAST_FRAC = 0.005
"""of the busy time; what is shorter is one part"""
OTHER, IDLE, NO_LINE = "(other lines)", "(idle)", "(no line)"


def energy(
    trace: Trace,
    samples_per_step: int | None = None,
    own: tuple[str, ...] | None = None,
    steps_by: str | None = None,
    limit: int | None = None,
) -> EnergyResult:
    """own: files and folders that are the user's code (see Ownership). steps_by: see `step_windows`.

    Raises UsageError, and NotEnoughDataError in a recording without the energy counter.
    """
    if samples_per_step is not None and samples_per_step < 1:
        raise UsageError(f"samples_per_step must be at least 1, not {samples_per_step}")
    sampled = trace.whole.source.energy()
    if not any(len(samples) > 1 for samples in sampled):
        raise NotEnoughDataError(f"{trace.path} holds no energy counter: {_how(trace)}")
    needs_operations(trace)
    needs_stacks(trace)
    own_row = trace.stacks.own_rows(Ownership(own or ()))
    part, labels = _parts(trace, own_row)
    spans = device_spans(trace)
    found_steps = step_windows(trace, steps_by)
    devices, sums = [], _Sums()
    for samples in sampled:
        key = (samples.process, samples.device)
        if key not in spans.devices or len(samples) < 2:
            continue
        mine = spans.number == spans.devices.index(key)
        here = (trace.operations.process == key[0]) & (trace.operations.device == key[1])
        counter = Counter.of(samples)
        window = spans.start_ns[mine], spans.end_ns[mine]
        if len(counter) < 2 or not _meets(counter, *window):
            continue
        most = max(_intervals(counter, *window) // INTERVALS_PER_PART - 2, 1)
        numbers, local = _longest(part[here], trace.operations.duration_ns[here], min(most, MOST_PARTS))
        usage = Usage(
            trace.operations.start_ns[here], trace.operations.end_ns[here], local, len(numbers), *window
        )
        limit_w = _spread(samples.power_limit_mw / 1e3, samples.power_limit_mw)
        fitted = energy_of(usage, counter, limit_w.mean if limit_w else 0.0)
        devices.append(_device(trace, samples, counter, fitted, found_steps, limit_w))
        sums.add(numbers, fitted)
    if not devices:
        raise NotEnoughDataError(
            f"{trace.path}: no GPU that ran operations in this part of the recording had its energy read then"
        )
    rows = sorted(sums.rows(labels), key=_order)
    work = trace.work
    return EnergyResult(
        rows=tuple(rows[:limit]),
        devices=tuple(devices),
        step_how=found_steps.how,
        samples_per_step=samples_per_step,
        flops_per_step=None if work is None else int(work.flops[work.flops > 0].sum()),
        coverage=coverage(trace, own_row),
        total_matched=len(rows),
    )


def _how(trace: Trace) -> str:
    state = trace.recorder_facts.get("energy_state", "")
    if state and state != "on":
        return f"the recorder says: {state}"
    if trace.is_ours:
        return "record with `profiling-lab record --energy`"
    return in_words_of(trace, "only `profiling-lab record --energy` reads it")


def _parts(trace: Trace, own_row: I32) -> tuple[I32, list[tuple[Label, str]]]:
    """Per operation its line and phase, as a number."""
    found = groups(trace, "line", own_row)
    label = np.where(found.label < 0, len(found.labels), found.label).astype(np.int64)
    names = (*found.labels, Label(NO_LINE))
    number, distinct = dense(label * len(LINE_PHASES) + trace.attribution.line_phase)
    pairs = (divmod(value, len(LINE_PHASES)) for value in distinct.tolist())
    return number, [(names[row], LINE_PHASES[phase]) for row, phase in pairs]


def _longest(part: I32, duration: I64, most: int) -> tuple[list[int], I32]:
    """The parts with most time, then -1 for all others; and per operation its place in that list."""
    sums = np.bincount(part, weights=duration)
    order = np.argsort(-sums, kind="stable")[:most]
    chosen = order[sums[order] >= LEAST_FRAC * sums.sum()]
    place = np.full(len(sums), len(chosen), np.int32)
    place[chosen] = np.arange(len(chosen))
    return [*chosen.tolist(), -1], place[part]


def _meets(counter: Counter, start_ns: I64, end_ns: I64) -> bool:
    return bool(counter.time_ns[-1] > start_ns.min() and counter.time_ns[0] < end_ns.max())


def _intervals(counter: Counter, start_ns: I64, end_ns: I64) -> int:
    return int(max(end_ns.max() - start_ns.min(), 0) // counter.period_ns)


class _Sums:
    """Energy by part over the GPUs; a part is told if it is on each of them."""

    def __init__(self) -> None:
        self._ns: dict[int, float] = {}
        self._known: dict[int, list[Known]] = {}
        self._unknown: set[int] = set()

    def add(self, numbers: list[int], fitted: Fitted) -> None:
        idle = -2
        for i, number in enumerate([*numbers, idle]):
            if not fitted.passed_s[i]:
                continue
            self._ns[number] = self._ns.get(number, 0) + fitted.passed_s[i] * 1e9
            if fitted.parts:
                self._known.setdefault(number, []).append(fitted.parts[i])
            if not fitted.parts or not fitted.parts[i].is_told:
                self._unknown.add(number)

    def rows(self, labels: list[tuple[Label, str]]) -> list[EnergyRow]:
        special = {-1: (Label(OTHER), ""), -2: (Label(IDLE), "")}
        out = []
        for number, ns in self._ns.items():
            label, phase = special.get(number) or labels[number]
            known, told = self._known.get(number, []), number not in self._unknown
            needs = [one.needs_s for one in known if not one.is_told]
            out.append(
                EnergyRow(
                    key=label.key,
                    function=label.function,
                    file=label.file,
                    line=label.line,
                    phase=phase,
                    gpu_ns=round(ns),
                    joules=sum(one.joules for one in known) if told else None,
                    error_j=float(np.sqrt(sum(one.error_j**2 for one in known))) if told else None,
                    needs_s=None if told or not needs or None in needs else max(filter(None, needs)),
                )
            )
        return out


def _order(row: EnergyRow) -> tuple[object, ...]:
    return (row.joules is None, -(row.joules or 0), -row.gpu_ns, row.key, row.phase)


def _device(
    trace: Trace,
    samples: EnergySamples,
    counter: Counter,
    fitted: Fitted,
    steps: StepWindows,
    limit_w: Spread | None,
) -> DeviceEnergy:
    ns = float(fitted.passed_s.sum()) * 1e9
    mine = steps.process == samples.process
    start, end = steps.start_ns[mine] + fitted.lag_ns, steps.end_ns[mine] + fitted.lag_ns
    inside = (start >= counter.time_ns[0]) & (end <= counter.time_ns[-1]) & (end > start)
    joules = counter.between(start[inside], end[inside])
    per_interval = float(np.diff(counter.joules).mean())
    return DeviceEnergy(
        pid=trace.pids[samples.process],
        device=samples.device,
        joules=fitted.joules,
        ns=round(ns),
        idle_ns=round(float(fitted.passed_s[-1]) * 1e9),
        steps=len(joules),
        step_j=float(joules.mean()) if len(joules) else None,
        step_error_j=per_interval / len(joules) if len(joules) else None,
        samples=len(samples),
        period_ns=round(counter.period_ns),
        spread_ns=counter.spread_ns,
        lag_ns=round(fitted.lag_ns),
        why_no_lines=fitted.why_not,
        power_limit_w=limit_w,
        sm_clock_mhz=_spread(samples.sm_clock_mhz, samples.sm_clock_mhz),
        memory_clock_mhz=_spread(samples.memory_clock_mhz, samples.memory_clock_mhz),
        temperature_c=_spread(samples.temperature_c, samples.temperature_c),
        limits=_limits(samples.clock_limits),
    )


def _limits(mask: I64) -> tuple[tuple[str, float], ...] | None:
    known = mask[mask != UNKNOWN_READING]
    if not len(known):
        return None
    shares = ((name, float(((known & bit) != 0).mean())) for bit, name in CLOCK_LIMITS.items())
    return tuple((name, frac) for name, frac in shares if frac)


def _spread(values: np.ndarray, raw: I64) -> Spread | None:
    known = values[raw != UNKNOWN_READING]
    return Spread(float(known.mean()), float(known.min()), float(known.max())) if len(known) else None
