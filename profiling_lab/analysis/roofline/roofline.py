# SPDX-License-Identifier: Apache-2.0
"""Time against the speed of light: what each line, operator or kernel of the counted step could take.

The work of an operator is counted from its shapes, its time is that of the kernels it launched. At the speed
of light it takes the longer of two times: its bytes at the rate of the memory, its FLOPs at the rate of the
arithmetic units for its dtype. Operators are summed after that, so a row of different operators has no roof
of its own, but a time that it could take.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias, get_args

import numpy as np

from profiling_lab.analysis.counters.by_line import Known, memory_rates
from profiling_lab.analysis.coverage import Coverage, coverage
from profiling_lab.analysis.kernels.shapes import KernelShape, kernel_shapes
from profiling_lab.analysis.lines import needs_stacks
from profiling_lab.analysis.lines_groups import Label, groups
from profiling_lab.analysis.roofline.operators import CountedStep, counted_step
from profiling_lab.analysis.roofline.peaks import Peaks
from profiling_lab.errors import UsageError
from profiling_lab.records import dataclass, replace
from profiling_lab.trace.columns import I32, OperationKind, dense
from profiling_lab.trace.extras import WorkRows
from profiling_lab.trace.ownership import Ownership
from profiling_lab.trace.phases import LINE_PHASES
from profiling_lab.trace.trace import Trace

By: TypeAlias = Literal["line", "function", "module", "layer", "op", "kernel"]
GROUPINGS: tuple[By, ...] = get_args(By)

ON_THE_ROOF_FRAC = 0.8
"""from here on little is left to win"""
SHORT_NS = 2_000
"""a kernel with less work than this at the speed of light is over before the GPU is full"""


@dataclass(frozen=True, slots=True)
class RoofRow:
    """One line in one phase, or one operator or kernel."""

    key: str
    function: str
    file: str
    line: int
    phase: str
    """forward, backward, recompute, optimizer, unknown; '' for rows that are not split by phase"""
    operators: tuple[str, ...]
    """by time, the first the longest"""
    kinds: tuple[str, ...]
    calls: int
    """of operators"""
    kernels: int
    gpu_ns: int
    """of the operations whose work is counted"""
    flops: int | None
    """None: no operator of the row has FLOPs that are counted"""
    read_bytes: int
    written_bytes: int
    math: str
    """what most FLOPs are done in"""
    light_ns: float | None
    """at the speed of light; None without peaks"""
    limit: str
    """memory, compute, latency; '' if the peaks are unknown"""
    shape: KernelShape | None = None
    """of a kernel how it was launched, if the file says it"""
    sampled: Known | None = None
    """bytes per second between memory and L2 cache, as sampled counters say of this line in all steps"""

    @property
    def bytes(self) -> int:
        return self.read_bytes + self.written_bytes

    @property
    def intensity(self) -> float | None:
        """FLOPs per byte"""
        return self.flops / self.bytes if self.flops is not None and self.bytes else None

    @property
    def flops_per_s(self) -> float | None:
        return self.flops / (self.gpu_ns * 1e-9) if self.flops is not None and self.gpu_ns else None

    @property
    def bytes_per_s(self) -> int | None:
        return round(self.bytes / (self.gpu_ns * 1e-9)) if self.gpu_ns else None

    @property
    def roof_frac(self) -> float | None:
        """the share of the speed of light; above 1 the data came from a cache"""
        return self.light_ns / self.gpu_ns if self.light_ns is not None and self.gpu_ns else None

    @property
    def could_win_ns(self) -> int | None:
        return None if self.light_ns is None else max(round(self.gpu_ns - self.light_ns), 0)

    @property
    def is_on_the_roof(self) -> bool:
        return self.roof_frac is not None and self.roof_frac >= ON_THE_ROOF_FRAC


@dataclass(frozen=True, slots=True)
class RooflineResult:
    """Rows by GPU time, the longest first."""

    rows: tuple[RoofRow, ...]
    by: By
    peaks: Peaks | None
    gpu: str
    """the name of the GPU; '' if the recording does not say"""
    step: str
    """the number of the counted step; '' unknown"""
    step_ns: int
    """GPU time of the counted step"""
    counted_ns: int
    """part of it whose work is counted"""
    light_ns: float | None
    """of all rows"""
    uncounted: tuple[tuple[str, int], ...]
    """GPU time without counted work, by what it is, the longest first"""
    failures: int
    """operator calls that could not be counted"""
    coverage: Coverage
    total_matched: int

    @property
    def kinds(self) -> tuple[str, ...]:
        """of all rows"""
        return tuple(dict.fromkeys(kind for row in self.rows for kind in row.kinds))


def gpu_name(trace: Trace) -> str:
    """The GPU that the operations ran on; '' if they are several or unknown."""
    names = {device.name for device in trace.devices.values()} or {gpu.name for gpu in trace.gpus}
    return names.pop() if len(names) == 1 else ""


def roofline(
    trace: Trace,
    peaks: Peaks | None,
    by: By = "line",
    own: tuple[str, ...] | None = None,
    limit: int | None = None,
) -> RooflineResult:
    """own: files and folders that are the user's code (see Ownership). limit: the most rows.

    Raises UsageError for an unknown `by`, NotEnoughDataError without counted work.
    """
    if by not in GROUPINGS:
        raise UsageError(f"by must be one of {', '.join(GROUPINGS)}, not {by!r}")
    step = counted_step(trace)
    if by != "op":
        needs_stacks(trace, by)  # of kernels it asks nothing
    own_row = trace.stacks.own_rows(Ownership(own or ()))
    rows = sorted(_rows(trace, step, by, own_row, peaks), key=lambda row: (-row.gpu_ns, row.key, row.phase))
    if by == "kernel":
        rows = _with_shapes(trace, step, rows)
    if by == "line":
        rates = memory_rates(trace, own)
        rows = [replace(row, sampled=rates.get((row.key, row.phase))) for row in rows]
    duration = trace.operations.duration_ns[step.rows]
    facts = trace.recorder_facts
    return RooflineResult(
        rows=tuple(rows[:limit]),
        by=by,
        peaks=peaks,
        gpu=gpu_name(trace),
        step=facts.get("work_step", ""),
        step_ns=int(duration.sum()),
        counted_ns=sum(row.gpu_ns for row in rows),
        light_ns=None if peaks is None else sum(row.light_ns or 0 for row in rows),
        uncounted=_uncounted(trace, step),
        failures=_number(facts.get("work_failures", "")),
        coverage=coverage(trace, own_row),
        total_matched=len(rows),
    )


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 0


def _rows(trace: Trace, step: CountedStep, by: By, own_row: I32, peaks: Peaks | None) -> list[RoofRow]:
    calls = np.flatnonzero(step.longest >= 0)  # operators that launched something
    label, labels = _labels(trace, step, by, own_row, calls)
    by_phase = by not in ("op", "kernel")
    phase = trace.attribution.line_phase[step.longest[calls]].astype(np.int64) if by_phase else 0 * calls
    number, distinct = dense(label.astype(np.int64) * len(LINE_PHASES) + phase)
    duration = np.zeros(len(step.work), np.int64)
    kernels = np.zeros(len(step.work), np.int64)
    known = step.operator >= 0
    np.add.at(duration, step.operator[known], trace.operations.duration_ns[step.rows[known]])
    np.add.at(kernels, step.operator[known], 1)
    rows = []
    for group, value in enumerate(distinct.tolist()):
        of = calls[number == group]
        row, at = divmod(value, len(LINE_PHASES))
        name = LINE_PHASES[at] if by_phase else ""
        rows.append(_row(step.work, of, duration, kernels, labels[row], name, peaks))
    return rows


def _with_shapes(trace: Trace, step: CountedStep, rows: list[RoofRow]) -> list[RoofRow]:
    """With the launches of the kernels that the rows are named after."""
    if trace.launch_shapes is None:
        return rows
    operations = trace.operations
    number = {row.key: i for i, row in enumerate(rows)}
    of_name = np.array([number.get(name, -1) for name in operations.short_names] or [-1], np.int32)
    kernel = np.full(len(operations), -1, np.int32)
    kernel[step.rows] = of_name[operations.name[step.rows]]
    found = kernel_shapes(trace, trace.launch_shapes, kernel, list(range(len(rows))))
    return [replace(row, shape=found.get(i)) for i, row in enumerate(rows)]


def _labels(
    trace: Trace, step: CountedStep, by: By, own_row: I32, calls: np.ndarray
) -> tuple[np.ndarray, Sequence[Label]]:
    """Per call the row of the labels that it belongs to."""
    work = step.work
    if by == "op":
        names = [
            f"{work.names[name]}{f' ({work.maths[math]})' if work.maths[math] else ''}"
            for name, math in zip(work.name[calls].tolist(), work.math[calls].tolist(), strict=True)
        ]
    elif by == "kernel":
        operations = trace.operations
        names = [operations.short_names[i] for i in operations.name[step.longest[calls]].tolist()]
    else:
        found = groups(trace, by, own_row)
        nowhere = len(found.labels)
        label = found.label[step.longest[calls]]
        return np.where(label < 0, nowhere, label), (*found.labels, Label("(no line)"))
    numbers = {name: i for i, name in enumerate(dict.fromkeys(names))}
    return np.array([numbers[name] for name in names], np.int64), [Label(name) for name in numbers]


def _row(
    work: WorkRows,
    calls: np.ndarray,
    duration: np.ndarray,
    kernels: np.ndarray,
    label: Label,
    phase: str,
    peaks: Peaks | None,
) -> RoofRow:
    flops, moved = work.flops[calls], work.read_bytes[calls] + work.written_bytes[calls]
    counted = flops >= 0
    maths = _by_weight(work.math[calls][counted], flops[counted], work.maths)
    light_ns, limit = _light(work, calls, moved, int(kernels[calls].sum()), peaks)
    return RoofRow(
        key=label.key,
        function=label.function,
        file=label.file,
        line=label.line,
        phase=phase,
        operators=_by_weight(work.name[calls], duration[calls], work.names),
        kinds=_by_weight(work.kind[calls], duration[calls], work.kinds),
        calls=len(calls),
        kernels=int(kernels[calls].sum()),
        gpu_ns=int(duration[calls].sum()),
        flops=int(flops[counted].sum()) if counted.any() else None,
        read_bytes=int(work.read_bytes[calls].sum()),
        written_bytes=int(work.written_bytes[calls].sum()),
        math=maths[0] if maths else "",
        light_ns=light_ns,
        limit=limit,
    )


def _light(
    work: WorkRows, calls: np.ndarray, moved: np.ndarray, kernels: int, peaks: Peaks | None
) -> tuple[float | None, str]:
    """The time at the speed of light, and what most of it is."""
    if peaks is None:
        return None, ""
    in_memory = moved / peaks.memory_bytes_per_s * 1e9
    rate = np.array([peaks.flops_per_s.get(name, np.inf) for name in work.maths] or [np.inf])
    in_units = np.maximum(work.flops[calls], 0) / rate[work.math[calls]] * 1e9
    light = np.maximum(in_memory, in_units)
    total = float(light.sum())
    if total < SHORT_NS * kernels:
        return total, "latency"
    by_units = float(light[in_units > in_memory].sum())
    return total, "compute" if by_units > total / 2 else "memory"


def _by_weight(number: np.ndarray, weight: np.ndarray, names: tuple[str, ...]) -> tuple[str, ...]:
    sums: dict[str, int] = {}
    for row, value in zip(number.tolist(), weight.tolist(), strict=True):
        sums[names[row]] = sums.get(names[row], 0) + value
    return tuple(sorted(sums, key=lambda name: (-sums[name], name)))


def _uncounted(trace: Trace, step: CountedStep) -> tuple[tuple[str, int], ...]:
    operations = trace.operations
    rows = step.rows[step.operator < 0]
    sums: dict[str, int] = {}
    what = {OperationKind.COPY: "copies", OperationKind.SET: "memsets", OperationKind.GRAPH: "CUDA graphs"}
    for row, kind in zip(rows.tolist(), operations.kind[rows].tolist(), strict=True):
        name = what.get(kind) or operations.short_names[operations.name[row]]
        sums[name] = sums.get(name, 0) + int(operations.duration_ns[row])
    return tuple(sorted(sums.items(), key=lambda item: (-item[1], item[0])))
