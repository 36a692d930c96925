# SPDX-License-Identifier: Apache-2.0
"""The texts of lines in a file that is old, foreign, merged or damaged."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from builders import TraceBuilder

from profiling_lab.trace import Trace
from profiling_lab.trace.window import WindowSelection


def built() -> TraceBuilder:
    return (
        TraceBuilder().launch("gemm", 1000, stack="/app/model.py:7 main").source("/app/model.py", 7, "f(x)")
    )


def texts(path: Path) -> dict[tuple[str, int], str]:
    with Trace.open(path) as trace:
        return trace.source_texts


def test_by_file_and_line_also_in_a_window(tmp_path: Path) -> None:
    path = built().source("/app/model.py", 8, "g(x)").write(tmp_path / "a.sqlite")
    expected = {("/app/model.py", 7): "f(x)", ("/app/model.py", 8): "g(x)"}
    assert texts(path) == expected
    with Trace.open(path) as trace:
        assert trace.windowed(WindowSelection(range="0:1s")).source_texts == expected


def test_old_recordings_and_other_recorders_have_none(tmp_path: Path) -> None:
    for form in ("recorder", "nsys"):
        path = TraceBuilder(form=form).launch("gemm", 1000).write(tmp_path / f"{form}.sqlite")
        assert texts(path) == {}


def test_what_says_two_things_says_nothing(tmp_path: Path) -> None:
    builder = built()
    for text in ("f(x)", "g(x)", "f(x)"):
        builder.source("/app/model.py", 7, text).source("/app/model.py", 8, "same")
    assert texts(builder.write(tmp_path / "a.sqlite")) == {("/app/model.py", 8): "same"}


@pytest.mark.parametrize(
    ("statement", "found"),
    [
        ("UPDATE PYREC_SOURCE SET text = NULL", []),
        ("UPDATE PYREC_SOURCE SET text = ''", []),
        ("UPDATE PYREC_SOURCE SET text = x'66ff'", ["f\ufffd"]),
        ("UPDATE PYREC_SOURCE SET text = 12", ["12"]),
        ("UPDATE PYREC_SOURCE SET line = NULL", ["f(x)"]),
        ("UPDATE PYREC_SOURCE SET line = 'x'", ["f(x)"]),
        ("UPDATE PYREC_SOURCE SET fileId = 4711", []),
        ("UPDATE PYREC_SOURCE SET fileId = NULL", []),
        ("ALTER TABLE PYREC_SOURCE DROP COLUMN text", []),
        ("DELETE FROM PYREC_SOURCE", []),
    ],
)
def test_damaged_tables(tmp_path: Path, statement: str, found: list[str]) -> None:
    path = built().write(tmp_path / "a.sqlite")
    with sqlite3.connect(path) as file:
        file.execute(statement)
    file.close()
    assert list(texts(path).values()) == found
