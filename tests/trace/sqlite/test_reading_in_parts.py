# SPDX-License-Identifier: Apache-2.0
"""Large tables are read in pieces at the same time; texts become numbers in C++. Both must not be seen."""

from __future__ import annotations

import dataclasses
import os
import random
import re
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fuzz_sqlite import everything

from profiling_lab import _analysis
from profiling_lab.errors import UnreadableInputError
from profiling_lab.trace import Trace
from profiling_lab.trace.nsys import sqlite_file
from profiling_lab.trace.nsys.sqlite_file import WHOLE, SqliteFile


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables of a few rows are cut too, on a machine of any size."""
    monkeypatch.setattr(sqlite_file, "_PART_ROWS", 3)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(4)))


def columns_of(path: Path) -> list[tuple[str, Any]]:
    found = []
    with Trace.open(path) as trace:
        for table in (trace.operations, trace.calls, trace.ranges, trace.overheads, trace.attribution):
            for field in dataclasses.fields(table):
                value = getattr(table, field.name)
                found.append((field.name, value.tolist() if isinstance(value, np.ndarray) else value))
        found.append(("frames", trace.stacks.frames))
    return found


@pytest.mark.parametrize("form", ["recorder", "nsys"])
def test_pieces_give_the_columns_of_the_whole(
    tmp_path: Path, form: str, request: pytest.FixtureRequest
) -> None:
    path = everything(form).write(tmp_path / "t.sqlite")
    with sqlite3.connect(path) as file:  # row numbers with holes, and some below zero
        file.execute("DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE rowid % 7 = 3")
        file.execute("UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET rowid = rowid * 1000 - 20000")
    file.close()
    whole = columns_of(path)
    request.getfixturevalue("small_parts")
    with Trace.open(path) as trace:
        assert len(trace.source.file.parts("CUPTI_ACTIVITY_KIND_KERNEL")) == 4, (
            "else this test compares nothing"
        )
    assert columns_of(path) == whole


@pytest.mark.usefixtures("small_parts")
def test_every_row_is_in_one_piece(tmp_path: Path) -> None:
    path = tmp_path / "t.sqlite"
    with sqlite3.connect(path) as file:
        file.execute("CREATE TABLE a (start INTEGER)")
        rows = [-(2**63), -5, 0, 1, 2, 3, 50, 2**40, 2**63 - 1]
        file.executemany("INSERT INTO a (rowid, start) VALUES (?, ?)", [(row, row) for row in rows])
        file.execute("CREATE TABLE shadowed (rowid INTEGER, _rowid_ INTEGER, start INTEGER)")
        file.executemany("INSERT INTO shadowed VALUES (NULL, 7, ?)", [(row,) for row in range(40)])
        file.execute("CREATE TABLE no_numbers (start INTEGER PRIMARY KEY) WITHOUT ROWID")
        file.executemany("INSERT INTO no_numbers VALUES (?)", [(row,) for row in range(40)])
        file.execute("CREATE VIEW seen AS SELECT * FROM shadowed")
        file.execute("CREATE TABLE full (rowid, _rowid_, oid, start INTEGER)")
        file.executemany("INSERT INTO full VALUES (1, 1, 1, ?)", [(row,) for row in range(40)])
    file.close()
    opened = SqliteFile(path)
    try:
        assert opened.select("a", {"start": 0})["start"].tolist() == rows
        for table in ("shadowed", "no_numbers", "seen", "full"):
            assert opened.select(table, {"start": 0})["start"].tolist() == [*range(40)], table
        assert len(opened.parts("shadowed")) == 4
        assert opened.parts("no_numbers") == opened.parts("full") == WHOLE
        assert opened.select("shadowed", {"start": 0}, "WHERE start > 30 OR start = 2")["start"].tolist() == [
            2,
            *range(31, 40),
        ]
    finally:
        opened.close()


@pytest.mark.usefixtures("small_parts")
def test_a_file_that_may_still_change_is_read_in_one_piece(tmp_path: Path) -> None:
    path = everything("recorder").write(tmp_path / "t.sqlite")
    writer = sqlite3.connect(path)
    writer.execute("PRAGMA journal_mode = WAL")
    writer.execute("DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE rowid = 1")
    writer.commit()
    try:
        with Trace.open(path) as trace:
            assert trace.source.file.parts("CUPTI_ACTIVITY_KIND_RUNTIME") == WHOLE
    finally:
        writer.close()


@pytest.mark.usefixtures("small_parts")
def test_damage_in_a_later_piece_is_an_error_too(tmp_path: Path) -> None:
    path = everything("recorder").write(tmp_path / "t.sqlite")
    opened = SqliteFile(path)
    try:
        parts = opened.parts("CUPTI_ACTIVITY_KIND_KERNEL")
        query = "SELECT CASE WHEN rowid = 40 THEN 'x' ELSE 1 END FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE :part"
        with pytest.raises(UnreadableInputError):
            opened.integers(query, 1, parts)
    finally:
        opened.close()


def arrow(texts: list[bytes]) -> tuple[Any, Any]:
    offsets = np.concatenate([[0], np.cumsum([len(text) for text in texts])]).astype(np.int32)
    return offsets, np.frombuffer(b"".join(texts), dtype=np.uint8)


@pytest.mark.parametrize("seed", range(20))
def test_operator_texts_are_cut_as_a_regular_expression_would(seed: int) -> None:
    dice = random.Random(seed)
    markers = (", seq = ", ", op_id = ", ", sizes = ", ", input_op_ids = ", ", ", ",", " ", "seq = ")
    values = ("aten::mm", "7", "-12", "x", "é", "", "9" * 20, "-" + "9" * 20, "[[2, 3]]")
    pieces = (*markers, *values)
    texts = ["".join(dice.choices(pieces, k=dice.randrange(8))) for _ in range(300)]
    numbers, sequences = (codes := _analysis.TextCodes()).add_operators(*arrow([t.encode() for t in texts]))
    distinct = [text.decode() for text in codes.texts()]
    assert len(set(distinct)) == len(distinct)
    for text, number, sequence in zip(texts, numbers.tolist(), sequences.tolist(), strict=True):
        assert distinct[number] == re.split(r", (?:seq|op_id|sizes|input_op_ids) = ", text)[0]
        after = re.search(r", seq = (-?\d+)?", text)
        limits = np.iinfo(np.int64)
        expected = limits.min if after is None else max(min(int(after[1] or 0), limits.max), limits.min)
        assert sequence == expected, text


def test_numbers_of_texts_go_on_from_call_to_call() -> None:
    codes = _analysis.TextCodes()
    assert codes.add(*arrow([b"a", b"", b"a"])).tolist() == [0, 1, 0]
    assert codes.add(*arrow([b"\xff", b"a"])).tolist() == [2, 0]
    assert codes.add(*arrow([])).tolist() == []
    assert codes.texts() == [b"a", b"", b"\xff"]


@pytest.mark.parametrize("offsets", [[], [0, 5], [3, 1], [-1, 0], [0, 2, 1]])
def test_offsets_that_lie_outside_are_refused(offsets: list[int]) -> None:
    with pytest.raises(ValueError, match="offset"):
        _analysis.TextCodes().add(np.array(offsets, dtype=np.int32), np.zeros(3, dtype=np.uint8))
