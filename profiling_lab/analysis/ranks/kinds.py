# SPDX-License-Identifier: Apache-2.0
"""Collectives by what they do: which make ranks wait for each other, and how many bytes they move."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

# No rank can be done before the last has come. A broadcast's source need not wait for another rank.
# In an all-to-all, which NCCL makes of a send and a receive per pair, each is done with its own part: they
# all wait for the last to come, and leave at times of their own.
_LEAVE_APART = frozenset({"AllToAll"})
_TOGETHER = frozenset({"AllReduce", "ReduceScatter", "AllGather", "AllToAll", "Barrier"})


@dataclass(frozen=True, slots=True, order=True)
class RankSet:
    """Ranks of a group in their order, as runs (first, step, count). Every rank of a job names all members of
    its groups; groups of many ranks are few runs.
    """

    runs: tuple[tuple[int, int, int], ...] = ()

    @classmethod
    def of(cls, ranks: Sequence[int]) -> RankSet:
        runs: list[tuple[int, int, int]] = []
        for rank in ranks:
            first, step, count = runs[-1] if runs else (rank, 0, 0)
            if count == 1 and rank != first:
                runs[-1] = (first, rank - first, 2)
            elif count > 1 and rank == first + step * count:
                runs[-1] = (first, step, count + 1)
            else:
                runs.append((rank, 1, 1))
        return cls(tuple(runs))

    def __len__(self) -> int:
        return sum(count for _, _, count in self.runs)

    def __contains__(self, rank: int) -> bool:
        return any(rank in range(first, first + step * count, step) for first, step, count in self.runs)

    def __iter__(self) -> Iterator[int]:
        for first, step, count in self.runs:
            yield from range(first, first + step * count, step)


@dataclass(frozen=True, slots=True, order=True)
class Series:
    """Collectives that are numbered together: the same number on two ranks is the same collective."""

    kind: str
    group: str
    """the process group or communicator, '' where the file names none"""
    group_ranks: RankSet
    """the ranks of the group, empty where the file does not say"""
    size: int
    """ranks in the group, 0 where the file does not say"""
    numbered: str
    """'sequence': by the number that the program gave; 'order': by order of occurrence within a step"""

    @property
    def members(self) -> tuple[int, ...]:
        return tuple(self.group_ranks)

    @property
    def is_together(self) -> bool:
        """Whether every rank waits for the last."""
        return self.kind in _TOGETHER

    @property
    def ends_together(self) -> bool:
        """Whether all ranks leave at the same time, so that clocks can be aligned by it."""
        return self.is_together and self.kind not in _LEAVE_APART

    def __str__(self) -> str:
        return f"{self.kind} {self.group}".rstrip()


_MEASURED = frozenset(
    {"AllReduce", "AllGather", "ReduceScatter", "AllToAll", "Broadcast", "Reduce", "SendRecv"}
)


def has_bandwidth(kind: str) -> bool:
    """Whether nccl-tests define a bandwidth for this kind that one rank's message size gives."""
    return kind in _MEASURED


def algorithm_bytes(kind: str, size_bytes: int, ranks: int) -> int:
    """What nccl-tests divide by the time for algorithm bandwidth: the whole buffer, of all ranks' parts.

    size_bytes: as for `bus_bytes`.
    """
    return size_bytes * ranks if kind in ("AllGather", "ReduceScatter") else size_bytes


def bus_bytes(kind: str, size_bytes: int, ranks: int) -> float:
    """What each link carries, by NCCL's convention for bus bandwidth.

    size_bytes: of one rank's part for AllGather and ReduceScatter, of the whole buffer for the others.
    """
    if kind == "AllReduce":
        return 2 * size_bytes * (ranks - 1) / ranks
    if kind in ("AllGather", "ReduceScatter"):
        return float(size_bytes * (ranks - 1))
    if kind == "AllToAll":
        return size_bytes * (ranks - 1) / ranks
    return float(size_bytes)
