# SPDX-License-Identifier: Apache-2.0
"""Damaged files end in an answer or in one clear sentence, never in a crash or an endless walk."""

from __future__ import annotations

import random
import sqlite3
from pathlib import Path

import pytest
from builders import SCHEMA
from fuzz_sqlite import everything
from wild_values import put_wild_values

from profiling_lab.analysis.gaps.gaps import gaps
from profiling_lab.analysis.info import info
from profiling_lab.analysis.kernels.kernels import top_kernels
from profiling_lab.analysis.lines import lines
from profiling_lab.analysis.overlap.overlap import overlap
from profiling_lab.analysis.steps import steps
from profiling_lab.errors import LabError
from profiling_lab.trace import Trace

WILD = (-(2**63), 2**63 - 1, -1, 0, 1, 2**31, 2**32, -(2**31), "text", b"\xff\x00", 3.5, None)


def use(path: Path) -> None:
    """All that a user can ask. A LabError is an answer."""
    try:
        with Trace.open(path) as trace:
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
    except LabError as error:
        assert "\n" not in str(error)


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("form", ["recorder", "nsys"])
def test_wild_values(tmp_path: Path, form: str, seed: int) -> None:
    path = everything(form).write(tmp_path / "t.sqlite")
    put_wild_values(path, random.Random(seed), 6, WILD)
    use(path)


@pytest.mark.parametrize("form", ["recorder", "nsys"])
def test_tables_and_columns_may_be_missing(tmp_path: Path, form: str) -> None:
    whole = everything(form).write(tmp_path / "whole.sqlite").read_bytes()
    path = tmp_path / "t.sqlite"
    for table, columns in SCHEMA.items():
        for column in [None, *(c.rstrip("!").split(":")[0] for c in columns.split())]:
            path.write_bytes(whole)
            with sqlite3.connect(path) as file:
                try:
                    file.execute(
                        f"DROP TABLE {table}"
                        if column is None
                        else f'ALTER TABLE {table} DROP COLUMN "{column}"'
                    )
                except sqlite3.Error:
                    continue  # not in this file, or a primary key
            file.close()
            use(path)


@pytest.mark.parametrize("seed", range(40))
def test_flipped_bytes(tmp_path: Path, seed: int) -> None:
    path = everything("recorder" if seed % 2 else "nsys").write(tmp_path / "t.sqlite")
    dice = random.Random(seed)
    content = bytearray(path.read_bytes())
    for _ in range(dice.choice((1, 5, 50))):
        content[dice.randrange(len(content))] = dice.randrange(256)
    path.write_bytes(content)
    use(path)


def test_a_stack_that_is_its_own_caller(tmp_path: Path) -> None:
    path = everything("recorder").write(tmp_path / "t.sqlite")
    with sqlite3.connect(path) as file:
        file.execute("UPDATE PYREC_STACK SET parentId = (SELECT max(id) FROM PYREC_STACK) WHERE parentId = 0")
    file.close()
    use(path)
