# SPDX-License-Identifier: Apache-2.0
"""One declaration of a field makes its column, its cell and its value in JSON and CSV."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

import profiling_lab.report
from profiling_lab.analysis.stats import NO_STATS, Stats
from profiling_lab.report.fields import Field, frame_fields, table_of
from profiling_lab.report.stats import stats_fields
from profiling_lab.report.table import Column, Unit
from profiling_lab.trace import Frame

ROW = SimpleNamespace(
    name="gemm", ns=7, part_frac=1 / 3, frame=Frame("forward", "/m.py", 30), peak=None, ranks=(0, 1)
)


def test_people_see_columns_in_their_order_and_machines_every_field() -> None:
    fields = (
        Field("key", value="name"),
        Field("ns", "time", Unit.NS, "each"),
        Field("called", "what", value="name", cell=lambda row: f"<{row.name}>"),
        Field("hint", "hint", value=lambda row: "look", for_people_only=True),
    )
    table = table_of(fields, "called hint ns", (ROW,), 4, (("below",),), "called")
    assert table.columns == (
        Column("called", "what"),
        Column("hint", "hint"),
        Column("ns", "time", Unit.NS, "each"),
    )
    assert table.rows == (("<gemm>", "look", 7),)
    assert table.data == ({"key": "gemm", "ns": 7, "called": "gemm"},)
    assert (table.total_matched, table.details, table.details_in) == (4, (("below",),), "called")


@pytest.mark.parametrize(("digits", "value"), [(6, 0.333333), (None, 1 / 3)])
def test_fractions_have_six_digits_in_files_unless_said(digits: int | None, value: float) -> None:
    fields = (Field("part_frac", "part", Unit.FRAC, digits=digits),)
    table = table_of(fields, "part_frac", (ROW,), 1)
    assert table.rows == ((1 / 3,),)
    assert table.data == ({"part_frac": value},)


def test_a_path_of_attributes_ends_where_nothing_is_known() -> None:
    table = table_of((Field("rate", value="peak.bytes_per_s"),), "rate", (ROW,), 1)
    assert table.rows == ((None,),)


def test_a_misspelled_attribute_is_no_unknown_value() -> None:
    with pytest.raises(AttributeError, match="pikes"):
        table_of((Field("rate", value="pikes.bytes_per_s"),), "rate", (ROW,), 1)


def test_a_row_without_a_frame_has_no_place() -> None:
    fields = frame_fields("frame", "file line function")
    assert table_of(fields, "", (ROW,), 1).data == ({"file": "/m.py", "line": 30, "function": "forward"},)
    nowhere = SimpleNamespace(frame=None)
    assert table_of(fields, "", (nowhere,), 1).data == ({"file": "", "line": None, "function": ""},)


def test_the_average_of_nothing_is_unknown_and_its_count_is_0() -> None:
    rows = (SimpleNamespace(stats=Stats(2, 6, 3, 3, 1, 5, 2)), SimpleNamespace(stats=NO_STATS))
    fields = stats_fields("stats", "call_", total="total")
    table = table_of(fields, "call_total_ns call_longest_ns", rows, 2)
    assert [column.title for column in table.columns] == ["total", "max"]
    assert table.rows == ((6, 5), (0, None))
    assert [(row["call_count"], row["call_average_ns"]) for row in table.data or ()] == [(2, 3), (0, None)]


def test_reports_declare_fields_and_no_columns_or_rows_of_their_own() -> None:
    package = Path(profiling_lab.report.__file__).parents[1]
    makes_columns = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if re.search(r"\bColumn\(", path.read_text())
    }
    # doctor has a line of advice below a row that JSON does not repeat
    assert makes_columns == {"report/fields.py", "doctor/table.py"}, "what a row says is declared by Field"
