# SPDX-License-Identifier: Apache-2.0
"""Damaged files, for every test that reads some: what no recorder writes, and what gets lost or flipped."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from profiling_lab.errors import LabError

WILD: tuple[Any, ...] = (
    *(-(2**63), 2**63 - 1, 2**61, 2**62, -(2**62), 10**18, -1, 0, 1, 2**31, 2**32, -(2**31)),
    *("text", b"\xff\x00", 3.5, None),
)
"""cells that no recorder writes"""


@contextmanager
def answer_or_sentence() -> Iterator[None]:
    """Whatever the file: a LabError of one line is an answer, anything else that is raised is a defect."""
    try:
        yield
    except LabError as error:
        assert str(error) and "\n" not in str(error)


def columns_of(file: sqlite3.Connection) -> dict[str, list[str]]:
    """The columns of each table of a file."""
    tables = file.execute(
        "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
    ).fetchall()
    return {table: [row[1] for row in file.execute(f'PRAGMA table_info("{table}")')] for (table,) in tables}


def put_wild_values(path: Path, dice: random.Random, times: int, wild: Sequence[object] = WILD) -> None:
    """Set columns, chosen at random, of some rows to one of `wild`; now and then rows are lost."""
    with sqlite3.connect(path) as file:
        columns = columns_of(file)
        for _ in range(times):
            table, every = dice.choice(list(columns)), dice.randint(1, 9)
            where = f"WHERE rowid % {every} = 0"
            if dice.random() < 0.1:
                file.execute(f'DELETE FROM "{table}" {where}')
                continue
            try:
                change = f'UPDATE "{table}" SET "{dice.choice(columns[table])}" = ? {where}'
                file.execute(change, (dice.choice(wild),))
            except sqlite3.Error:
                continue  # SQLite itself refuses it
    file.close()


def each_without_a_part(whole: Path, tables: Sequence[str] = ("",)) -> Iterator[Path]:
    """The file without each of its tables, and without each of their columns, one after the other; `tables`:
    only those whose names contain one of these.
    """
    content, path = whole.read_bytes(), whole.with_name("part.sqlite")
    with sqlite3.connect(whole) as file:
        columns = columns_of(file)
    file.close()
    for table in [name for name in columns if any(part in name for part in tables)]:
        changes = [f"DROP TABLE {table}", *(f'ALTER TABLE {table} DROP COLUMN "{c}"' for c in columns[table])]
        for change in changes:
            path.write_bytes(content)
            file = sqlite3.connect(path)
            try:
                file.execute(change)
            except sqlite3.Error:
                continue  # a primary key
            finally:
                file.close()
            yield path


def flip_bytes(dice: random.Random, path: Path, counts: Sequence[int] = (1, 3, 20, 200)) -> Path:
    content = bytearray(path.read_bytes())
    for _ in range(dice.choice(counts)):
        content[dice.randrange(len(content))] = dice.randrange(256)
    path.write_bytes(content)
    return path
