# SPDX-License-Identifier: Apache-2.0
"""The amounts of parts that are shorter than a sample, against simulated samples whose truth is known."""

from __future__ import annotations

import numpy as np
import pytest

from profiling_lab.analysis.counters.fit import Amounts, SampleBlock, amounts, blocks_of

SAMPLE_NS = 100_000
KERNELS_NS = {"copy": 37_000, "product": 61_000, "small": 3_000, "gap": 20_000}
RATES = {"copy": 4000.0, "product": 900.0, "small": 0.0, "gap": 0.0}
"""bytes per nanosecond"""


def samples(count: int, seed: int, noise: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Seconds of each kernel in each sample, and bytes; kernels follow each other with jitter."""
    random = np.random.default_rng(seed)
    names = list(KERNELS_NS)
    steps = 2 * count * SAMPLE_NS // sum(KERNELS_NS.values())
    lengths = np.array([KERNELS_NS[name] for name in names] * steps) * random.uniform(0.9, 1.1, 4 * steps)
    kind = np.tile(np.arange(4), steps)
    ends = np.cumsum(lengths)
    edges = np.arange(count + 1) * SAMPLE_NS
    begin_and_ends = np.append(0, ends)
    of_kind = [np.append(0, np.cumsum(lengths * (kind == i))) for i in range(4)]
    passed = np.stack([np.interp(edges, begin_and_ends, each) for each in of_kind], 1)
    seconds = np.diff(passed, axis=0) * 1e-9
    counts = seconds @ (np.array([RATES[name] for name in names]) * 1e9)
    return seconds, (counts * random.normal(1, noise, count))[:, None]


def fitted(seconds: np.ndarray, counts: np.ndarray, row: list[int] | None = None) -> Amounts:
    rows = np.array(row or range(seconds.shape[1]), np.intp)
    blocks = [SampleBlock.of(seconds[each], counts[each]) for each in blocks_of(len(seconds))]
    return amounts(blocks, rows, int(rows.max()) + 1)[0]


def test_kernels_shorter_than_a_sample_get_what_they_moved() -> None:
    seconds, counts = samples(2000, 1)
    found = fitted(seconds, counts)
    truth = seconds.sum(axis=0) * np.array([*RATES.values()]) * 1e9
    assert found.amount == pytest.approx(truth, rel=1e-6, abs=truth.max() * 1e-6)


def test_error_bars_hold_under_noise() -> None:
    held = []
    for seed in range(40):
        seconds, counts = samples(1200, seed, noise=0.2)
        found = fitted(seconds, counts, [0, 1, 2, 2])
        truth = seconds.sum(axis=0) * np.array([*RATES.values()]) * 1e9
        held.append(np.abs(found.amount[:2] - truth[:2]) <= found.error[:2])
    assert np.mean(held) >= 0.95, "99 % are claimed"


def test_no_amount_is_negative_and_rows_are_sums_of_parts() -> None:
    seconds, counts = samples(1200, 3, noise=0.3)
    parts, rows = fitted(seconds, counts), fitted(seconds, counts, [0, 0, 1, 1])
    assert (parts.amount >= 0).all()
    assert rows.amount == pytest.approx([parts.amount[:2].sum(), parts.amount[2:].sum()])


def test_a_part_that_never_runs_has_nothing() -> None:
    seconds, counts = samples(600, 4)
    found = fitted(np.column_stack([seconds, np.zeros(len(seconds))]), counts)
    assert found.amount[4] == 0
