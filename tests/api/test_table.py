# SPDX-License-Identifier: Apache-2.0
"""A table as rows, as text, as HTML, and for pandas and Arrow."""

from __future__ import annotations

import copy
import io
import pickle
import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import rich.console
from builders import TraceBuilder

import profiling_lab
from profiling_lab.api import Row, Table, TraceTables
from profiling_lab.cli import main
from profiling_lab.errors import LabError, UsageError
from profiling_lab.report.fields import Field, table_of
from profiling_lab.report.table import Report, Unit

RECORDED = Path(profiling_lab.__file__).parent / "exercises" / "e17_python_backtrace" / "recorded"
DEMO = RECORDED / "demo_h200.sqlite"
OF_A_TRACE = ("info", "lines", "call_tree", "kernels", "apis", "launches", "copies", "syncs", "ranges",
              "streams", "steps", "gaps", "overlap", "check", "rules")  # fmt: skip


class Values:
    def __init__(self, **values: object) -> None:
        self.__dict__.update(values)


def table(*rows: Values, fields: tuple[Field, ...] | None = None) -> Table[None]:
    fields = fields or (
        Field("name", "name"),
        Field("at_ns", "at", Unit.NS),
        Field("part_frac", "part", Unit.FRAC),
        Field("peak_bytes_per_s"),
        Field("line"),
    )
    shown = " ".join(field.key for field in fields if field.title)
    return Table(Report("made up", {}, ("above <it>",), table_of(fields, shown, rows, len(rows)), {}), None)


def many(count: int) -> Table[None]:
    fields = (Field("name", "name"),)
    return table(*(Values(name=f"row {i}") for i in range(count)), fields=fields)


FAR_NS = (1 << 60) + 1  # no float is this number
KNOWN = Values(name="a", at_ns=FAR_NS, part_frac=0.25, peak_bytes_per_s=9, line=3)
UNKNOWN = Values(name="", at_ns=None, part_frac=None, peak_bytes_per_s=None, line=None)


@pytest.fixture(scope="module")
def trace() -> TraceTables:
    return profiling_lab.open(DEMO)


def test_rows_by_number_slice_and_name(trace: TraceTables) -> None:
    lines = trace.lines()
    first = lines[0]
    assert first.key == first["key"] == "model.py:87" and first.gpu_ns == lines["gpu_ns"][0]
    assert lines[-1].key == lines["key"][-1] == list(lines)[-1].key == lines.rows[-1].key
    assert len(lines) == len(lines["key"]) == lines.total_matched == 17
    top = lines[:3]
    assert isinstance(top, Table) and [row.key for row in top] == lines["key"][:3]
    assert (len(top), top.total_matched) == (3, 17) and str(top).endswith("\n\n3 of 17 rows")
    with pytest.raises(IndexError):
        lines[17]
    with pytest.raises(KeyError, match="no column 'gpu'; it has key, function"):
        lines["gpu"]
    with pytest.raises(AttributeError, match="this row has no 'gpu'; it has key, function"):
        _ = first.gpu


def test_the_result_has_types(trace: TraceTables) -> None:
    lines = trace.lines(limit=1)
    assert lines.result.rows[0].gpu_ns == lines[0].gpu_ns and lines.result.total_matched == 17
    assert trace.check().result.findings[0].rule == trace.check()[0].rule


def test_a_row_is_a_mapping_with_names_to_complete() -> None:
    (row,) = table(KNOWN)
    assert dict(row) == {"name": "a", "at_ns": FAR_NS, "part_frac": 0.25, "peak_bytes_per_s": 9, "line": 3}
    assert {"name", "at_ns"} <= set(dir(row)) and row._ipython_key_completions_() == list(row)
    assert repr(row).startswith(f"Row(name='a', at_ns={FAR_NS}, ")
    assert copy.deepcopy(row) == row == pickle.loads(pickle.dumps(row))
    with pytest.raises(TypeError):
        row["name"] = "b"  # type: ignore[index]
    with pytest.raises(AttributeError):
        row.name = "b"  # type: ignore[misc]


def test_no_name_of_a_value_hides_a_method(trace: TraceTables) -> None:
    for name in OF_A_TRACE:
        hidden = {column for column in getattr(trace, name)().columns if hasattr(Row, column)}
        assert not hidden, f"{name}: row.{hidden} would not be the value"


def test_units_are_those_of_the_fields_and_else_of_the_keys() -> None:
    assert table(KNOWN).units == {"at_ns": "ns", "part_frac": "fraction", "peak_bytes_per_s": "bytes/s"}


def test_units_agree_with_the_keys(trace: TraceTables) -> None:
    endings = {"_ns": "ns", "_bytes": "bytes", "_bytes_per_s": "bytes/s", "_frac": "fraction"}
    for name in OF_A_TRACE:
        of_table = getattr(trace, name)()
        for column in of_table.columns:
            said = [unit for ending, unit in endings.items() if column.endswith(ending)]
            assert not said or of_table.units[column] == said[0], (name, column)


@pytest.mark.parametrize("name", ["lines", "check", "gaps", "overlap", "steps"])
def test_text_is_what_the_command_prints(
    trace: TraceTables, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    main([name, str(DEMO), "--limit", "0"])
    shown = getattr(trace, name)()
    assert str(shown) == repr(shown) == str(shown[:]) == capsys.readouterr().out.rstrip("\n")


def test_a_long_table_is_not_shown_whole() -> None:
    assert str(many(60)).splitlines()[-1] == "row 59"
    shown = str(many(61)).splitlines()
    assert shown[-3:] == ["row 59", "", "60 of 61 rows"]
    html = many(61)._repr_html_()
    assert "row 59<" in html and "row 60<" not in html and "60 of 61 rows" in html
    assert "row 60" in many(61).to_markdown() and "rows" not in many(61).to_markdown()


def test_text_in_a_notebook(monkeypatch: pytest.MonkeyPatch, trace: TraceTables) -> None:
    """There rich displays what should go to a stream, unless it is told not to."""
    expected = str(trace.lines())
    monkeypatch.setattr(rich.console, "_is_jupyter", lambda: True)
    assert str(trace.lines()) == expected


class Cells(HTMLParser):
    """The texts of the cells; any other tag than those of a table would be the trace's."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.rows: list[list[str]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        self.tags.append(f"/{tag}")

    def handle_data(self, data: str) -> None:
        if self.tags[-1] in ("td", "th"):
            self.rows[-1][-1] += data


def test_html_has_the_cells_of_the_terminal_escaped(tmp_path: Path) -> None:
    builder = TraceBuilder().launch(
        'k<img src=x onerror="alert(1)">&', 9000, stack="/app/a<b>.py:8 main", peek=0
    )
    with profiling_lab.open(builder.write(tmp_path / "<i>.sqlite")) as made_up:
        for name in ("kernels", "lines", "check", "info"):
            shown = getattr(made_up, name)()
            found = Cells(shown._repr_html_())
            assert set(found.tags) <= {
                part
                for tag in ("div", "table", "thead", "tbody", "tr", "th", "td")
                for part in (tag, f"/{tag}")
            }
            words = " ".join(cell for row in found.rows for cell in row).split()
            header = " ".join((*shown.header, *shown.report.below)).split()
            assert sorted(words + header) == sorted(str(shown).split())


def test_html_of_every_table_is_closed(trace: TraceTables) -> None:
    for name in OF_A_TRACE:
        tags = Cells(getattr(trace, name)()._repr_html_()).tags
        open_tags: list[str] = []
        for tag in tags:
            if tag.startswith("/"):
                assert open_tags.pop() == tag[1:]
            else:
                open_tags.append(tag)
        assert not open_tags


def test_a_name_that_is_no_text() -> None:
    odd = table(Values(name="k\udcff", at_ns=1, part_frac=0.5, peak_bytes_per_s=1, line=1))
    for text in (str(odd), odd._repr_html_(), odd.to_csv(), odd.to_json(), odd[0].name):
        assert r"k\xff" in text.replace("\\\\", "\\") and text.encode()
    assert odd.to_arrow()["name"].to_pylist() == [r"k\xff"]


def test_csv_and_json_are_those_of_the_command(
    trace: TraceTables, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = trace.lines()
    for form, write in (("csv", lines.to_csv), ("json", lines.to_json)):
        main(["lines", str(DEMO), "--limit", "0", "--format", form])
        out = capsys.readouterr().out
        assert write() == out
        assert write(tmp_path / "file") is None and (tmp_path / "file").read_text() == out
        with pytest.raises(LabError, match="missing/file cannot be written: No such file"):
            write(tmp_path / "missing" / "file")


def test_markdown_keeps_what_is_nested(trace: TraceTables, capsys: pytest.CaptureFixture[str]) -> None:
    main(["lines", str(DEMO), "--tree", "--min-share", "0", "--limit", "0", "--format", "md"])
    text = trace.call_tree(min_share=0).to_markdown()
    assert text == capsys.readouterr().out and "\n| \u00a0\u00a0record\\_demo.py:" in text
    assert trace.lines(limit=2).to_markdown().endswith("\n\n2 of 17 rows\n")


def test_arrow_has_units_and_exact_numbers() -> None:
    arrow = table(KNOWN, UNKNOWN).to_arrow()
    assert arrow.to_pylist() == table(KNOWN, UNKNOWN).to_dicts()
    assert {field.name: field.metadata for field in arrow.schema} == {
        "name": None,
        "at_ns": {b"unit": b"ns"},
        "part_frac": {b"unit": b"fraction"},
        "peak_bytes_per_s": {b"unit": b"bytes/s"},
        "line": None,
    }
    for unknown in (table(UNKNOWN).to_arrow(), table().to_arrow()):
        assert [field.type for field in unknown.schema][1:4] == [pa.int64(), pa.float64(), pa.int64()]


@pytest.mark.parametrize("name", OF_A_TRACE)
def test_every_table_as_arrow(trace: TraceTables, name: str) -> None:
    of_table = getattr(trace, name)()
    arrow = of_table.to_arrow()
    assert arrow.column_names == list(of_table.columns) and len(arrow) == len(of_table)
    pq.write_table(arrow, io.BytesIO())
    for column, unit in of_table.units.items():
        assert arrow.schema.field(column).metadata == {b"unit": unit.encode()}


def test_pandas_keeps_whole_numbers_whole() -> None:
    pytest.importorskip("pandas")
    frame = table(KNOWN, UNKNOWN).to_pandas()
    assert str(frame["at_ns"].dtype) == str(frame["line"].dtype) == "Int64"
    assert frame["at_ns"][0] == FAR_NS and frame["at_ns"].isna().tolist() == [False, True]
    assert frame["part_frac"].dtype == float and frame.attrs["units"] == table().units
    assert list(table().to_pandas().columns) == list(table().columns)


@pytest.mark.parametrize("name", OF_A_TRACE)
def test_every_table_in_pandas(trace: TraceTables, name: str) -> None:
    pytest.importorskip("pandas")
    of_table = getattr(trace, name)()
    frame = of_table.to_pandas()
    assert list(frame.columns) == list(of_table.columns) and len(frame) == len(of_table)
    for column, unit in of_table.units.items():
        if unit == "ns" and column != "with_ns":
            assert frame[column].dropna().tolist() == [v for v in of_table[column] if v is not None]


@pytest.mark.parametrize(("module", "call"), [("pandas", "to_pandas"), ("pyarrow", "to_arrow")])
def test_what_is_not_installed(monkeypatch: pytest.MonkeyPatch, module: str, call: str) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UsageError) as caught:
        getattr(table(KNOWN), call)()
    assert re.fullmatch(
        rf"{call}\(\) needs {module}, which cannot be imported \(.*\): pip install {module}",
        str(caught.value),
    )


def test_a_row_has_a_place_for_labels() -> None:
    where = {"file": "/home/me/model.py", "line": 87}
    assert Row(where).place == "model.py:87"
    assert Row({"file": "/home/me/model.py"}).place == "model.py", "a row of a whole file"
    assert Row({"file": "", "line": 0}).place == Row({"file": None}).place == Row({}).place == ""
    assert "place" in dir(Row(where)) and "place" not in list(Row(where)), "no value of the command's JSON"
    assert "place" not in {column for name in OF_A_TRACE for column in _columns(name)}, "and hides none"


def _columns(name: str) -> tuple[str, ...]:
    with profiling_lab.open(DEMO) as trace:
        try:
            found: Table[object] = getattr(trace, name)()
        except LabError:
            return ()
        return found.columns
