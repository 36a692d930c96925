# SPDX-License-Identifier: Apache-2.0
"""Where the time of each step goes: compute, communication, copies, idle. The parts sum to its wall."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from profiling_lab import _analysis
from profiling_lab.analysis.coverage import Coverage, coverage
from profiling_lab.analysis.device_spans import device_spans
from profiling_lab.analysis.host.steps import CATEGORIES, category_times
from profiling_lab.errors import UsageError
from profiling_lab.records import dataclass
from profiling_lab.trace.columns import I32, I64, median
from profiling_lab.trace.operation_classes import (
    COPIES,
    OperationClass,
    device_tracks,
)
from profiling_lab.trace.ownership import Ownership
from profiling_lab.trace.spans import Spans
from profiling_lab.trace.step_windows import StepWindows, step_windows
from profiling_lab.trace.trace import Trace

# An outlier is slower than the median by more than this many robust standard deviations, and by this share.
OUTLIER_DEVIATIONS = 3.0
OUTLIER_FRAC = 0.1
OUTLIERS_NEED = 4
"""steps; of fewer no spread is given"""
_MAD_TO_DEVIATION = 1.4826
PARTS = ("compute", "communication", "copy", "idle")


@dataclass(frozen=True, slots=True)
class StepRow:
    """One step as one GPU saw it.

    Where things overlap, compute counts before communication, communication before copies (memsets are
    copies): the last three are what compute does not hide.
    """

    key: str
    number: int
    """counted from 0 in the whole recording: what `--step` takes"""
    name: str
    pid: int
    device: int
    """CUDA ordinal in the process"""
    start_ns: int
    end_ns: int
    compute_ns: int
    communication_ns: int
    copy_ns: int
    idle_ns: int
    outlier: bool
    grew: str
    """of an outlier the part that grew most against the median step, else ''"""
    categories_ns: tuple[int, ...] = ()
    """time by step_host.CATEGORIES, which sums to the wall too; () unless it was asked for"""

    @property
    def wall_ns(self) -> int:
        return self.end_ns - self.start_ns


@dataclass(frozen=True, slots=True)
class StepsResult:
    """Steps in time order, by process and device."""

    rows: tuple[StepRow, ...]
    coverage: Coverage
    sign: str
    """'ProfilerStep', 'range', 'optimizer', 'period' or 'window': by what the steps were found"""
    how: str
    """the same as a sentence"""
    clock: str
    """see StepWindows"""
    steps: int
    """steps found, however many devices ran them"""
    median_ns: int
    """wall time of the median step"""
    outside_ns: int
    """GPU idle or busy before, between and after the steps, summed over devices"""
    outside_busy_ns: int
    """the part of it in which the GPU was busy"""
    total_matched: int

    @property
    def truncated(self) -> bool:
        return self.total_matched > len(self.rows)


def steps(
    trace: Trace, steps_by: str | None = None, limit: int | None = None, host: bool = False
) -> StepsResult:
    """Split the wall time of each step, per device. steps_by: see `step_windows`. limit: of rows.

    GPU time belongs to the step in which it passed, not to the one that launched it. host: also what the
    host did where the GPU did nothing.

    Raises UsageError, and NotEnoughDataError if the trace has no GPU operation or `steps_by` matches nothing.
    """
    if limit is not None and limit < 1:
        raise UsageError(f"limit must be at least 1, not {limit}")
    found = step_windows(trace, steps_by)
    devices = device_spans(trace).devices
    window, track = _per_device(found, devices)
    parts = part_times(trace, found.start_ns[window], found.end_ns[window], track)
    wall = found.end_ns[window] - found.start_ns[window]
    times = (found.start_ns[window], found.end_ns[window], track)
    categories = category_times(trace, found, *times) if host else np.zeros((len(window), 0), dtype=np.int64)
    told, names = (categories, CATEGORIES) if host else (parts, PARTS)

    outlier = np.zeros(len(window), dtype=bool)
    grew = np.full(len(window), "", dtype=object)
    for number in range(len(devices)):
        here = np.flatnonzero(track == number)
        slow = _outliers(wall[here])
        outlier[here] = slow
        for row in here[slow].tolist():
            grew[row] = names[int((told[row] - np.median(told[here], axis=0)).argmax())]
    pids = trace.pids
    rows = [
        StepRow(
            key=f"{pids[devices[t][0]]}/{devices[t][1]}/{found.names[w]}/{w}",
            number=int(found.number[w]),
            name=found.names[w],
            pid=pids[devices[t][0]],
            device=devices[t][1],
            start_ns=int(found.start_ns[w]),
            end_ns=int(found.end_ns[w]),
            compute_ns=int(parts[i, 0]),
            communication_ns=int(parts[i, 1]),
            copy_ns=int(parts[i, 2]),
            idle_ns=int(parts[i, 3]),
            outlier=bool(outlier[i]),
            grew=str(grew[i]),
            categories_ns=tuple(categories[i].tolist()),
        )
        for i, (w, t) in enumerate(zip(window.tolist(), track.tolist(), strict=True))
    ]
    outside_ns, outside_busy_ns = _outside(trace, found)
    return StepsResult(
        rows=tuple(rows[:limit]),
        coverage=coverage(trace, trace.stacks.own_rows(Ownership())),
        sign=found.sign,
        how=found.how,
        clock=found.clock,
        steps=len(found),
        median_ns=int(median(found.end_ns - found.start_ns)),
        outside_ns=outside_ns,
        outside_busy_ns=outside_busy_ns,
        total_matched=len(rows),
    )


def part_times(trace: Trace, start_ns: I64, end_ns: I64, track: I32) -> I64:
    """[windows, PARTS]: time of windows of devices by what the device did; a row sums to its window."""
    classes = trace.classes
    device, _ = device_tracks(trace.operations)
    coarse = np.where(np.isin(classes, COPIES), 2, np.where(classes == OperationClass.COMMUNICATION, 1, 0))
    sets = _analysis.set_time_ns(
        trace.operations.start_ns,
        trace.operations.end_ns,
        device,
        coarse.astype(np.int32),
        start_ns,
        end_ns,
        track,
        3,
    )
    # The lowest bit of a set is its class of the highest priority.
    return np.stack([sets[:, 1::2].sum(axis=1), sets[:, [2, 6]].sum(axis=1), sets[:, 4], sets[:, 0]], axis=1)


def _per_device(found: StepWindows, devices: tuple[tuple[int, int], ...]) -> tuple[npt.NDArray[np.intp], I32]:
    """Each step once for every device of its process: the step's number and the device's."""
    pairs = [
        (window, number)
        for number, (process, _) in sorted(enumerate(devices), key=lambda item: item[1])
        for window in np.flatnonzero(found.process == process).tolist()
    ]
    table = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return table[:, 0].astype(np.intp), table[:, 1].astype(np.int32)


def _outliers(wall_ns: I64) -> npt.NDArray[np.bool_]:
    if len(wall_ns) < OUTLIERS_NEED:
        return np.zeros(len(wall_ns), dtype=bool)
    middle = median(wall_ns)
    deviation = _MAD_TO_DEVIATION * median(np.abs(wall_ns - middle))
    slow: npt.NDArray[np.bool_] = wall_ns - middle > max(
        OUTLIER_DEVIATIONS * deviation, OUTLIER_FRAC * middle
    )
    return slow


def _outside(trace: Trace, found: StepWindows) -> tuple[int, int]:
    """Time of all devices outside of steps, and the busy part of it."""
    spans = device_spans(trace)
    process = np.array([process for process, _ in spans.devices], dtype=np.int32)[spans.number]
    row, start_ns, end_ns = Spans.of(found.process, found.start_ns, found.end_ns).cut_out(
        process, spans.start_ns, spans.end_ns
    )
    parts = part_times(trace, start_ns, end_ns, spans.number[row])
    return int(parts.sum()), int(parts[:, :3].sum())
