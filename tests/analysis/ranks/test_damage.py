# SPDX-License-Identifier: Apache-2.0
"""Recordings with wrong values: an answer or a sentence, never an exception of ours."""

from __future__ import annotations

import io
import random
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from job_builder import Job

from profiling_lab.analysis.ranks import LocalPool, ranks
from profiling_lab.errors import LabError
from profiling_lab.report.ranks import ranks_report
from profiling_lab.report.table import write

VALUES: tuple[Any, ...] = (
    None,
    0,
    -1,
    2**31,
    2**62,
    -(2**62),
    2**63 - 1,
    -(2**63),
    10**18,
    "text",
    b"\xff\x00",
    1.5,
)


def damage(path: Path, chance: random.Random) -> None:
    """Some cells of some tables get other values, some rows are lost."""
    with sqlite3.connect(path) as file:
        tables = [name for (name,) in file.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for _ in range(chance.randint(1, 6)):
            table, every = chance.choice(tables), chance.randint(1, 9)
            if chance.random() < 0.1:
                file.execute(f"DELETE FROM {table} WHERE rowid % {every} = 0")
                continue
            column = chance.choice([row[1] for row in file.execute(f"PRAGMA table_info({table})")])
            try:
                value = chance.choice(VALUES)
                file.execute(f"UPDATE {table} SET {column} = ? WHERE rowid % {every} = 0", (value,))
            except sqlite3.IntegrityError:
                pass  # the schema does not take it
    file.close()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    job = Job(ranks=3, steps=3)
    job.slow_compute[1] = 500_000
    return job.write(tmp_path_factory.mktemp("whole"), facts=True)


@pytest.mark.parametrize("seed", range(40))
def test_damaged_jobs(whole: list[Path], tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    paths = [Path(shutil.copy(path, tmp_path)) for path in whole]
    for path in paths:
        if chance.random() < 0.5:
            damage(path, chance)
    try:
        result = ranks([str(path) for path in paths], pool=LocalPool(1))
    except LabError as error:
        assert "could not be analysed" not in str(error)
        return
    for failure in result.failures:
        assert "could not be analysed" not in failure.sentence
    for by in ("rank", "collective", "step", "line"):
        for form in ("table", "json"):
            write(ranks_report(result, by), form, io.StringIO())  # type: ignore[arg-type]
