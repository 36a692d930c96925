# SPDX-License-Identifier: Apache-2.0
"""The replay of the allocator's events against a model of the allocator, to the byte."""

from __future__ import annotations

import contextlib
import pickle
import random
from pathlib import Path

import numpy as np
import pytest
from memory_model.fake_allocator import FakeAllocator, OutOfMemoryError

from profiling_lab.analysis.memory.replay import BEFORE, Replay, replay, rounded
from profiling_lab.trace.memory_history import AllocatorSettings
from profiling_lab.trace.snapshot.source import SnapshotSource

MIB = 1 << 20


def replayed(allocator: FakeAllocator, folder: Path) -> Replay:
    path = folder / "snapshot.pickle"
    path.write_bytes(pickle.dumps(allocator.snapshot()))
    (history,) = SnapshotSource(path).memory_history()
    return replay(history)


def use(allocator: FakeAllocator, dice: random.Random, operations: int) -> None:
    """Allocate and free at random, with delayed frees and calls of empty_cache."""
    alive: list[int] = []
    waiting: list[int] = []
    for _ in range(operations):
        chance = dice.random()
        if chance < 0.55 or not alive:
            size = int(2 ** dice.uniform(0, 26))
            with contextlib.suppress(OutOfMemoryError):
                alive.append(allocator.malloc(size))
        elif chance < 0.9:
            allocator.free(alive.pop(dice.randrange(len(alive))))
        elif chance < 0.95:
            waiting.append(alive.pop(dice.randrange(len(alive))))
            allocator.free(waiting[-1], later=True)
        elif waiting:
            allocator.completed(waiting.pop())
        else:
            allocator.empty_cache()


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("form", ["plain", "expandable", "max_split", "little"])
def test_peak_is_the_allocators_own_to_the_byte(seed: int, form: str, tmp_path: Path) -> None:
    allocator = FakeAllocator(
        400 * MIB if form == "little" else 1 << 40,
        expandable=form == "expandable",
        max_split=30 * MIB if form == "max_split" else 1 << 62,
    )
    use(allocator, random.Random(seed), 400)
    found = replayed(allocator, tmp_path)
    assert found.peak_bytes == allocator.peak
    assert int(found.allocated[-1]) == allocator.allocated
    assert int(found.reserved[-1]) == allocator.reserved
    assert found.reserved_peak_bytes == allocator.reserved_peak
    assert found.wrong_sizes == 0 and not found.begins_late
    alive = found.allocations.alive_at(found.peak_event)
    assert int(found.allocations.size[alive].sum()) == allocator.peak


def test_a_rest_that_stays_with_the_block_counts(tmp_path: Path) -> None:
    allocator = FakeAllocator()
    allocator.malloc(19 * MIB + MIB // 2)  # half a MiB of the 20 MiB segment is no block of its own
    found = replayed(allocator, tmp_path)
    assert found.peak_bytes == 20 * MIB == allocator.peak
    assert found.allocations.requested.tolist() == [19 * MIB + MIB // 2]


@pytest.mark.parametrize("seed", range(6))
def test_what_was_there_before_the_history_counts(seed: int, tmp_path: Path) -> None:
    dice = random.Random(seed)
    allocator = FakeAllocator(history=False)
    before = [allocator.malloc(int(2 ** dice.uniform(0, 24))) for _ in range(40)]
    allocator.history, allocator.peak = True, allocator.allocated
    held = allocator.allocated
    for address in before[:20]:
        allocator.free(address)
    use(allocator, dice, 100)
    found = replayed(allocator, tmp_path)
    assert found.begins_late
    assert int((found.allocations.begin == BEFORE).sum()) == 40
    assert found.allocated_before == held
    assert found.peak_bytes == allocator.peak


def test_sizes_of_the_snapshot_win(tmp_path: Path) -> None:
    allocator = FakeAllocator()
    address = allocator.malloc(1000)
    allocator._at(address).size = 4096  # an allocator with other rules
    found = replayed(allocator, tmp_path)
    assert found.wrong_sizes == 1 and found.peak_bytes == 4096


def test_a_lost_free_ends_with_the_next_use_of_the_address(tmp_path: Path) -> None:
    allocator = FakeAllocator()
    allocator.free(allocator.malloc(100))
    allocator.malloc(300)
    allocator.events = [event for event in allocator.events if not event["action"].startswith("free")]
    found = replayed(allocator, tmp_path)
    assert found.allocations.end.tolist() == [2, 3] and found.peak_bytes == 512


@pytest.mark.parametrize(
    ("requested", "divisions", "size"),
    [(1, {}, 512), (512, {}, 512), (513, {}, 1024), (1200 * 1024, {1: 4}, 1280 * 1024),
     (1200 * 1024, {2: 4}, 1200 * 1024), (2 * MIB, {2: 4}, 2 * MIB),
     (2 * MIB + 1, {2: 4}, 2 * MIB + MIB // 2), (600, {1: 4}, 1024)],
)  # fmt: skip
def test_sizes_are_rounded_as_the_settings_say(requested: int, divisions: dict[int, int], size: int) -> None:
    assert rounded(requested, AllocatorSettings(roundup_divisions=divisions)) == size


def test_an_empty_history_has_no_peak(tmp_path: Path) -> None:
    allocator = FakeAllocator(history=False)
    allocator.malloc(100)
    found = replayed(allocator, tmp_path)
    assert found.peak_event == BEFORE and found.peak_bytes == 512 and len(found.allocated) == 0
    assert np.array_equal(found.allocations.alive_at(BEFORE), [0])
