# SPDX-License-Identifier: Apache-2.0
"""The tree of stacks from calls that know their callers, against walking up from every call."""

from __future__ import annotations

import random

import numpy as np
import pytest

from profiling_lab import _analysis

NONE, FRAME, MODULE, PASSING, FORWARD = range(5)


def walked(parent: list[int], name: list[int], role: list[int], call: int) -> list[tuple[int, int]]:
    """(name, module) of the frames of a call, innermost first: a `forward` has the module named before it."""
    way = []
    while call >= 0:
        way.append(call)
        call = parent[call]
    out, module = [], -1
    for at in reversed(way):
        what = role[name[at]]
        if what == MODULE:
            module = name[at]
        elif what != NONE:
            out.append((name[at], module if what == FORWARD else -1))
            module = module if what == PASSING else -1
    return out[::-1]


@pytest.mark.parametrize("seed", range(30))
def test_stacks_equal_those_that_are_walked(seed: int) -> None:
    dice = random.Random(seed)
    calls, names = dice.choice((1, 7, 300)), dice.choice((1, 4, 12))
    order = list(range(calls))
    dice.shuffle(order)  # callers may come after those they call
    parent = [0] * calls
    for place, call in enumerate(order):
        parent[call] = order[dice.randrange(place)] if place and dice.random() < 0.9 else -1
    name = [dice.randrange(names) for _ in range(calls)]
    role = [dice.randrange(5) for _ in range(names)]
    stack, above, node_name, node_module = _analysis.fold_stacks(
        np.array(parent, dtype=np.int32), np.array(name, dtype=np.int32), np.array(role, dtype=np.uint8)
    )

    def frames(node: int) -> list[tuple[int, int]]:
        out = []
        while node > 0:
            out.append((int(node_name[node]), int(node_module[node])))
            node = int(above[node])
        return out

    expected = [walked(parent, name, role, call) for call in range(calls)]
    assert [frames(node) for node in stack.tolist()] == expected
    assert len(set(stack.tolist())) == len({tuple(frames) for frames in expected}), (
        "equal stacks are one node"
    )
    assert (above[1:] < np.arange(1, len(above))).all(), "callers come first"


def test_callers_in_a_circle_are_cut() -> None:
    parent = np.array([1, 2, 0, 0], dtype=np.int32)
    stack, above, _, _ = _analysis.fold_stacks(
        parent, np.arange(4, dtype=np.int32), np.full(4, FRAME, dtype=np.uint8)
    )
    assert len(above) == 5 and sorted(stack.tolist()) == [1, 2, 3, 4]


def test_parents_by_id() -> None:
    none = int(np.iinfo(np.int64).min)
    ids = np.array([5, 7, 7, none], dtype=np.int64)
    parents = np.array([none, 5, 99, 7], dtype=np.int64)
    assert _analysis.parents_by_id(ids, parents).tolist() == [-1, 0, -1, 2], "of equal ids the last one"


@pytest.mark.parametrize("parent", [-2, 1])
def test_a_parent_must_be_a_row(parent: int) -> None:
    one = np.zeros(1, dtype=np.int32)
    with pytest.raises(ValueError, match="a parent is no row"):
        _analysis.fold_stacks(np.array([parent], dtype=np.int32), one, np.zeros(1, dtype=np.uint8))
    with pytest.raises(ValueError, match="a name has no role"):
        _analysis.fold_stacks(one - 1, one + 5, np.zeros(1, dtype=np.uint8))
