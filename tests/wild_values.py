# SPDX-License-Identifier: Apache-2.0
"""Files whose tables hold what no recorder writes."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Sequence
from pathlib import Path

from builders import SCHEMA


def put_wild_values(path: Path, dice: random.Random, times: int, wild: Sequence[object]) -> None:
    """Set columns, chosen at random, of some rows of tables that the builder wrote to one of `wild`."""
    with sqlite3.connect(path) as file:
        tables = [t for (t,) in file.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for _ in range(times):
            table = dice.choice(tables)
            column = dice.choice([c.rstrip("!").split(":")[0] for c in SCHEMA[table].split()])
            where = f"WHERE rowid % {dice.randint(1, 5)} = 0"
            try:
                file.execute(f'UPDATE {table} SET "{column}" = ? {where}', (dice.choice(wild),))
            except sqlite3.Error:
                continue  # SQLite itself refuses it
    file.close()
