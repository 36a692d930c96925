# SPDX-License-Identifier: Apache-2.0
"""A damaged history is read or refused with a sentence; it never ends in another error."""

from __future__ import annotations

import random
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from memory_model.recordings import MIB, MemoryRecording, training

import profiling_lab
from profiling_lab.errors import LabError

VALUES: tuple[Any, ...] = (
    None,
    0,
    -1,
    1,
    7,
    300,
    1 << 40,
    1 << 62,
    (1 << 63) - 1,
    -(1 << 63),
    "text",
    2.5,
    b"x",
)


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    recording = MemoryRecording(capacity=130 * MIB)
    training(recording, 5, keep=3 * MIB)
    return recording.finish().write(tmp_path_factory.mktemp("memory") / "run.sqlite")


@pytest.mark.parametrize("seed", range(40))
def test_damaged_tables(seed: int, healthy: Path, tmp_path: Path) -> None:
    dice = random.Random(seed)
    path = tmp_path / "run.sqlite"
    shutil.copy(healthy, path)
    with sqlite3.connect(path) as file:
        tables = [
            name for (name,) in file.execute("SELECT name FROM sqlite_master WHERE name LIKE '%MEMORY%'")
        ]
        for _ in range(dice.choice((1, 5, 50))):
            table = dice.choice(tables)
            columns = [row[1] for row in file.execute(f"PRAGMA table_info({table})") if not row[3]]
            rows = [row for (row,) in file.execute(f"SELECT rowid FROM {table}")]
            file.execute(
                f"UPDATE {table} SET {dice.choice(columns)} = ? WHERE rowid = ?",
                (dice.choice(VALUES), dice.choice(rows)),
            )
        if dice.random() < 0.2:
            file.execute(f"DROP TABLE {dice.choice(tables)}")
    file.close()
    with profiling_lab.open(path) as trace:
        for ask in (
            trace.memory,
            lambda: trace.memory("kind", at="end"),
            lambda: trace.memory(at="100us"),
            trace.memory_growth,
            trace.memory_timeline,
            lambda: profiling_lab.diff_memory(healthy, trace),
            lambda: profiling_lab.diff(healthy, trace),
            lambda: trace.check(["memory_full", "memory_growth", "memory_fragmented", "memory_gradients"]),
        ):
            try:
                str(ask())
            except LabError as error:
                assert "\n" not in str(error)


def test_without_the_tables_of_stacks_no_allocation_has_a_line(healthy: Path, tmp_path: Path) -> None:
    """The trace then has other stacks, or none: numbers of the recorder's mean nothing in it."""
    for table in ("PYREC_LAUNCH", "PYREC_STACK"):
        path = shutil.copy(healthy, tmp_path / f"{table}.sqlite")
        with sqlite3.connect(path) as file:
            file.execute(f"DROP TABLE IF EXISTS {table}")
        with profiling_lab.open(path) as trace, profiling_lab.open(healthy) as whole:
            table_of = trace.memory()
            assert not any(table_of["line"]) and sum(table_of["bytes"]) == sum(whole.memory()["bytes"])
