# SPDX-License-Identifier: Apache-2.0
"""What one rank gives to the path across ranks: its graph, in the last steps that all ranks have.

That is far more than a RankSummary: some MB. It is asked of few ranks, and of few steps.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import numpy.typing as npt

from profiling_lab import _analysis
from profiling_lab.analysis.critical_path.build import build_graph
from profiling_lab.analysis.critical_path.graph import Graph
from profiling_lab.analysis.critical_path.pieces import Piece, cut
from profiling_lab.analysis.critical_path.recorder_time import is_noted
from profiling_lab.analysis.critical_path.walk import Boundaries, StepsFound, steps_found
from profiling_lab.analysis.ranks.clock_move import moved
from profiling_lab.analysis.ranks.kinds import Series
from profiling_lab.analysis.ranks.options import Options
from profiling_lab.analysis.ranks.reading import FileSummary
from profiling_lab.analysis.ranks.summary import RankSummary
from profiling_lab.errors import LabError
from profiling_lab.records import dataclass
from profiling_lab.trace import Trace
from profiling_lab.trace.columns import I64, OperationKind, dense
from profiling_lab.trace.operation_classes import OperationClass
from profiling_lab.trace.step_windows import StepWindows, step_windows

MOST_MOMENTS = 400_000
"""of one rank: with more there are fewer steps"""


@dataclass(frozen=True, slots=True)
class KernelTimes:
    """By name of a kernel, in the steps of the part."""

    names: tuple[str, ...]
    count: I64
    ns: I64
    blocks: I64
    """thread blocks launched, 0 where the recording does not say"""


@dataclass(frozen=True, slots=True)
class RankPart:
    """One rank, on the clock of the job."""

    rank: int
    piece: Piece
    steps: I64
    """the numbers of the steps"""
    begin: Boundaries
    end: Boundaries
    met: dict[Series, tuple[I64, I64]]
    """by series the numbers of its collectives, and their dependencies in the piece"""
    kernels: KernelTimes
    is_noted: bool
    """its recording says what it took of the calls"""


@dataclass(frozen=True, slots=True)
class NoPart:
    """Why a rank has none."""

    rank: int
    why: str


def parts_of(
    file: FileSummary, options: Options, ranks: tuple[int, ...], steps: I64
) -> tuple[RankPart | NoPart, ...]:
    """The parts of those ranks of a file that are asked for, with these steps or the last of them."""
    if not any(rank.facts.rank in ranks for rank in file.ranks):
        return ()
    try:
        with Trace.open(file.path) as trace:
            part = trace.windowed(options.window) if options.window is not None else trace
            return parts_in(part, file, options, ranks, steps)
    except LabError as error:
        return tuple(NoPart(rank.facts.rank or 0, str(error)) for rank in file.ranks)


def parts_in(
    trace: Trace, file: FileSummary, options: Options, ranks: tuple[int, ...], steps: I64
) -> tuple[RankPart | NoPart, ...]:
    """The same of an open file. Raises NotEnoughDataError where launches are missing."""
    graph = build_graph(trace.whole, options.own)
    found = step_windows(trace, options.steps_by)
    return tuple(_part(trace, graph, found, rank, steps) for rank in file.ranks if rank.facts.rank in ranks)


def _part(
    trace: Trace, graph: Graph, all_steps: StepWindows, rank: RankSummary, steps: I64
) -> RankPart | NoPart:
    number, pids = rank.facts.rank or 0, list(trace.pids)
    process = pids.index(rank.facts.pid)
    mine = all_steps.only(np.flatnonzero(all_steps.process == process))
    chosen = np.flatnonzero(np.isin(rank.number, steps))
    found = steps_found(graph, mine.only(chosen))
    numbers = rank.number[chosen[np.isin(mine.number[chosen], found.steps.number)]]
    if not len(found.steps):
        return NoPart(number, "none of its steps begins and ends with recorded launches or operations")
    first = _enough(graph, process, found)
    found = StepsFound(
        found.steps.only(np.arange(first, len(found.steps))),
        *(Boundaries(each.moment[first:], each.to_ns[first:]) for each in (found.begin, found.end)),
    )
    window = found.steps
    first_ns = int(min(window.start_ns[0], window.host_start_ns[0]))
    piece, row = cut(graph, process, first_ns, int(max(window.end_ns[-1], window.host_end_ns[-1])))
    piece = piece.moved(partial(moved, moves=rank.moves))
    bounds = [Boundaries(row[each.moment], each.to_ns) for each in (found.begin, found.end)]
    known = (bounds[0].moment >= 0) & (bounds[1].moment >= 0)
    if not known.any():
        return NoPart(number, "its steps have no recorded launches or operations")
    return RankPart(
        rank=number,
        piece=piece,
        steps=numbers[first:][known],
        begin=Boundaries(bounds[0].moment[known], bounds[0].to_ns[known]),
        end=Boundaries(bounds[1].moment[known], bounds[1].to_ns[known]),
        met=_met(piece, rank),
        kernels=_kernels(trace, process, int(window.start_ns[0]), int(window.end_ns[-1])),
        is_noted=is_noted(trace, process),
    )


def _enough(graph: Graph, process: int, found: StepsFound) -> int:
    """The first step, so that what is from there on is not too much."""
    time_ns = graph.time_ns[graph.process == process]
    behind = len(time_ns) - np.searchsorted(time_ns, found.steps.start_ns)
    few = np.flatnonzero(behind - behind[-1] <= MOST_MOMENTS)
    return int(few[0]) if len(few) else len(behind) - 1


def _met(piece: Piece, rank: RankSummary) -> dict[Series, tuple[I64, I64]]:
    """Which collective each number of a series is: the one that began and ended then."""
    edges = piece.collectives()
    at = {
        pair: edge
        for *pair_of, edge in zip(
            piece.time_ns[piece.source[edges]].tolist(),
            piece.time_ns[piece.target[edges]].tolist(),
            edges.tolist(),
            strict=True,
        )
        for pair in (tuple(pair_of),)
    }
    out = {}
    for series, found in rank.collectives.series.items():
        times = zip(found.start_ns.tolist(), found.end_ns.tolist(), strict=True)
        edge = np.array([at.get(pair, -1) for pair in times], dtype=np.int64)
        if (edge >= 0).any():
            out[series] = found.number[edge >= 0], edge[edge >= 0]
    return out


def _kernels(trace: Trace, process: int, start_ns: int, end_ns: int) -> KernelTimes:
    operations = trace.operations
    rows = np.flatnonzero(
        (operations.process == process)
        & (operations.kind == OperationKind.KERNEL)
        & (trace.classes == OperationClass.COMPUTE)
        & (operations.start_ns >= start_ns)
        & (operations.start_ns < end_ns)
    )
    number, used = dense(operations.name[rows])
    ns, count = _analysis.sum_by_key(number, operations.duration_ns[rows], len(used))
    blocks, _ = _analysis.sum_by_key(number, _blocks(trace)[rows], len(used))
    names = tuple(operations.names[row] for row in used.tolist())
    return KernelTimes(names, count, ns, blocks)


def _blocks(trace: Trace) -> npt.NDArray[np.int64]:
    """Per operation its thread blocks, 0 unknown."""
    found = trace.launch_shapes
    if found is None:
        return np.zeros(len(trace.operations), dtype=np.int64)
    blocks = np.array([*(shape.blocks for shape in found.shapes), 0], dtype=np.int64)
    return np.asarray(blocks[found.number], dtype=np.int64)
