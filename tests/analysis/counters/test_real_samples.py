# SPDX-License-Identifier: Apache-2.0
"""A recording of an H200 with samples every 100 us: 600 products of 4096 x 4096 bf16 matrices, each followed
by a copy of 256 MB (2026-11-24, torch 2.11.0+cu130). What they must move and compute is known.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from profiling_lab.analysis.counters.by_line import CountedRow, counters_by_line
from profiling_lab.trace import Trace

RECORDED = Path(__file__).parents[2] / "data" / "counters_h200" / "copies_and_products.sqlite.gz"
LAUNCHES = 600
COPIED = LAUNCHES * 4 * (1 << 26)
PRODUCT = LAUNCHES * 2 * 4096 * 4096
"""bytes of one of its matrices"""
TENSOR_FLOP_PER_NS = 132 * 4096 * 1.755
"""SMs, FLOP in a cycle of one, and GHz"""


@pytest.fixture(scope="module")
def rows() -> dict[str, CountedRow]:
    with Trace.open(RECORDED) as trace:
        return {row.key.rpartition("/")[2]: row for row in counters_by_line(trace).rows}


def test_reads_are_those_of_copies_and_both_operands(rows: dict[str, CountedRow]) -> None:
    read = rows["probe.py:35"].counters["dram_read"]
    least = COPIED + 2 * PRODUCT  # a product may read an operand more than once
    assert least <= read.amount <= least + 4 * PRODUCT
    assert read.error < 0.01 * read.amount


def test_writes_are_those_of_copies_and_products(rows: dict[str, CountedRow]) -> None:
    written = rows["probe.py:35"].counters["dram_written"]
    assert written.amount == pytest.approx(COPIED + PRODUCT, rel=0.01)


def test_idle_time_moves_nothing(rows: dict[str, CountedRow]) -> None:
    idle = rows["(idle)"]
    assert idle.gpu_ns > 100e6
    for name in ("dram_read", "dram_written", "sm_active", "tensor"):
        assert idle.counters[name].amount == 0


def test_tensor_time_is_that_of_the_products(rows: dict[str, CountedRow]) -> None:
    flop = LAUNCHES * 2 * 4096**3
    assert rows["probe.py:35"].counters["tensor"].amount == pytest.approx(flop / TENSOR_FLOP_PER_NS, rel=0.1)
