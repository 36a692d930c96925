# SPDX-License-Identifier: Apache-2.0
"""Bad input is one clear sentence and the right exit code."""

from __future__ import annotations

import gzip
import sqlite3
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from builders import TraceBuilder
from made_traces.xplane import training, write_space

from profiling_lab.analysis.kernels.kernels import top_kernels
from profiling_lab.analysis.lines import lines
from profiling_lab.errors import LabError, NotEnoughDataError, UnreadableInputError, UsageError
from profiling_lab.trace import Trace
from profiling_lab.trace.xplane import messages


def missing(path: Path) -> None: ...


def directory(path: Path) -> None:
    path.mkdir()


def empty(path: Path) -> None:
    path.touch()


def noise(path: Path) -> None:
    path.write_bytes(bytes(range(256)) * 100)


def other_sqlite(path: Path) -> None:
    with sqlite3.connect(path) as file:
        file.execute("CREATE TABLE recipes (name TEXT)")
    file.close()


def truncated(path: Path) -> None:
    builder = TraceBuilder()
    for _ in range(500):
        builder.launch("gemm", 10)
    builder.write(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])


def cut_in_the_header(path: Path) -> None:
    path.write_bytes(b"SQLite format 3\x00" + bytes(20))


def overwritten(path: Path) -> None:
    TraceBuilder().launch("gemm", 10).write(path)
    whole = path.read_bytes()
    path.write_bytes(whole[:100] + b"\xa5" * (len(whole) - 100))


def report_of_nsys(path: Path) -> None:
    path.write_bytes(b"QDSTRM and then some")


def broken_gzip(path: Path) -> None:
    path.write_bytes(gzip.compress(b"x" * 10_000)[:20])


def packed_and_cut(path: Path) -> None:
    truncated(path)
    path.write_bytes(gzip.compress(path.read_bytes())[:3000])


def packed_but_truncated_inside(path: Path) -> None:
    truncated(path)
    path.write_bytes(gzip.compress(path.read_bytes()))


def packed_other_sqlite(path: Path) -> None:
    other_sqlite(path)
    path.write_bytes(gzip.compress(path.read_bytes()))


@pytest.mark.parametrize(
    ("make", "name", "says"),
    [
        (missing, "t.sqlite", "there is no such file"),
        (directory, "t.sqlite", "is a directory"),
        (empty, "t.sqlite", "is empty"),
        (noise, "t.sqlite", "is not a trace"),
        (other_sqlite, "t.sqlite", "not a GPU trace"),
        (truncated, "t.sqlite", "truncated"),
        (cut_in_the_header, "t.sqlite", "is truncated inside its SQLite header"),
        (overwritten, "t.sqlite", "cannot be read as SQLite"),
        (report_of_nsys, "run.nsys-rep", "nsys export --type=sqlite"),
        (broken_gzip, "t.json.gz", "cannot be decompressed"),
        (packed_and_cut, "t.sqlite.gz", "truncated or damaged, it cannot be decompressed"),
        (packed_but_truncated_inside, "t.sqlite.gz", "is a truncated SQLite file"),
        (packed_other_sqlite, "t.sqlite.gz", "not a GPU trace"),
    ],
    ids=lambda value: value.__name__ if callable(value) else None,
)
def test_unreadable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], None], name: str, says: str
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    path = tmp_path / name
    make(path)
    with pytest.raises(UnreadableInputError, match=says) as caught:
        Trace.open(path)
    one_sentence(caught.value)
    assert caught.value.exit_code == 4
    assert [*tmp_path.iterdir()] in ([], [path]), "what was unpacked is deleted"


def test_an_xplane_file_says_what_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether protobuf is installed or not."""
    messages.message_class.cache_clear()
    messages._pool.cache_clear()
    for name in [name for name in sys.modules if name.startswith("google")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "google.protobuf", None)
    path = write_space(tmp_path / "host.xplane.pb", training())
    with pytest.raises(UnreadableInputError, match=r"pip install 'profiling-lab\[xplane\]'") as caught:
        Trace.open(path)
    assert "\n" not in str(caught.value)
    messages.message_class.cache_clear()
    messages._pool.cache_clear()


def one_sentence(error: LabError) -> None:
    assert "\n" not in str(error) and "Traceback" not in str(error)
    assert "t.sqlite" in str(error) or "t.json.gz" in str(error) or "run.nsys-rep" in str(error)


@pytest.mark.parametrize("ask", [lines, top_kernels])
def test_a_trace_without_gpu_work(tmp_path: Path, ask: Callable[[Trace], object]) -> None:
    path = TraceBuilder().call("cudaMalloc_v3020").write(tmp_path / "t.sqlite")
    with Trace.open(path) as trace, pytest.raises(NotEnoughDataError, match="no GPU operation") as caught:
        ask(trace)
    one_sentence(caught.value)
    assert caught.value.exit_code == 3


def test_an_nsys_trace_without_gpu_work_names_the_flag(tmp_path: Path) -> None:
    path = TraceBuilder(form="nsys").call("cudaMalloc_v3020").write(tmp_path / "t.sqlite")
    with Trace.open(path) as trace, pytest.raises(NotEnoughDataError, match="--trace=cuda"):
        lines(trace)


def test_a_trace_without_stacks_names_the_flags(tmp_path: Path) -> None:
    path = TraceBuilder(form="nsys").launch("gemm", 10).write(tmp_path / "t.sqlite")
    with Trace.open(path) as trace:
        with pytest.raises(NotEnoughDataError, match="--python-backtrace=cuda --cudabacktrace=all:0"):
            lines(trace)
        assert [row.key for row in lines(trace, by="kernel").rows] == ["gemm"], "kernels need no stacks"


def test_stacks_left_out_of_the_export_are_counted(tmp_path: Path) -> None:
    builder = (
        TraceBuilder(form="nsys").launch("gemm", 10, stack="a.py:1 f").launch("gemm", 10, stack="a.py:2 f")
    )
    for mark in builder.rows["NVTX_EVENTS"]:
        mark["jsonText"] = None
    builder.row("NVTX_EVENTS", start=0, eventType=75, text="Python Backtrace on CUDA", domainId=1)
    with (
        Trace.open(builder.write(tmp_path / "t.sqlite")) as trace,
        pytest.raises(NotEnoughDataError, match=r"2 were recorded; export them with .*--include-json=true"),
    ):
        lines(trace)


def test_ranges_are_asked_for_where_there_are_none(tmp_path: Path) -> None:
    path = TraceBuilder().launch("gemm", 10).write(tmp_path / "t.sqlite")
    with Trace.open(path) as trace, pytest.raises(NotEnoughDataError, match="no NVTX ranges"):
        lines(trace, by="range")


def test_a_value_that_is_no_integer(tmp_path: Path) -> None:
    path = TraceBuilder().launch("gemm", 10).write(tmp_path / "t.sqlite")
    with sqlite3.connect(path) as file:
        file.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = 'N/A', streamId = 1.5")
    file.close()
    with Trace.open(path) as trace:
        assert not len(trace.operations), "SQLite's own cast makes 0 of it, which is no time"
        assert trace.repairs == {"GPU operations at impossible times (skipped)": 1}


@pytest.mark.parametrize("wrong", [{"by": "moon"}, {"phase": "sideways"}, {"depth": 0}, {"limit": 0}])
def test_invalid_arguments_are_usage_errors(tmp_path: Path, wrong: dict[str, object]) -> None:
    path = TraceBuilder().launch("gemm", 10, stack="a.py:1 f").write(tmp_path / "t.sqlite")
    with Trace.open(path) as trace, pytest.raises(UsageError, match="must be"):
        lines(trace, **wrong)  # type: ignore[arg-type]


def test_sqlite_inside_of_gzip_is_read_as_the_file_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = TraceBuilder().launch("gemm", 10, stack="a.py:1 f").write(tmp_path / "t.sqlite")
    packed = tmp_path / "t.sqlite.gz"
    # two members, as `cat a.gz b.gz` makes them
    packed.write_bytes(gzip.compress(plain.read_bytes()[:5000]) + gzip.compress(plain.read_bytes()[5000:]))
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    with Trace.open(packed) as trace, Trace.open(plain) as other:
        assert lines(trace).rows == lines(other).rows
        assert trace.path == packed
    assert not [*temporary.iterdir()], "what was unpacked is deleted"


def test_no_space_to_unpack_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = TraceBuilder().launch("gemm", 10).write(tmp_path / "t.sqlite")
    path.write_bytes(gzip.compress(path.read_bytes()))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    with pytest.raises(UnreadableInputError, match="cannot be unpacked into a temporary file") as caught:
        Trace.open(path)
    one_sentence(caught.value)
