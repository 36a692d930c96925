# SPDX-License-Identifier: Apache-2.0
"""Damaged files end in an answer or in one clear sentence, never in a crash or an endless walk."""

from __future__ import annotations

import random
import sqlite3
from pathlib import Path

import pytest
from damage import answer_or_sentence, each_without_a_part, flip_bytes, put_wild_values
from fuzz_sqlite import everything

from profiling_lab.analysis.gaps.gaps import gaps
from profiling_lab.analysis.info import info
from profiling_lab.analysis.kernels.kernels import top_kernels
from profiling_lab.analysis.lines import lines
from profiling_lab.analysis.overlap.overlap import overlap
from profiling_lab.analysis.steps import steps
from profiling_lab.trace import Trace


def use(path: Path) -> None:
    """All that a user can ask. A LabError is an answer."""
    with answer_or_sentence(), Trace.open(path) as trace:
        info(trace)
        lines(trace, by="kernel")
        lines(trace, depth=3)
        top_kernels(trace)
        for row in steps(trace).rows:
            assert row.compute_ns + row.communication_ns + row.copy_ns + row.idle_ns == row.wall_ns
        idle = gaps(trace)
        assert sum(row.idle_ns for row in idle.rows) == idle.idle_ns == idle.parts_ns[3]
        assert 0 <= idle.unknown_ns <= idle.idle_ns and idle.queue_full_ns >= 0
        for device in overlap(trace).devices:
            assert sum(device.level_ns) == device.span_ns


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("form", ["recorder", "nsys"])
def test_damaged_values(tmp_path: Path, form: str, seed: int) -> None:
    path = everything(form).write(tmp_path / "t.sqlite")
    put_wild_values(path, random.Random(seed), 6)
    use(path)


@pytest.mark.parametrize("form", ["recorder", "nsys"])
def test_tables_and_columns_may_be_missing(tmp_path: Path, form: str) -> None:
    for path in each_without_a_part(everything(form).write(tmp_path / "whole.sqlite")):
        use(path)


@pytest.mark.parametrize("seed", range(40))
def test_flipped_bytes(tmp_path: Path, seed: int) -> None:
    path = everything("recorder" if seed % 2 else "nsys").write(tmp_path / "t.sqlite")
    flip_bytes(random.Random(seed), path, (1, 5, 50))
    use(path)


def test_a_stack_that_is_its_own_caller(tmp_path: Path) -> None:
    path = everything("recorder").write(tmp_path / "t.sqlite")
    with sqlite3.connect(path) as file:
        file.execute("UPDATE PYREC_STACK SET parentId = (SELECT max(id) FROM PYREC_STACK) WHERE parentId = 0")
    file.close()
    use(path)
