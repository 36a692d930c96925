# SPDX-License-Identifier: Apache-2.0
"""A replayed graph, node by node: its kernels land on the lines that captured them, in their phase."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from builders import TraceBuilder

from profiling_lab.analysis.lines import lines
from profiling_lab.trace import Trace


def by_line(path: Path) -> dict[int, tuple[int, int]]:
    """Kernels and backward nanoseconds by line of the script minus the prelude."""
    with Trace.open(path) as trace:
        rows = lines(trace, own=("script.py",)).rows
    return {row.line - 1: (row.kernels, row.backward_ns) for row in rows if row.file.endswith("script.py")}


CAPTURED = """
def capture():
    fake.captured(101)
    fake.captured(102)
def replay():
    fake.replay({201: "first", 202: "second"})
def instantiate():
    for node in (101, 102):
        fake.graph_node(node + 100, node)
"""


def test_kernels_land_on_the_lines_that_captured_them(run: Any, query: Any, tmp_path: Path) -> None:
    run(
        CAPTURED
        + """
with profiling_lab.record(OUT, graph_nodes=True):
    capture()
    instantiate()
    for _ in range(3):
        replay()
    fake.kernel("eager")
"""
    )
    graph_nodes = query("SELECT graphNodeId, correlationId FROM PYREC_GRAPH_NODE ORDER BY graphNodeId")
    assert graph_nodes == [(101, 1), (102, 2), (201, 1), (202, 2)]
    assert {line: kernels for line, (kernels, _) in by_line(tmp_path / "out.sqlite").items()} == {
        2: 3,
        3: 3,
        15: 1,
    }
    # The calls that made the GPU run are still the replays.
    assert query("SELECT DISTINCT correlationId FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE graphNodeId") == [
        (3,),
        (4,),
        (5,),
    ]


def test_a_whole_graph_is_one_row_unless_nodes_are_asked_for(run: Any, query: Any) -> None:
    run(
        CAPTURED
        + """
import sqlite3
GRAPH_TRACE = 51
for nodes in (False, True):
    with profiling_lab.record(OUT, overwrite=True, graph_nodes=nodes):
        assert fake.kind_enabled(GRAPH_TRACE) == (not nodes)
        capture(); instantiate(); replay()
    found = sqlite3.connect(OUT).execute("SELECT name FROM sqlite_master WHERE name = 'PYREC_GRAPH_NODE'")
    assert len(found.fetchall()) == nodes
"""
    )


def test_from_the_first_pause_on_graphs_are_recorded_kernel_by_kernel(run: Any, query: Any) -> None:
    """Their kind would cost in pauses, and once it was off CUPTI must not see it again: it crashes at an
    older graph.
    """
    run(
        CAPTURED
        + """
GRAPH_TRACE = 51
with profiling_lab.record(OUT, schedule=profiling_lab.Schedule(signal="USR1")):
    assert not fake.kind_enabled(GRAPH_TRACE)
with profiling_lab.record(OUT, overwrite=True) as recorder:
    assert fake.kind_enabled(GRAPH_TRACE)
    for _ in range(2):
        recorder.pause()
        assert not fake.kind_enabled(GRAPH_TRACE)
        recorder.resume()
        assert not fake.kind_enabled(GRAPH_TRACE)
    capture(); instantiate(); replay()
"""
    )
    assert query("SELECT graphNodeId, correlationId FROM PYREC_GRAPH_NODE") == [
        (101, 1),
        (102, 2),
        (201, 1),
        (202, 2),
    ]


def test_a_node_captured_when_nothing_was_recorded_has_the_replays_line(run: Any, tmp_path: Path) -> None:
    run(
        CAPTURED
        + """
recorder = profiling_lab.recording.Recorder(OUT, graph_nodes=True)
recorder.start(); recorder.pause()
capture()
recorder.resume()
instantiate()
replay()
recorder.stop()
"""
    )
    assert {line: kernels for line, (kernels, _) in by_line(tmp_path / "out.sqlite").items()} == {5: 2}


@pytest.mark.parametrize("others", [False, True])
def test_backward_captured_into_a_graph_belongs_to_the_forward_line(tmp_path: Path, others: bool) -> None:
    """A whole training step in a graph: the node was captured by autograd's thread, which has no frames."""
    builder = TraceBuilder()
    builder.call("cudaLaunchKernel_v7000", stack="/project/model.py:7 Net.forward", correlation=1, peek=6)
    builder.call("cudaLaunchKernel_v7000", thread=2, correlation=2, peek=0, node=5)
    builder.call("cudaGraphLaunch_v10000", stack="/project/train.py:30 main", correlation=3, peek=6)
    pid = builder.tid(1) & ~0xFFFFFF
    for node, correlation in ((11, 1), (12, 2)):
        builder.row("PYREC_GRAPH_NODE", globalPid=pid, graphNodeId=node, correlationId=correlation)
        if others:  # another process has nodes of the same numbers
            builder.row("PYREC_GRAPH_NODE", globalPid=pid + (1 << 24), graphNodeId=node, correlationId=3)
        details = {
            "demangledName": builder.string("k"),
            "shortName": builder.string("k"),
            "graphNodeId": node,
        }
        builder.operation("CUPTI_ACTIVITY_KIND_KERNEL", 10, details, api="", recorded=False, correlation=3)
    with Trace.open(builder.write(tmp_path / "trace.sqlite")) as trace:
        rows = lines(trace).rows
    assert [(row.file, row.line, row.forward_ns, row.backward_ns) for row in rows] == [
        ("/project/model.py", 7, 10, 10)
    ]
