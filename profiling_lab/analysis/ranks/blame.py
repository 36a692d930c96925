# SPDX-License-Identifier: Apache-2.0
"""Which rank, which line, and of what kind: found by what a step would be without it.

"Without it" is: the rank takes for it as long as the other ranks do, the median of them. What they do not
do at all is gone, with its waits.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt

from profiling_lab.analysis.critical_path.kinds import GPU, KINDS, Kind
from profiling_lab.analysis.critical_path.what_if import Touched
from profiling_lab.analysis.ranks.beside import alone, beside_waits
from profiling_lab.analysis.ranks.joint_path import WORK, JointPath
from profiling_lab.analysis.ranks.path_part import KernelTimes
from profiling_lab.records import dataclass

SLOW_GPU, SLOW_HOST, UNEQUAL_WORK = "slow GPU", "slow host", "unequal work"
EXPLAINS_FRAC = 0.5
"""of what mending all of a rank would win, what a line must win to be named"""
OFTEN_FRAC = 0.5
"""of the steps, those that must be shorter"""
_LINES = 8
"""lines of a rank of which the gain is computed"""
_SAME_FRAC = 0.01
"""two ranks do the same work where their kernels' numbers and thread blocks differ no more"""
_SLOWER = 1.02
"""from which factor on a line, or a GPU at the same work, takes longer than on the others"""
_MOST_FRAC = 0.8
"""of a GPU's time in kernels that others have too, how much must be slower by about the same factor"""
_MORE = 1.2
"""times as many operations are more work"""
_LAUNCH_NS = 100_000
"""of the host for an operation of PyTorch, at most: a host that takes longer does something else, too"""
_ERRORS = 3.0
"""standard errors by which a rank's work must exceed the others' on the mean of the steps"""
_NONE = np.empty(0, dtype=np.intp)
_ABOUT = 0.5
"""about the same: the excess over 1 differs from the median's by no more than this part of it"""


@dataclass(frozen=True, slots=True)
class Blame:
    """What one rank holds a step up with. Times are per step."""

    rank: int
    cause: str
    """'slow GPU', 'slow host' or 'unequal work'"""
    line: str
    """file:line; between two lines where no sample says more; '' where no line accounts for half"""
    name: str
    """of what has no line, the kernel or call that accounts for half; '' where there is none either"""
    doing: str
    """what the time is: 'kernel', 'host code', 'data loading' (critical_path.kinds.KINDS)"""
    line_ns: int
    """of the line on this rank"""
    others_ns: int
    """of the line on the other ranks, the median"""
    gain_ns: int
    """what the step would win if the line, or all of the rank where no line is named, took as long as on the
    other ranks; kernels next to collectives that wait for this rank are then as fast as on it"""
    rank_gain_ns: int
    """the same for all of the rank's work"""
    slower: float
    """by which factor its kernels take longer for the same work; 1.0 where they do not"""
    behind: int | None = None
    """the rank that must be mended first: alone this one would win too little, as steps wait for it. The
    gains are what is won on top"""


@dataclass(frozen=True, slots=True)
class Hidden:
    """A line whose GPU work only one rank has, and which holds no step up: something else sets it."""

    rank: int
    line: str
    excess_ns: int
    """per step, more than on the other ranks"""


@dataclass(frozen=True, slots=True)
class _Mended:
    """A rank that takes no longer than the others, and with it what its lateness slowed on them."""

    rank: int
    slowed: frozenset[tuple[int, int]]
    """ranks and items of which the kernels were next to its waits"""
    changes: Sequence[tuple[Touched, float]]
    gains_ns: npt.NDArray[np.float64]
    """what each step wins by it"""


class Suspects:
    """What each rank holds the others up with."""

    def __init__(self, path: JointPath) -> None:
        self._path = path
        graph, ranks = path.graph, len(path.ranks)
        self._mine = path.work_ns
        self._others = np.stack([np.median(np.delete(self._mine, r, axis=0), axis=0) for r in range(ranks)])
        self._parts: dict[tuple[int, int], npt.NDArray[np.intp]] = {}
        key = path.rank_of_part.astype(np.int64) * len(path.items) + path.item_of_part
        order = np.argsort(key, kind="stable")
        for number, rows in zip(*_groups(key[order]), strict=True):
            self._parts[divmod(number, len(path.items))] = order[rows]
        self._rank_of_edge = graph.process[graph.targets(np.arange(len(graph.source)))]
        self._beside = beside_waits(path)
        self._first: _Mended | None = None
        """what is mended already where gains are asked for"""

    def blames(self, least_ns: float) -> tuple[Blame, ...]:
        """Of each rank without which steps would be shorter by `least_ns`: the largest first. Then those that
        the first one hides: where two ranks hold steps up in turns, mending one leaves the other.
        """
        ranks = range(len(self._path.ranks))
        found = self._blames(ranks, least_ns)
        if found:
            first = self._path.ranks.index(found[0].rank)
            slowed = self._undisturbed(first, ())
            changes = [*self._all_of(first), *slowed.values()]
            self._first = _Mended(first, frozenset(slowed), changes, self._path.gains_ns(changes))
            known = {blame.rank for blame in found}
            found += self._blames([r for r in ranks if self._path.ranks[r] not in known], least_ns)
            self._first = None
        return tuple(found)

    def _blames(self, ranks: Sequence[int], least_ns: float) -> list[Blame]:
        found = []
        for rank in ranks:
            gains = self._gains(self._all_of(rank))
            blame = self._blame(rank, gains) if _often(gains, least_ns) else None
            if blame is not None and blame.gain_ns >= least_ns:
                found.append(blame)
        return sorted(found, key=lambda blame: (-blame.gain_ns, blame.rank))

    def _all_of(self, rank: int) -> list[tuple[Touched, float]]:
        """All that a rank does as on the others."""
        return self._changes(rank, range(len(self._path.items)), (0, 1))

    def _is_mended(self, rank: int, item: int) -> bool:
        """Whether a rank's kernels at an item are mended already."""
        first = self._first
        return first is not None and (rank == first.rank or (rank, item) in first.slowed)

    def _gains(self, changes: Sequence[tuple[Touched, float]]) -> npt.NDArray[np.float64]:
        """What each step would be shorter by, on top of what is mended already."""
        if self._first is None:
            return self._path.gains_ns(changes)
        return np.asarray(self._path.gains_ns([*self._first.changes, *changes]) - self._first.gains_ns)

    def hidden(self, blamed: Collection[int], least_ns: float) -> tuple[Hidden, ...]:
        """Lines that take this much longer on a rank than on the others, of ranks that are not to blame.

        Only with more operations: the same ones may be slower next to a collective that waits.
        """
        found = []
        for rank, number in enumerate(self._path.ranks):
            excess = self._mine[rank, :, 0] - self._others[rank, :, 0]
            item = int(np.argmax(excess))
            if number in blamed or excess[item] < least_ns or not self._path.line(item):
                continue
            if self._launches(rank, item) > _MORE:
                found.append(Hidden(number, self._path.line(item), int(excess[item])))
        return tuple(found)

    def _changes(
        self, rank: int, items: Sequence[int], groups: tuple[int, ...]
    ) -> list[tuple[Touched, float]]:
        """Lines of a rank as on the others."""
        out: list[tuple[Touched, float]] = []
        for item in items:
            rows = self._parts.get((rank, item))
            if rows is None:
                continue
            if len(groups) == len(WORK):
                if self._is_alone(rank, item):
                    out.append((Touched(rows, self._waits(rank, item)), 0.0))
                    continue
                out += self._waiting(rank, item, rows)
            for group in groups:
                mine_ns, others_ns = self._mine[rank, item, group], self._others[rank, item, group]
                is_mended = WORK[group] == GPU and self._is_mended(rank, item)
                if mine_ns > _SLOWER * others_ns and not is_mended:
                    of = rows[self._path.work_of_part[rows] == group]
                    out.append((Touched(of, _NONE), others_ns / mine_ns))
        return out

    def _waits(self, rank: int, item: int) -> npt.NDArray[np.intp]:
        """The dependencies that are gone with an item."""
        if not self._path.line(item):
            return _NONE
        site = self._path.items[item][0]
        return np.flatnonzero((self._path.graph.owner == site) & (self._rank_of_edge == rank))

    def _waiting(self, rank: int, item: int, rows: npt.NDArray[np.intp]) -> list[tuple[Touched, float]]:
        """The host's waits at a line where the others do not wait, and the pauses of extra operations."""
        kind = self._path.graph.parts.kind
        out = []
        if self._waits_alone(rank, item):
            out.append((Touched(rows[kind[rows] == Kind.WAIT], self._waits(rank, item)), 0.0))
        launches = self._launches(rank, item)
        if launches > _MORE:
            pauses = rows[np.isin(kind[rows], (Kind.BETWEEN, Kind.LATENCY))]
            out.append((Touched(pauses, _NONE), 1 / launches))
        return out

    def _waits_alone(self, rank: int, item: int) -> bool:
        """Whether the host waits for the GPU at a line at which other ranks do not."""
        kind = self._path.graph.parts.kind

        def waits(of: int) -> bool:
            rows = self._parts.get((of, item))
            return rows is not None and bool((kind[rows] == Kind.WAIT).any())

        rest = [r for r in range(len(self._path.ranks)) if r != rank]
        return waits(rank) and 2 * sum(map(waits, rest)) < len(rest)

    def _is_alone(self, rank: int, item: int) -> bool:
        """Whether the other ranks have nothing of a line; a line with communication they have."""
        rest = [r for r in range(len(self._path.ranks)) if r != rank]
        have = sum((other, item) in self._parts for other in rest)
        return have * 2 < len(rest) and not np.isin(self._parts[rank, item], self._path.transfers).any()

    def _blame(self, rank: int, all_gains: npt.NDArray[np.float64]) -> Blame | None:
        """None where its work exceeds that of the others only by chance."""
        path = self._path
        every = range(len(path.items))
        total = float(all_gains.mean())
        line, gain = self._line(rank)
        if gain < EXPLAINS_FRAC * total:
            line, gain = None, total
        by_group = [self._gain(rank, every, (group,)) for group in range(len(WORK))]
        waits = line is not None and max(by_group) < EXPLAINS_FRAC * total and self._waits_alone(rank, line)
        if waits:
            return self._made(rank, SLOW_HOST, line, KINDS[Kind.WAIT], gain, total)
        group = int(np.argmax(by_group))
        if line is not None:
            group = int(np.argmax(self._mine[rank, line] - self._others[rank, line]))
        items = np.ones(len(path.items), dtype=bool) if line is None else np.arange(len(path.items)) == line
        if not _steady(path.by_step(items, group), rank):
            return None
        slower = self._slower(rank)
        if WORK[group] == GPU and slower > 1.0:
            return self._made(rank, SLOW_GPU, None, "", total, total, slower)
        is_more = line is not None and self._launches(rank, line) > _MORE and self._is_launching(rank, line)
        cause = UNEQUAL_WORK if WORK[group] == GPU or is_more else SLOW_HOST
        kind = path.doing(rank, line, group) if line is not None else None
        return self._made(rank, cause, line, KINDS[kind] if kind is not None else "", gain, total)

    def _line(self, rank: int) -> tuple[int | None, float]:
        """The line without which most would be won, and how much."""
        excess = (self._mine[rank] - self._others[rank]).sum(axis=1)
        top = np.argsort(-excess, kind="stable")[:_LINES].tolist()
        waits = [s for r, s in self._parts if r == rank and self._waits_alone(rank, s)]
        gains = {
            item: self._gain(rank, [item], (0, 1))
            for item in dict.fromkeys([*top, *waits])
            if (rank, item) in self._parts
        }
        best = max(gains, key=lambda item: gains[item], default=None)
        return best, gains[best] if best is not None else 0.0

    def _gain(self, rank: int, items: Sequence[int], groups: tuple[int, ...]) -> float:
        return float(self._gains(self._changes(rank, items, groups)).mean())

    def _made(
        self,
        rank: int,
        cause: str,
        item: int | None,
        doing: str,
        gain: float,
        total: float,
        slower: float = 1.0,
    ) -> Blame:
        mine_ns, others_ns = (
            (0, 0) if item is None else (int(ns[rank, item].sum()) for ns in (self._mine, self._others))
        )
        path, in_all = self._path, max(total, self._gain_in_all(rank, None))
        line, name = ("", "") if item is None else (path.line(item), path.name(item))
        return Blame(
            rank=path.ranks[rank],
            cause=cause,
            line=line,
            name=name,
            doing=doing,
            line_ns=mine_ns,
            others_ns=others_ns,
            gain_ns=int(in_all if item is None else max(gain, self._gain_in_all(rank, item))),
            rank_gain_ns=int(in_all),
            slower=slower,
            behind=None if self._first is None else path.ranks[self._first.rank],
        )

    def _gain_in_all(self, rank: int, item: int | None) -> float:
        """With what other ranks win because no collective waits next to their kernels."""
        items = range(len(self._path.items)) if item is None else [item]
        mended = self._changes(rank, items, (0, 1))
        others = self._undisturbed(rank, items if item is not None else ())
        return float(self._gains([*mended, *others.values()]).mean())

    def _undisturbed(self, rank: int, items: Sequence[int]) -> dict[tuple[int, int], tuple[Touched, float]]:
        """By rank and item kernels of other ranks next to a collective that waits for this one: as long as
        they take here.
        """
        out: dict[tuple[int, int], tuple[Touched, float]] = {}
        for (other, same), rows in self._parts.items():
            mine_ns, its_ns = self._mine[rank, same, 0], self._mine[other, same, 0]
            if other == rank or same in items or self._is_mended(other, same):
                continue
            if not 0 < mine_ns < its_ns / _SLOWER:
                continue
            of = rows[self._beside[rows]]
            if len(of) and abs(self._launches(other, same) - 1) <= _SAME_FRAC:
                counted = of[self._path.step_of_part[of] >= 0]
                beside_ns = self._path.graph.parts.ns[counted].sum() / max(self._path.lengths, 1)
                if beside_ns:
                    out[other, same] = (Touched(of, _NONE), alone(mine_ns, its_ns, beside_ns))
        return out

    def _launches(self, rank: int, item: int) -> float:
        """How many times as many GPU operations a line has on a rank as on the others."""
        others = [self._operations(r, item) for r in range(len(self._path.ranks)) if r != rank]
        mine, median = self._operations(rank, item), float(np.median(others))
        return mine / median if median else (np.inf if mine else 1.0)

    def _is_launching(self, rank: int, item: int) -> bool:
        """Whether a line's host time is no more than what its operations take to launch."""
        host_ns = self._mine[rank, item, 1] * max(self._path.lengths, 1)
        return bool(host_ns <= _LAUNCH_NS * self._operations(rank, item))

    def _operations(self, rank: int, item: int) -> int:
        """Of a line on the GPU, in all steps."""
        rows = self._parts.get((rank, item))
        if rows is None:
            return 0
        return int(((self._path.work_of_part[rows] == 0) & (self._path.step_of_part[rows] >= 0)).sum())

    def _slower(self, rank: int) -> float:
        """By which factor the kernels of a rank take longer for the same work, 1.0 where they do not."""
        parts = self._path.parts
        mine = _times(parts[rank].kernels)
        others = [_times(part.kernels) for r, part in enumerate(parts) if r != rank]
        ratio, weight, total = [], [], 0.0
        for name, (count, ns, blocks) in mine.items():
            there = [each[name] for each in others if name in each]
            total += ns
            if not there:
                continue
            counts, times, sizes = (np.median([each[i] for each in there]) for i in range(3))
            if abs(count - counts) > _SAME_FRAC * counts or abs(blocks - sizes) > _SAME_FRAC * sizes:
                continue
            ratio.append(ns / times if times else 1.0)
            weight.append(ns)
        if not ratio:
            return 1.0
        ratios, weights = np.array(ratio), np.array(weight)
        order = np.argsort(ratios)
        median = float(ratios[order][np.searchsorted(np.cumsum(weights[order]), weights.sum() / 2)])
        about = np.abs(ratios - median) <= _ABOUT * (median - 1)
        few = len(ratio) < 2
        return 1.0 if few or median < _SLOWER or weights[about].sum() < _MOST_FRAC * total else median


def _times(kernels: KernelTimes) -> dict[str, tuple[int, int, int]]:
    columns = (kernels.count.tolist(), kernels.ns.tolist(), kernels.blocks.tolist())
    return dict(zip(kernels.names, zip(*columns, strict=True), strict=True))


def _often(gains: npt.NDArray[np.float64], least_ns: float) -> bool:
    """Whether the steps win this much on the mean, and most of them at least half of it."""
    if not len(gains) or gains.mean() < least_ns:
        return False
    return bool((gains >= least_ns / 2).mean() >= OFTEN_FRAC)


def _steady(work_ns: npt.NDArray[np.float64], rank: int) -> bool:
    """Whether a rank's work [rank, step] exceeds that of the others by more than chance."""
    more = work_ns[rank] - np.median(np.delete(work_ns, rank, axis=0), axis=0)
    error = more.std(ddof=1) / np.sqrt(len(more)) if len(more) > 1 else 0.0
    return bool(more.mean() > _ERRORS * error)


def _groups(key: npt.NDArray[np.int64]) -> tuple[list[int], list[npt.NDArray[np.intp]]]:
    """Equal values of a sorted column, and their rows."""
    values, first = np.unique(key, return_index=True)
    return values.tolist(), np.split(np.arange(len(key)), first[1:]) if len(key) else []
