# SPDX-License-Identifier: Apache-2.0
"""Memory traffic and busy units by line, from hardware counters that the recorder sampled."""

from __future__ import annotations

import numpy as np

from profiling_lab.analysis.counters.fit import Amounts, SampleBlock, amounts, blocks_of
from profiling_lab.analysis.coverage import Coverage, coverage
from profiling_lab.analysis.energy.shares import passed_ns
from profiling_lab.analysis.lines import needs_operations, needs_stacks
from profiling_lab.analysis.lines_groups import Label, groups
from profiling_lab.errors import NotEnoughDataError
from profiling_lab.records import dataclass
from profiling_lab.trace.columns import I32, dense
from profiling_lab.trace.extras import COUNTERS, CounterSamples
from profiling_lab.trace.ownership import Ownership
from profiling_lab.trace.phases import LINE_PHASES
from profiling_lab.trace.platform import in_words_of
from profiling_lab.trace.trace import Trace

MOST_PARTS = 160
"""kernels of lines that are fitted, by time; the others are one part"""
LEAST_SAMPLES = 240
"""with fewer nothing is told: ten for each block of the error bars"""
MOST_ERROR_FRAC = 0.25
"""an amount that is known less well is not told"""
BUSY = ("sm_active", "issued", "tensor")
"""counters that are shares of time; the others are bytes"""
_PPM = 1e-6


@dataclass(frozen=True, slots=True)
class Known:
    """One counter of one row: bytes, or nanoseconds in which the units were busy."""

    amount: float
    error: float

    @property
    def is_told(self) -> bool:
        return self.error <= MOST_ERROR_FRAC * abs(self.amount)


@dataclass(frozen=True, slots=True)
class CountedRow:
    """One line in one phase, or idle time."""

    key: str
    function: str
    file: str
    line: int
    phase: str
    gpu_ns: int
    """in the samples; where several kernels ran at once, they share the time"""
    counters: dict[str, Known]
    """per quantity of trace.extras.COUNTERS that this GPU samples"""


@dataclass(frozen=True, slots=True)
class CountersResult:
    rows: tuple[CountedRow, ...]
    samples: int
    period_ns: int
    coverage: Coverage
    total_matched: int


def counters_by_line(
    trace: Trace, own: tuple[str, ...] | None = None, limit: int | None = None
) -> CountersResult:
    """own: files and folders that are the user's code (see Ownership). One GPU of one process: the first one.

    Raises NotEnoughDataError in a recording without samples, or with too few.
    """
    sampled = trace.whole.source.counters()
    if not sampled:
        raise NotEnoughDataError(f"{trace.path} holds no sampled hardware counters: {_how(trace)}")
    samples = sampled[0]
    if len(samples) < LEAST_SAMPLES:
        raise NotEnoughDataError(
            f"{trace.path} holds {len(samples)} samples of hardware counters, and it takes {LEAST_SAMPLES} "
            "to know what a line has: record for longer"
        )
    needs_operations(trace)
    needs_stacks(trace)
    own_row = trace.stacks.own_rows(Ownership(own or ()))
    part, row_of_part, labels = _parts(trace, own_row, samples)
    found, seconds = _fitted(trace, samples, part, row_of_part, len(labels))
    rows = [
        CountedRow(
            label.key, label.function, label.file, label.line, phase, round(seconds[i] * 1e9),
            {name: Known(float(a.amount[i]), float(a.error[i])) for name, a in found.items()},
        )
        for i, (label, phase) in enumerate(labels)
    ]  # fmt: skip
    rows.sort(key=lambda row: (-row.gpu_ns, row.key, row.phase))
    return CountersResult(
        rows=tuple(rows[:limit]),
        samples=len(samples),
        period_ns=int(np.median(samples.end_ns - samples.start_ns)),
        coverage=coverage(trace, own_row),
        total_matched=len(rows),
    )


def memory_rates(trace: Trace, own: tuple[str, ...] | None = None) -> dict[tuple[str, str], Known]:
    """Per line and phase the bytes per second between memory and L2 cache; empty without enough samples."""
    try:
        rows = counters_by_line(trace, own).rows
    except NotEnoughDataError:
        return {}
    rates = {}
    for row in rows:
        both = [row.counters[name] for name in ("dram_read", "dram_written") if name in row.counters]
        if len(both) == 2 and row.gpu_ns:
            per_s = 1e9 / row.gpu_ns
            # The errors of both may go the same way.
            rates[row.key, row.phase] = Known(
                sum(one.amount for one in both) * per_s, sum(one.error for one in both) * per_s
            )
    return rates


def _how(trace: Trace) -> str:
    state = trace.recorder_facts.get("counters_state", "")
    if state and state != "on":
        return f"the recorder says: {state}"
    if trace.is_ours:
        return "record with `profiling-lab record --counters`"
    return in_words_of(trace, "only `profiling-lab record --counters` samples them")


def _parts(
    trace: Trace, own_row: I32, samples: CounterSamples
) -> tuple[I32, np.ndarray, list[tuple[Label, str]]]:
    """Per operation its part, -1 on another GPU; per part its row; the rows. The last part is idle time."""
    found = groups(trace, "line", own_row)
    operations = trace.operations
    here = (operations.process == samples.process) & (operations.device == samples.device)
    label = np.where(found.label < 0, len(found.labels), found.label).astype(np.int64)
    row, distinct = dense(label * len(LINE_PHASES) + trace.attribution.line_phase)
    names = (*found.labels, Label("(no line)"))
    labels = [
        (names[at], LINE_PHASES[phase])
        for at, phase in (divmod(value, len(LINE_PHASES)) for value in distinct.tolist())
    ]
    kernel, pairs = dense(row.astype(np.int64) * (len(operations.short_names) + 1) + operations.name)
    sums = np.bincount(kernel[here], weights=operations.duration_ns[here], minlength=len(pairs))
    longest = np.argsort(-sums, kind="stable")[:MOST_PARTS]
    place = np.full(len(pairs), len(longest))
    place[longest] = np.arange(len(longest))
    rows = np.array([pairs[i] // (len(operations.short_names) + 1) for i in longest.tolist()], np.intp)
    labels += [(Label("(other kernels)"), ""), (Label("(idle)"), "")]
    row_of_part = np.concatenate([rows, [len(labels) - 2, len(labels) - 1]])
    return np.where(here, place[kernel], -1).astype(np.int32), row_of_part, labels


def _fitted(
    trace: Trace, samples: CounterSamples, part: I32, row: np.ndarray, rows: int
) -> tuple[dict[str, Amounts], np.ndarray]:
    mine = part >= 0
    start, end = trace.operations.start_ns[mine], trace.operations.end_ns[mine]
    parts = len(row) - 1  # without idle time
    counts = np.column_stack([_counted(samples, name) for name in COUNTERS if name in samples.values])
    blocks = []
    for each in blocks_of(len(samples)):
        near = (end >= samples.start_ns[each[0]]) & (start <= samples.end_ns[each[-1]])
        at = np.concatenate([samples.start_ns[each], samples.end_ns[each]]).astype(np.float64)
        passed = passed_ns(start[near], end[near], part[mine][near], parts, at) if near.any() else None
        if passed is None:
            seconds = np.zeros((len(each), parts + 1))
            seconds[:, parts] = samples.end_ns[each] - samples.start_ns[each]
        else:
            seconds = passed[len(each) :] - passed[: len(each)]
        blocks.append(SampleBlock.of(seconds * 1e-9, counts[each]))
    names = [name for name in COUNTERS if name in samples.values]
    total = np.sum([block.seconds for block in blocks], axis=0)
    return dict(zip(names, amounts(blocks, row, rows), strict=True)), np.bincount(row, total, minlength=rows)


def _counted(samples: CounterSamples, name: str) -> np.ndarray:
    """Bytes; or nanoseconds in which the units were busy, which add up as bytes do."""
    values = samples.values[name].astype(np.float64)
    return values * _PPM * (samples.end_ns - samples.start_ns) if name in BUSY else values
