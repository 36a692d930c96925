# SPDX-License-Identifier: Apache-2.0
"""Folders of Parquet or Arrow files answer as the SQLite file with the same tables."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from builders import TraceBuilder
from table_folders import to_folder

from profiling_lab.analysis.kernels.kernels import top_kernels
from profiling_lab.analysis.lines import lines
from profiling_lab.cli import COMMANDS, main
from profiling_lab.errors import UnreadableInputError
from profiling_lab.trace import Trace

VERBS = ["info", "lines", "kernels", "steps", "gaps", "overlap", "check", "apis", "copies", "syncs", "ranges"]
STACK = "/app/train.py:9 main > /app/model.py:4 Net.forward"


def small(path: Path, form: str) -> Path:
    builder = TraceBuilder(form=form)
    for i in range(30):
        builder.launch(f"k{i % 3}", 1000, stack=STACK, peek=i + 1)
        builder.launch("bwd", 900, node=i, node_name="MmBackward0", thread=2, peek=0)
        builder.range(f"aten::mm, seq = {i}, op_id = {i}", builder.now_ns - 10_000, builder.now_ns - 5_000)
    builder.copy("HtoD", 10_000, source=0, target=2).memset(300)
    builder.row("NVTX_EVENTS", start=0, eventType=75, text="Python Backtrace on CUDA", domainId=1)
    builder.row("TARGET_INFO_GPU", vmId=1, id=0, name="NVIDIA H200", smCount=132, computeMajor=9)
    builder.row("ThreadNames", nameId=builder.string("pt_autograd_0"), priority=20, globalTid=builder.tid(2))
    return builder.write(path)


def answer(verb: str, path: Path) -> tuple[int, Any]:
    """Exit code and JSON of a command, without what names the file."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        code = main([verb, str(path), "--format", "json"])
    text = out.getvalue().replace(str(path), "PATH")
    try:
        found = json.loads(text)
    except json.JSONDecodeError:
        return code, text
    if isinstance(found.get("trace"), dict):
        found["trace"].pop("file_bytes", None)
    return code, found


@pytest.mark.parametrize("kind", ["parquet", "arrow", "arrow stream"])
@pytest.mark.parametrize("form", ["recorder", "nsys"])
def test_every_command_says_the_same(tmp_path: Path, form: str, kind: str) -> None:
    path = small(tmp_path / "t.sqlite", form)
    folder = to_folder(path, tmp_path / "t_pqtdir", kind, chunk=7)
    for verb in set(VERBS) & set(COMMANDS):
        assert answer(verb, folder) == answer(verb, path), verb
    code, found = answer("lines", folder)
    assert code == 0 and found["data"]["rows"][0]["file"] == "/app/model.py"


@pytest.mark.parametrize(
    "name", ["fsdp_inference_2xh100", "python_backtrace_h200", "autograd_nvtx_h200", "sampling_h200"]
)
def test_real_captures_as_folders(captures: Path, tmp_path: Path, name: str) -> None:
    path = captures / f"{name}.sqlite"
    folder = to_folder(path, tmp_path / name)
    for verb in set(VERBS) & set(COMMANDS):
        assert answer(verb, folder) == answer(verb, path), verb


def test_types_that_sqlite_does_not_have(tmp_path: Path) -> None:
    """Ids as unsigned numbers, narrow integers, names as dictionaries, a column of NULLs: all read alike."""
    path = small(tmp_path / "t.sqlite", "recorder")
    folder = to_folder(path, tmp_path / "t")

    def change(table: str, columns: dict[str, Callable[[pa.ChunkedArray], pa.Array]]) -> None:
        file = folder / f"{table}.parquet"
        rows = pyarrow.parquet.read_table(file)
        for name, convert in columns.items():
            rows = rows.set_column(rows.column_names.index(name), name, convert(rows.column(name)))
        pyarrow.parquet.write_table(rows, file)

    def unsigned(column: pa.ChunkedArray) -> pa.Array:
        return pa.array(np.asarray(column.to_numpy()).view(np.uint64) | np.uint64(1 << 63))

    def narrow(column: pa.ChunkedArray) -> pa.Array:
        return column.cast(pa.int32())

    change("CUPTI_ACTIVITY_KIND_KERNEL", {"globalPid": unsigned, "deviceId": narrow, "streamId": narrow})
    change("CUPTI_ACTIVITY_KIND_MEMCPY", {"globalPid": unsigned, "copyKind": narrow})
    change("CUPTI_ACTIVITY_KIND_MEMSET", {"globalPid": unsigned})
    change("CUPTI_ACTIVITY_KIND_RUNTIME", {"globalTid": unsigned, "eventClass": narrow})
    for table in ("PYREC_LAUNCH", "ThreadNames"):
        change(table, {"globalTid": unsigned})
    change("StringIds", {"value": lambda column: column.combine_chunks().dictionary_encode()})
    change("NVTX_EVENTS", {"jsonTextId": lambda column: pa.nulls(len(column), pa.null())})
    with Trace.open(path) as whole, Trace.open(folder) as trace:
        assert lines(trace).rows == lines(whole).rows
        assert top_kernels(trace).rows == top_kernels(whole).rows
        assert set(trace.pids) == {100}


def test_values_that_are_no_integers_read_as_sqlite_casts_them(tmp_path: Path) -> None:
    path = small(tmp_path / "t.sqlite", "recorder")
    folder = to_folder(path, tmp_path / "t")
    file = folder / "CUPTI_ACTIVITY_KIND_KERNEL.parquet"
    rows = pyarrow.parquet.read_table(file)
    at = rows.column_names.index("streamId")
    texts = pa.array(["7 or so" if i % 2 else "N/A" for i in range(rows.num_rows)])
    pyarrow.parquet.write_table(rows.set_column(at, "streamId", texts), file)
    with Trace.open(folder) as trace:
        assert set(trace.operations.stream[: rows.num_rows].tolist()) == {0, 7}


def test_a_folder_that_is_no_trace(tmp_path: Path) -> None:
    with pytest.raises(UnreadableInputError, match="is a directory without the files of `nsys export"):
        Trace.open(tmp_path)
    pyarrow.parquet.write_table(pa.table({"x": [1]}), tmp_path / "recipes.parquet")
    with pytest.raises(UnreadableInputError, match="a directory of tables but not a GPU trace"):
        Trace.open(tmp_path)


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_a_damaged_file_is_named(tmp_path: Path, kind: str) -> None:
    folder = to_folder(small(tmp_path / "t.sqlite", "recorder"), tmp_path / "t", kind)
    file = folder / f"CUPTI_ACTIVITY_KIND_KERNEL.{kind}"
    file.write_bytes(file.read_bytes()[:-300])
    with pytest.raises(UnreadableInputError, match=f"KERNEL.{kind}"), Trace.open(folder) as trace:
        trace.operations  # noqa: B018


def test_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    rows = pa.table([pa.array([1]), pa.array([2])], names=["start", "START"])
    pyarrow.parquet.write_table(rows, tmp_path / "CUPTI_ACTIVITY_KIND_KERNEL.parquet")
    with pytest.raises(UnreadableInputError, match="two columns have the same name"):
        Trace.open(tmp_path)


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_names_that_are_no_text(tmp_path: Path, kind: str) -> None:
    folder = to_folder(small(tmp_path / "t.sqlite", "recorder"), tmp_path / "t", kind)
    file = folder / f"PYREC_META.{kind}"
    file.write_bytes(file.read_bytes().replace(b"value", b"\xff\xfe\xc1ue"))
    with pytest.raises(UnreadableInputError, match=f"PYREC_META.{kind}"), Trace.open(folder) as trace:
        trace.recorder_facts  # noqa: B018


def test_reading_leaves_the_folder_alone(tmp_path: Path) -> None:
    folder = to_folder(small(tmp_path / "t.sqlite", "nsys"), tmp_path / "t")
    before = {file.name: (file.stat().st_size, file.stat().st_mtime_ns) for file in folder.iterdir()}
    time.sleep(0.01)
    answer("lines", folder)
    assert before == {file.name: (file.stat().st_size, file.stat().st_mtime_ns) for file in folder.iterdir()}


def test_a_pipe_is_refused(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(UnreadableInputError, match="is a pipe or a device"):
        Trace.open(pipe)


def test_the_folder_is_what_sqlite_says_it_is(tmp_path: Path) -> None:
    """Against Python's own SQLite: the sum of the kernels' time."""
    path = small(tmp_path / "t.sqlite", "nsys")
    with sqlite3.connect(path) as file:
        (expected,) = file.execute("SELECT sum(end - start) FROM CUPTI_ACTIVITY_KIND_KERNEL").fetchone()
    file.close()
    with Trace.open(to_folder(path, tmp_path / "t")) as trace:
        kernels = trace.operations.kind == 0
        assert int(trace.operations.duration_ns[kernels].sum()) == expected
