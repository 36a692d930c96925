# SPDX-License-Identifier: Apache-2.0
"""One table in four forms."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from typing import Any

import pytest

from profiling_lab.report import numbers
from profiling_lab.report.kernels.names import readable
from profiling_lab.report.table import ALWAYS, FORMATS, Column, Report, Table, Unit, write

COLUMNS = (
    Column("key", "line"),
    Column("gpu_ns", "total", Unit.NS),
    Column("kernels", "kernels", Unit.COUNT),
    Column("moved_bytes", "moved", Unit.BYTES),
    Column("share_frac", "share", Unit.FRAC),
)
ROWS = (
    ("model.py:7", 8_000_000, 12_345, 3 << 20, 0.75),
    ("a|b <c>.py:1", 1_500, 1, None, 0.0001),
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def report(**changes: object) -> Report:
    columns: Any = changes.pop("columns", COLUMNS)
    table = Table(columns, ROWS, total_matched=changes.pop("total", 2), **changes)  # type: ignore[arg-type]
    return Report("lines", {"path": "t.sqlite"}, ("covers 99 %", "  note: one"), table, {"gpu_ns": 8_001_500})


def rendered(form: str, stream: io.StringIO | None = None, **changes: object) -> str:
    stream = stream or io.StringIO()
    write(report(**changes), form, stream)
    return stream.getvalue()


def test_text_is_plain_and_aligned_in_a_pipe() -> None:
    assert rendered("table") == (
        "covers 99 %\n"
        "  note: one\n"
        "\n"
        "line          total ms  kernels    moved    share\n"
        "model.py:7       8.000   12,345  3.0 MiB   75.0 %\n"
        "a|b <c>.py:1     0.002        1        -  < 0.1 %\n"
    )


def test_nothing_is_cut_in_a_pipe_whatever_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    name = "x" * 500
    stream = io.StringIO()
    table = Table((Column("key", "kernel"),), ((name,),), 1)
    write(Report("kernels", {}, (), table, {}), "table", stream)
    assert name in stream.getvalue()


def test_a_terminal_folds_at_its_width_and_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("TERM", "dumb")
    text = rendered("table", Terminal())
    assert max(map(len, text.splitlines())) <= 60
    assert "8.000" in text and "12,345" in text


def test_a_terminal_that_is_too_narrow_cuts_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    monkeypatch.setenv("TERM", "dumb")
    columns = tuple(replace(column, priority=ALWAYS) for column in COLUMNS)
    text = rendered("table", Terminal(), columns=columns)
    for number in ("8.000", "12,345", "3.0 MiB", "75.0 %", "< 0.1 %"):
        assert number in text


def test_a_cut_list_says_so_in_every_form_for_people() -> None:
    for form in ("table", "md"):
        assert "2 of 57 rows; --limit 0 shows all" in rendered(form, total=57)
    assert "rows;" not in rendered("table")


def test_lines_under_a_row() -> None:
    text = rendered("table", details=(("from train.py:9",), ()))
    assert "\nmodel.py:7" in text and "\n  from train.py:9\na|b" in text
    assert "model.py:7<br>from train.py:9" in rendered("md", details=(("from train.py:9",), ()))


def test_lines_under_a_row_have_the_whole_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """They neither widen a column nor are folded inside of one."""
    below = "under a row there is room for a sentence that is longer than any column of the table"
    plain, with_line = rendered("table"), rendered("table", details=((below,), ()))
    assert [line for line in with_line.splitlines() if below not in line] == plain.splitlines()
    monkeypatch.setenv("COLUMNS", "60")
    lines = rendered("table", Terminal(), details=((below,), ())).splitlines()
    at = next(i for i, line in enumerate(lines) if "under a row" in line)
    assert "than any column of the table" in lines[at + 1], "folded at the width of the terminal"


def test_markdown_is_a_table_whatever_the_names() -> None:
    text = rendered("md")
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert rows[1] == "| --- | ---: | ---: | ---: | ---: |"
    assert "a\\|b &lt;c&gt;.py:1" in rows[3]
    assert all(row.replace("\\|", "").count("|") == 6 for row in rows)
    assert text.startswith("covers 99 %\n\n- note: one\n")


def test_csv_has_stable_names_integers_and_nothing_else() -> None:
    rows = list(csv.DictReader(io.StringIO(rendered("csv"))))
    assert rows[0] == {
        "key": "model.py:7",
        "gpu_ns": "8000000",
        "kernels": "12345",
        "moved_bytes": "3145728",
        "share_frac": "0.75",
    }
    assert rows[1]["moved_bytes"] == "", "unknown is not zero"


def test_json_is_a_versioned_envelope() -> None:
    envelope = json.loads(rendered("json", total=5))
    assert envelope == {
        "schema": "profiling-lab/1",
        "command": "lines",
        "trace": {"path": "t.sqlite"},
        "data": {
            "rows": [dict(zip([c.name for c in COLUMNS], row, strict=True)) for row in ROWS],
            "total_matched": 5,
            "truncated": True,
        },
        "coverage": {"gpu_ns": 8_001_500},
    }


def test_data_speaks_for_rows_in_json_and_csv() -> None:
    data = ({"key": "/abs/model.py:7", "gpu_ns": 1, "stacks": [1, 2]},)
    assert json.loads(rendered("json", data=data))["data"]["rows"] == [data[0]]
    assert rendered("csv", data=data) == "key,gpu_ns\n/abs/model.py:7,1\n"


@pytest.mark.parametrize("form", FORMATS)
def test_a_table_without_rows(form: str) -> None:
    stream = io.StringIO()
    write(Report("lines", {}, ("nothing here",), Table(COLUMNS, (), 0), {}), form, stream)
    assert stream.getvalue()
    if form == "json":
        assert json.loads(stream.getvalue())["data"]["rows"] == []


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 ns"), (999, "999 ns"), (1_000, "1.000 µs"), (1_234_567, "1.235 ms"), (2_500_000_000, "2.500 s")],
)
def test_times(value: int, text: str) -> None:
    assert numbers.time(value) == text


def test_columns_of_times_share_one_unit_and_avoid_seconds() -> None:
    assert numbers.time_unit([1, 3_000_000_000]) == ("ms", 1_000_000)
    assert numbers.time_unit([1, 2_000]) == ("µs", 1_000)
    assert numbers.time_unit([]) == ("ns", 1)
    assert numbers.in_unit(1_234_567_890_000, 1_000_000) == "1,234,567.9"


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 << 30, "5.0 GiB")]
)
def test_sizes(value: int, text: str) -> None:
    assert numbers.size(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0.0 %"), (0.0001, "< 0.1 %"), (0.12345, "12.3 %"), (1.0, "100.0 %")]
)
def test_shares(value: float, text: str) -> None:
    assert numbers.share(value) == text


@pytest.mark.parametrize(
    ("name", "short", "shown"),
    [
        (
            "void at::native::vectorized_elementwise_kernel<(int)4, at::native::FillFunctor<float>, X>()",
            "vectorized_elementwise_kernel",
            "vectorized_elementwise_kernel<FillFunctor>",
        ),
        ("sm80_xmma_gemm_f32f32", "sm80_xmma_gemm_f32f32", "sm80_xmma_gemm_f32f32"),
        ("void reduce_kernel<512>(int)", "reduce_kernel", "reduce_kernel"),
        (
            "void cutlass::Kernel2<cutlass_80_simt_sgemm_256x128_8x4_nt_align1>(T1::Params)",
            "Kernel2",
            "Kernel2<cutlass_80_simt_sgemm_256x128_8x4_nt_align1>",
        ),
        (
            "void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<X, Y>>>(T::Params)",
            "device_kernel",
            "device_kernel<FlashAttnFwdSm90>",
        ),
        ("device_kernel(int)", "device_kernel", "device_kernel"),
    ],
)
def test_kernel_names_keep_what_distinguishes_them(name: str, short: str, shown: str) -> None:
    assert readable(name, short) == shown


def test_a_csv_column_that_holds_objects_in_some_rows_is_left_out_of_all() -> None:
    rows = ({"key": "a", "until": None, "ns": 1}, {"key": "b", "until": {"line": 7}, "ns": 2})
    assert rendered("csv", data=rows) == "key,ns\na,1\nb,2\n"
