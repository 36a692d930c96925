# SPDX-License-Identifier: Apache-2.0
"""What one rank has to say for itself: its steps and their parts, collectives, lines. Pure functions."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from profiling_lab import _analysis
from profiling_lab.analysis.ranks.clock_move import ClockMove
from profiling_lab.analysis.ranks.collectives import AT_MOST, RankCollectives, collectives
from profiling_lab.analysis.ranks.facts import NotedRank, clock, noted_rank, noted_rank_of
from profiling_lab.analysis.ranks.lines import LineTimes, line_times
from profiling_lab.analysis.ranks.options import Options
from profiling_lab.errors import NotEnoughDataError
from profiling_lab.records import dataclass, replace
from profiling_lab.trace import Trace
from profiling_lab.trace.columns import I64, full
from profiling_lab.trace.operation_classes import COPIES, OperationClass, device_tracks
from profiling_lab.trace.ownership import Ownership
from profiling_lab.trace.platform import in_words_of
from profiling_lab.trace.step_windows import StepWindows, step_windows

PARTS = ("compute_ns", "exposed_ns", "copy_ns", "idle_ns", "communication_ns")
"""columns of `RankSummary.parts_ns`: the first four sum to the step's wall. Where things overlap, compute
counts before communication, communication before copies; the last is all communication, hidden or not"""
_MINOR_FRAC = 0.1  # a device with less of its process' busiest one's GPU time is no rank of its own
_NUMBER = re.compile(r"(\d+)$")


@dataclass(frozen=True, slots=True)
class RankFacts:
    """All that is known of a rank without its steps, collectives and lines."""

    path: str
    pid: int
    device: int
    """CUDA ordinal in the process"""
    gpu: str
    """the GPUs of the file, by name; '' where it does not say"""
    rank: int | None
    """as the recording or the name of the file says; None where nothing says it"""
    world_size: int | None
    said_by: str
    """see facts.NotedRank"""
    is_wall: bool
    """times are nanoseconds since 1970, not those of a clock that only this file knows"""
    span_ns: tuple[int, int]
    """from the first GPU operation's start to the last one's end"""
    gpu_ns: int
    attributed_ns: int
    """GPU time with a line in user code"""
    operations: int
    steps_by: str
    how: str
    """how steps were found, as a sentence"""
    named: bool
    """steps are numbered by the program, not counted here"""
    steps: int
    collectives: int
    notes: tuple[str, ...]
    communicators: str
    """how to record the communicators and message sizes of collectives"""


COMMUNICATORS = "nsys has them with --trace=cuda,nvtx, exported with --include-blobs=true"


@dataclass(frozen=True, slots=True)
class RankSummary:
    """One rank. It takes 400 KB at most, whatever the size of the recording: see collectives.AT_MOST."""

    facts: RankFacts
    number: I64
    """of each step, ascending"""
    start_ns: I64
    end_ns: I64
    parts_ns: I64
    """[steps, PARTS]"""
    collectives: RankCollectives
    lines: LineTimes
    moves: tuple[ClockMove, ...] = ()
    """what was done to the times of the file"""

    def __len__(self) -> int:
        return len(self.number)

    def moved(self, move: ClockMove, steps: int = 0) -> RankSummary:
        """The same on another clock, and with other numbers of steps."""
        first, last = move(np.array(self.facts.span_ns, dtype=np.int64)).tolist()
        return replace(
            self,
            facts=replace(self.facts, span_ns=(first, last)),
            number=self.number + steps,
            start_ns=move(self.start_ns),
            end_ns=move(self.end_ns),
            collectives=self.collectives.moved(move, steps),
            moves=(*self.moves, move),
        )


def summarize(trace: Trace, options: Options | None = None) -> tuple[RankSummary, ...]:
    """The ranks in a file, one per process that used a GPU, by process id; a process that spreads its work
    over several GPUs counts as one rank per GPU.

    Raises UsageError, and NotEnoughDataError if the trace has no GPU operation.
    """
    options = options or Options()
    if not len(trace.operations):
        raise NotEnoughDataError(trace.why_empty())
    steps = step_windows(trace, options.steps_by)
    track, devices = device_tracks(trace.operations)
    busy, _ = _analysis.sum_by_key(track, trace.operations.duration_ns, len(devices))
    units = _units(trace, busy, devices)
    return tuple(
        _rank(trace, options, steps, np.flatnonzero(track == unit.track), unit, _said(trace, units, unit))
        for unit in units
    )


@dataclass(frozen=True, slots=True)
class _Unit:
    """A rank of a file."""

    process: int
    track: int
    device: int
    sibling_gpus: int
    """GPUs of its process that are ranks of their own as well"""
    minor: tuple[int, ...]
    """other GPUs that the process used a little"""


def _said(trace: Trace, units: list[_Unit], unit: _Unit) -> NotedRank:
    if len(units) == 1:
        return noted_rank(trace)
    if unit.sibling_gpus:  # a rank per GPU of one process, which notes one rank
        return NotedRank(None, None, "")
    return noted_rank_of(trace, trace.pids[unit.process])


def _units(trace: Trace, busy_ns: I64, devices: tuple[tuple[int, int], ...]) -> list[_Unit]:
    out = []
    for process in sorted({process for process, _ in devices}, key=lambda number: trace.pids[number]):
        mine = sorted((i for i, (p, _) in enumerate(devices) if p == process), key=lambda i: devices[i][1])
        enough = _MINOR_FRAC * max(int(busy_ns[i]) for i in mine)
        major = [i for i in mine if busy_ns[i] >= enough]
        minor = tuple(devices[i][1] for i in mine if busy_ns[i] < enough)
        out += [_Unit(process, i, devices[i][1], len(major) - 1, minor) for i in major]
    return out


def _rank(
    trace: Trace,
    options: Options,
    steps: StepWindows,
    rows: npt.NDArray[np.intp],
    unit: _Unit,
    said: NotedRank,
) -> RankSummary:
    steps = steps.only(np.flatnonzero(steps.process == unit.process))
    number, named = _numbers(steps)
    found = collectives(trace, rows, steps, number, options)
    time = clock(trace)
    has_line = trace.stacks.own_rows(Ownership(options.own))[trace.attribution.stack[rows]] > 0
    operations = trace.operations
    lines = line_times(
        trace, rows, unit.process, options.own, (steps.start_ns, steps.end_ns), not unit.sibling_gpus
    )
    facts = RankFacts(
        path=str(trace.path),
        pid=trace.pids[unit.process],
        device=unit.device,
        gpu=" and ".join(sorted({gpu.name for gpu in trace.gpus})),
        rank=said.rank,
        world_size=said.world_size,
        said_by=said.said_by,
        is_wall=time.is_wall,
        span_ns=(int(operations.start_ns[rows].min()), int(operations.end_ns[rows].max())),
        gpu_ns=int(operations.duration_ns[rows].sum()),
        attributed_ns=int(operations.duration_ns[rows][has_line].sum()),
        operations=len(rows),
        steps_by=steps.sign,
        how=steps.how,
        named=named,
        steps=len(steps),
        collectives=sum(len(occurrences.number) for occurrences in found.series.values()),
        notes=(_unit_notes(unit) if options.each_collective else _notes(unit, len(steps), found, lines)),
        communicators=in_words_of(trace, COMMUNICATORS),
    )
    parts_ns = _parts(trace, rows, steps.start_ns, steps.end_ns)
    summary = RankSummary(facts, number, steps.start_ns, steps.end_ns, parts_ns, found, lines)
    return summary.moved(ClockMove(time.offset_ns))


def _numbers(steps: StepWindows) -> tuple[I64, bool]:
    """The steps' numbers: the program's own where each step has one, else counted from 0 in the recording."""
    found = [_NUMBER.search(name) for name in steps.names]
    if steps.sign in ("ProfilerStep", "range") and found and all(found):
        numbers = np.array([int(match[1][-12:]) for match in found if match], dtype=np.int64)
        if bool((np.diff(numbers) > 0).all()):
            return numbers, steps.sign == "ProfilerStep"
    return steps.number.astype(np.int64), False


def _parts(trace: Trace, rows: npt.NDArray[np.intp], starts: I64, ends: I64) -> I64:
    """[steps, PARTS] of one GPU."""
    operations = trace.operations
    classes = trace.classes[rows]
    coarse = np.where(np.isin(classes, COPIES), 2, np.where(classes == OperationClass.COMMUNICATION, 1, 0))
    sets = _analysis.set_time_ns(
        operations.start_ns[rows],
        operations.end_ns[rows],
        full(len(rows), 0, np.int32),
        coarse.astype(np.int32),
        starts,
        ends,
        full(len(starts), 0, np.int32),
        3,
    )
    # Bit 0 compute, bit 1 communication, bit 2 copies; the lowest bit of a set has priority.
    return np.stack(
        [
            sets[:, 1::2].sum(axis=1),
            sets[:, [2, 6]].sum(axis=1),
            sets[:, 4],
            sets[:, 0],
            sets[:, [2, 3, 6, 7]].sum(axis=1),
        ],
        axis=1,
    )


def _notes(unit: _Unit, steps: int, found: RankCollectives, lines: LineTimes) -> tuple[str, ...]:
    out = [] if steps else ["it has no steps: only its collectives are compared"]
    out += _unit_notes(unit)
    if found.outside:
        out.append(f"{found.outside} collectives lie outside of steps and are not compared")
    if found.left_out:
        whole = steps - found.steps_left_out
        where = f"in its last {whole:,} steps" if whole > 0 else f"up to the {AT_MOST:,}th of its last step"
        out.append(f"only its collectives {where} are compared, {found.left_out:,} are left out")
    if not lines.complete:
        out.append(f"only its {len(lines.key)} most expensive lines are compared")
    return tuple(out)


def _unit_notes(unit: _Unit) -> tuple[str, ...]:
    out = []
    if unit.sibling_gpus:
        out.append(
            f"its process drives {unit.sibling_gpus + 1} GPUs: each counts as a rank, idle time has no lines"
        )
    if unit.minor:
        listed = ", ".join(map(str, unit.minor))
        out.append(f"its process also used GPU {listed} a little: that is not counted")
    return tuple(out)
