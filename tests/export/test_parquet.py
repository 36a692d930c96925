# SPDX-License-Identifier: Apache-2.0
"""Parquet: read back, it is what the trace holds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from builders import TraceBuilder
from package_root import PACKAGE_ROOT

from profiling_lab.analysis.lines import lines
from profiling_lab.export import parquet
from profiling_lab.export.parquet import write_parquet
from profiling_lab.trace import Trace
from profiling_lab.trace.columns import NO_SEQUENCE
from profiling_lab.trace.stacks import Frame

DEMO = PACKAGE_ROOT / "profiling_lab/exercises/e17_python_backtrace/recorded/demo_h200.sqlite"


def read(folder: Path) -> dict[str, pa.Table]:
    return {path.stem: pq.read_table(path) for path in folder.iterdir()}


@pytest.mark.parametrize("rows", [1 << 20, 100])
def test_read_back_it_equals_the_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    monkeypatch.setattr(parquet, "_ROWS", rows)
    with Trace.open(DEMO) as trace:
        write_parquet(trace, tmp_path)
        tables = read(tmp_path)
        operations, calls, ranges, stacks = trace.operations, trace.calls, trace.ranges, trace.stacks
        found, found_calls = tables["operations"], tables["calls"]
        assert set(tables) == {"operations", "calls", "ranges", "syncs", "overheads", "stacks"}
        for name in ("start_ns", "end_ns", "duration_ns", "stream", "device"):
            assert np.array_equal(found[name].to_numpy(), getattr(operations, name)), name
        assert found["name"].to_pylist() == [operations.names[i] for i in operations.name.tolist()]
        assert found["call"].to_pylist() == trace.attribution.call.tolist()
        assert np.array_equal(found_calls["start_ns"].to_numpy(), calls.start_ns)
        assert found_calls["name"].to_pylist() == [calls.names[i] for i in calls.name.tolist()]
        counter = [None if i == NO_SEQUENCE else i for i in calls.next_sequence.tolist()]
        assert found_calls["autograd_counter"].to_pylist() == counter
        assert tables["ranges"]["name"].to_pylist() == [ranges.names[i] for i in ranges.name.tolist()]
        columns = (
            tables["stacks"][name].to_pylist() for name in ("id", "parent", "file", "line", "function")
        )
        tree = {
            id_: (parent, file, line, function)
            for id_, parent, file, line, function in zip(*columns, strict=True)
        }
        for row in range(1, len(stacks)):
            frames, at = [], row
            while at:
                parent, file, line, function = tree[at]
                frames.append(Frame(function, file, line))
                at = parent or 0
            assert tuple(frames) == stacks.of(row)
        # The question of `lines`, asked of the file alone.
        summed = found.group_by(["file", "line", "phase"]).aggregate([("duration_ns", "sum")]).to_pylist()
        by_line = {(r["file"], r["line"], r["phase"]): r["duration_ns_sum"] for r in summed}
        for row in lines(trace).rows:
            assert by_line.get((row.file, row.line, "forward"), 0) == row.forward_ns
            assert by_line.get((row.file, row.line, "backward"), 0) == row.backward_ns
            assert by_line.get((row.file, row.line, "optimizer"), 0) == row.optimizer_ns


def test_what_is_not_known_is_null(tmp_path: Path) -> None:
    builder = TraceBuilder().launch("early", 3, recorded=False).copy("HtoD", 5, source=1, target=2)
    builder.range("open", 1_000_000, None)
    builder.row("CUPTI_ACTIVITY_KIND_OVERHEAD", start=1, end=2, globalTid=builder.tid(1), overheadType=8)
    with Trace.open(builder.write(tmp_path / "t.sqlite")) as trace:
        (tmp_path / "out").mkdir()
        write_parquet(trace, tmp_path / "out")
    tables = read(tmp_path / "out")
    early, copy = tables["operations"].to_pylist()
    assert [early[name] for name in ("call", "stack", "file", "line", "size_bytes", "source_memory")] == [
        None
    ] * 6
    assert (early["phase"], early["kind"], early["pid"]) == ("unknown", "kernel", 100)
    assert "before the recording began" in early["no_line_because"]
    assert (copy["source_memory"], copy["target_memory"], copy["size_bytes"]) == ("pinned", "device", 1 << 20)
    assert (copy["call"], copy["no_line_because"]) == (
        0,
        "no Python stack recorded for the call (cudaMemcpyAsync)",
    )
    assert tables["ranges"].to_pylist()[0]["end_ns"] is None
    assert tables["overheads"].to_pylist()[0] | {"id": 0} == {
        "id": 0,
        "kind": "command_buffer_full",
        "start_ns": 1,
        "end_ns": 2,
        "pid": 100,
        "tid": 100,
    }
    assert len(tables["stacks"]) == 0 and tables["stacks"].schema.field("line").type == pa.int64()


def test_pandas_reads_names_as_names(tmp_path: Path) -> None:
    pytest.importorskip("pandas", reason="pandas is not installed")
    with Trace.open(DEMO) as trace:
        write_parquet(trace, tmp_path)
        top = max(lines(trace).rows, key=lambda row: row.gpu_ns)
    import pandas

    frame = pandas.read_parquet(tmp_path / "operations.parquet")
    sums = frame.groupby(["file", "line"], observed=True)["duration_ns"].sum()
    assert sums.idxmax() == (top.file, top.line) and sums.max() == top.gpu_ns


def test_waits_find_their_call(captures: Path, tmp_path: Path) -> None:
    with Trace.open(captures / "fsdp_inference_2xh100.sqlite") as trace:
        write_parquet(trace, tmp_path)
        names = [trace.calls.names[i] for i in trace.calls.name.tolist()]
    waits = [row for row in read(tmp_path)["syncs"].to_pylist() if row["kind"] != "stream_waits_event"]
    assert len(waits) == 8
    assert {names[row["call"]] for row in waits if row["call"] is not None} == {"cudaStreamSynchronize"}
