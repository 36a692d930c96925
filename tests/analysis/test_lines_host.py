# SPDX-License-Identifier: Apache-2.0
"""Host time per line from samples of Python stacks, with and without work on the GPU."""

from __future__ import annotations

import io
import sqlite3
from pathlib import Path

import pytest
from builders import TraceBuilder

from profiling_lab.analysis.flame import call_tree
from profiling_lab.analysis.lines import lines
from profiling_lab.analysis.lines_host import HostLinesResult, ThreadSamples, host_lines, host_stacks
from profiling_lab.analysis.own_files import check_own
from profiling_lab.errors import NotEnoughDataError, UsageError
from profiling_lab.report.lines.host import host_lines_report
from profiling_lab.report.table import write
from profiling_lab.trace import Trace
from profiling_lab.trace.window import WindowSelection

MS = 1_000_000
MAIN = "/app/train.py:8 main"
LOAD = f"{MAIN} > /app/data.py:5 load"
DECODE = f"{LOAD} > /lib/python3.11/site-packages/PIL/Image.py:7 decode"
LIBRARY = "/lib/python3.11/threading.py:3 wait"


def fact(builder: TraceBuilder, **facts: object) -> TraceBuilder:
    for name, value in facts.items():
        builder.row("PYREC_META", name=name, value=str(value))
    return builder


def sampled(form: str = "recorder") -> TraceBuilder:
    """Two threads, at ten moments 1 ms apart; nothing ran on the GPU."""
    builder = TraceBuilder(form=form)
    for moment, stack in enumerate([MAIN] * 2 + [LOAD] * 3 + [DECODE] * 5, 100):
        builder.sample(moment * MS, stack)
        builder.sample(moment * MS, LIBRARY if moment % 2 else LOAD, thread=2)
    return builder


def told(path: Path, **how: object) -> HostLinesResult:
    with Trace.open(path) as trace:
        return host_lines(trace, **how)  # type: ignore[arg-type]


def counts(result: HostLinesResult) -> dict[str, tuple[int, int]]:
    return {row.key: (row.samples, row.inclusive_samples) for row in result.rows}


def test_samples_count_for_the_innermost_own_line(tmp_path: Path) -> None:
    builder = fact(sampled(), samples_per_second=500, samples_late=3, samples_lost=1)
    result = told(builder.write(tmp_path / "t.sqlite"))
    assert counts(result) == {"/app/data.py:5": (13, 13), "/app/train.py:8": (2, 15)}
    first = result.rows[0]
    assert (first.host_ns, first.share_frac, first.function) == (26 * MS, 13 / 20, "load")
    assert result.rows[1].inclusive_ns == 30 * MS
    assert first.threads == (ThreadSamples("100", 8), ThreadSamples("101", 5))
    assert result.threads == (ThreadSamples("100", 10), ThreadSamples("101", 10))
    assert (result.samples, result.without_line, result.without_stack) == (20, 5, 0)
    assert (result.period_ns, result.is_measured, result.missed_ns) == (2 * MS, False, 8 * MS)
    assert sum(row.samples for row in result.rows) + result.without_line == result.samples


def test_groups_depth_order_and_limit(tmp_path: Path) -> None:
    path = sampled().write(tmp_path / "t.sqlite")
    assert [row.key for row in told(path, sort="inclusive").rows] == ["/app/train.py:8", "/app/data.py:5"]
    assert [row.key for row in told(path, sort="key", by="file").rows] == ["/app/data.py", "/app/train.py"]
    assert counts(told(path, by="function"))["/app/data.py:load"] == (13, 13)
    assert told(path, depth=2).rows[0].key == "/app/data.py:5 < /app/train.py:8"
    assert told(path, own=("Image.py",)).rows[0].key.endswith("/PIL/Image.py:7")
    cut = told(path, limit=1)
    assert (len(cut.rows), cut.total_matched, cut.truncated) == (1, 2, True)
    only_calls = TraceBuilder().sample(MS, LOAD).write(tmp_path / "calls.sqlite")
    assert counts(told(only_calls)) == {"/app/data.py:5": (1, 1)}
    assert counts(told(only_calls, sort="inclusive"))["/app/train.py:8"] == (0, 1)


def test_a_period_that_the_file_does_not_say_is_measured(tmp_path: Path) -> None:
    result = told(sampled("nsys").write(tmp_path / "t.sqlite"))
    assert (result.period_ns, result.is_measured, result.missed_ns) == (MS, True, 0)
    alone = told(TraceBuilder(form="nsys").sample(5 * MS, LOAD).write(tmp_path / "one.sqlite"))
    assert alone.period_ns is None
    assert (alone.rows[0].samples, alone.rows[0].host_ns, alone.rows[0].inclusive_ns) == (1, None, None)


def test_samples_without_a_python_stack_are_named(tmp_path: Path) -> None:
    builder = sampled("nsys")
    library = builder.string("libc.so.6")
    native = (
        "CREATE TABLE COMPOSITE_EVENTS AS"
        " SELECT 1 AS id, 100000000 AS start, globalTid FROM NVTX_EVENTS LIMIT 1",
        "CREATE TABLE SAMPLING_CALLCHAINS AS"
        f" SELECT 1 AS id, {library} AS symbol, {library} AS module, 0 AS stackDepth",
    )
    path = builder.write(tmp_path / "t.sqlite")
    with sqlite3.connect(path) as file:
        for statement in native:
            file.execute(statement)
    file.close()
    result = told(path)
    assert (result.samples, result.without_stack) == (20, 1)


@pytest.mark.parametrize(
    ("part", "count"),
    [
        ({"range": "0:3ms"}, 6),  # from the first sample on; the end is not included
        ({"range": "2ms:3ms"}, 2),
        ({"nvtx": "loading"}, 4),
        ({"nvtx": "loading", "range": "5ms:"}, 2),
        ({"ranks": (0,)}, 20),
    ],
)
def test_a_part_needs_no_work_on_the_gpu(part: dict[str, object], count: int, tmp_path: Path) -> None:
    builder = sampled().range("loading", 104 * MS, 106 * MS)
    with Trace.open(builder.write(tmp_path / "t.sqlite")) as trace:
        inside = trace.windowed(WindowSelection(**part))  # type: ignore[arg-type]
        assert host_lines(inside).samples == count
        with pytest.raises(NotEnoughDataError, match="holds no GPU operation"):
            _ = inside.operations


def test_a_part_of_a_recording_of_the_gpu_where_the_gpu_idled(tmp_path: Path) -> None:
    builder = TraceBuilder().launch("a", 90_000, start_ns=2 * MS, stack=MAIN, peek=1)
    for moment in range(10):
        builder.sample((10 + moment) * MS, LOAD)
    with Trace.open(builder.write(tmp_path / "t.sqlite")) as trace:
        idle = trace.windowed(WindowSelection(range="12ms:15ms"))
        assert host_lines(idle).samples == 3
        with pytest.raises(NotEnoughDataError, match="no GPU operation in this window"):
            lines(idle)
        with pytest.raises(NotEnoughDataError, match="no GPU operation in this window"):
            trace.windowed(WindowSelection(range="25ms:30ms"))  # nor a sample
        with pytest.raises(NotEnoughDataError, match="no sample of a Python stack in this window"):
            host_lines(trace.windowed(WindowSelection(range="0:2ms")))
        with pytest.raises(UsageError, match="belong to no device"):
            host_lines(trace.windowed(WindowSelection(devices=(0,))))
        check_own(["data.py"], [trace])  # it launches nothing: only samples hold it
        with pytest.raises(UsageError, match="no file of the recording is there"):
            check_own(["datas.py"], [trace])


def test_what_says_how_to_get_there(tmp_path: Path, captures: Path) -> None:
    with Trace.open(sampled().write(tmp_path / "cpu.sqlite")) as trace:
        for table in (lines, call_tree):
            with pytest.raises(NotEnoughDataError, match="`lines --host` shows its 20 samples of Python"):
                table(trace)
        with pytest.raises(NotEnoughDataError, match="steps are those of GPU work"):
            trace.windowed(WindowSelection(step="0"))
        for wrong in ({"by": "kernel"}, {"sort": "kernels"}):
            with pytest.raises(UsageError, match="of samples must be one of"):
                host_lines(trace, **wrong)  # type: ignore[arg-type]
    builder = TraceBuilder().launch("a", 90_000, stack=MAIN, peek=1)
    with pytest.raises(NotEnoughDataError, match=r"holds no samples of Python stacks: .*--sample-python`$"):
        told(builder.write(tmp_path / "none.sqlite"))
    with pytest.raises(NotEnoughDataError, match="export with --include-json=true"):
        told(captures / "sampling_h200.sqlite")
    with pytest.raises(NotEnoughDataError, match=r"--sample-python`, or give nsys --python-sampling=true"):
        told(captures / "python_backtrace_h200.sqlite")
    with pytest.raises(NotEnoughDataError, match=r"with `profiling-lab record --sample-python`$"):
        told(captures / "resnet50_num_workers_0.pt.trace.json.gz")


def test_functions_without_a_line_are_rows_of_their_own(tmp_path: Path) -> None:
    """Python adds instructions that have no line; `data.py:0` was one row for all functions of a file."""
    builder = TraceBuilder()
    for moment, function in enumerate(("load", "decode", "decode"), 1):
        builder.sample(moment * MS, f"{MAIN} > /app/data.py:0 {function}")
    with Trace.open(builder.write(tmp_path / "t.sqlite")) as trace:
        result = host_lines(trace)
        assert counts(result) == {"/app/data.py:decode": (2, 2), "/app/data.py:load": (1, 1)}
        shown = io.StringIO()
        write(host_lines_report(trace, result), "table", shown)
    assert "data.py (decode, no line)" in shown.getvalue() and ":0" not in shown.getvalue()


@pytest.mark.parametrize("own", [(), ("data.py",)])
def test_samples_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: tuple[str, ...]) -> None:
    """Reading them takes longer than counting them."""
    path = sampled().write(tmp_path / "t.sqlite")
    with Trace.open(path) as trace:
        read = trace.source.samples
        asked: list[object] = []
        monkeypatch.setattr(trace.source, "samples", lambda own: asked.append(own) or read(own))
        part = trace.windowed(WindowSelection(range="0ms:5ms"))
        assert sum(stack.ns for stack in host_stacks(trace, own)) == 20 * MS
        assert host_lines(part, own=own).samples < host_lines(trace, own=own).samples == 20
    assert len([each for each in asked if each.paths == own]) == 1
