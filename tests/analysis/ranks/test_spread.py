# SPDX-License-Identifier: Apache-2.0
"""Merging is associative and commutative, and says what the ranks' own values say."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from profiling_lab.analysis.ranks.spread import NONE, Spread, merged_by_name

Values = dict[int, dict[int, int]]  # by rank, by key


def spread_of(rank: int, values: dict[int, int], texts: bool = False) -> Spread:
    keys = np.array([str(key) if texts else key for key in values], dtype=np.str_ if texts else np.int64)
    return Spread.of(rank, keys, np.array(list(values.values()), dtype=np.int64))


def rows(spread: Spread) -> dict[object, tuple[int, ...]]:
    columns = (getattr(spread, name).tolist() for name in Spread.__slots__)
    return {row[0]: row[1:] for row in zip(*columns, strict=True)}


def oracle(values: Values) -> dict[object, tuple[int, ...]]:
    out: dict[object, tuple[int, ...]] = {}
    for key in sorted({key for each in values.values() for key in each}):
        found = sorted((-each[key], rank) for rank, each in values.items() if key in each)
        least = min((each[key], rank) for rank, each in values.items() if key in each)
        total = -sum(value for value, _ in found)
        second = -found[1][0] if len(found) > 1 else NONE
        out[key] = (len(found), total, -found[0][0], found[0][1], second, *least)
    return out


many_ranks = st.dictionaries(
    st.integers(0, 20),
    st.dictionaries(st.integers(-3, 5), st.integers(-4, 4), max_size=6),
    min_size=1,
    max_size=7,
)


@given(many_ranks, st.randoms(use_true_random=False))
def test_any_tree_gives_what_the_values_say(values: Values, chance: random.Random) -> None:
    parts = [spread_of(rank, each) for rank, each in values.items()]
    chance.shuffle(parts)
    while len(parts) > 1:
        width = chance.randint(2, 3)
        some = [parts.pop(chance.randrange(len(parts))) for _ in range(min(width, len(parts)))]
        parts.append(Spread.merged(some))
    assert rows(Spread.merged(parts)) == oracle(values)


@given(many_ranks)
def test_texts_are_keys_too(values: Values) -> None:
    merged = Spread.merged([spread_of(rank, each, texts=True) for rank, each in values.items()])
    assert rows(merged) == {str(key): row for key, row in oracle(values).items()}


def test_rows_are_found_by_key() -> None:
    spread = spread_of(1, {5: 50, 3: 30})
    assert spread.rows(np.array([3, 4, 5, 9])).tolist() == [0, -1, 1, -1]
    assert spread_of(1, {}).rows(np.array([3])).tolist() == [-1]
    named = merged_by_name([{"a": spread}, {"b": spread}, {"a": spread_of(2, {5: 7})}])
    assert sorted(named) == ["a", "b"] and named["a"].ranks.tolist() == [1, 2]
