# SPDX-License-Identifier: Apache-2.0
"""What holds for the path of any trace, also of one that no machine could have made."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from builders import TraceBuilder
from made_traces.machine import Machine, made

from profiling_lab.analysis.critical_path.critical_path import PathOfStep
from profiling_lab.trace import Trace

APIS = ("cudaLaunchKernel", "cudaMemcpyAsync", "cudaStreamSynchronize", "cudaStreamWaitEvent", "cudaMalloc")


def holds(found: PathOfStep) -> None:
    graph = found.graph
    time_ns, _ = graph.schedule()
    assert (time_ns == graph.time_ns).all(), "the graph is not what was recorded"
    assert (graph.late_ns >= 0).all() and (graph.after_ns >= 0).all()
    in_parts = np.zeros(len(graph.source), dtype=np.int64)
    np.add.at(in_parts, graph.parts.edge, graph.parts.ns)
    assert (in_parts == graph.after_ns).all(), "a dependency is not the sum of its parts"
    path, segments = found.by_line(), found.segments
    assert (segments.start_ns[1:] == segments.end_ns[:-1]).all() and (segments.ns > 0).all()
    assert sum(row.path_ns for row in path.lines) == path.step.length_ns == int(segments.ns.sum())
    assert segments.start_ns[0] == path.step.start_ns
    for row in found.what_if(["all"]).rows:
        assert row.after_ns >= 0
    kinds = {kind for row in path.lines for kind in row.kind_ns} - {"unknown"}
    assert all(found.what_if([f"{kind}=1"]).rows[0].gain_ns == 0 for kind in kinds)


def of_anything(seed: int, path: Path) -> Trace:
    """Calls and operations at random times, on several threads, streams and GPUs, in any order."""
    pick = random.Random(seed)
    builder = TraceBuilder(form=pick.choice(("recorder", "nsys")))
    for _ in range(pick.randrange(2, 120)):
        builder.now_ns = pick.randrange(1_000_000, 1_000_000 + pick.choice((2_000, 500_000)))
        stack = pick.choice(("", "/app/train.py:7 main", "/app/train.py:8 main > /app/net.py:3 forward"))
        thread = pick.choice((1, 1, 2))
        how = {"stack": stack, "thread": thread, "call_ns": pick.choice((0, 1, 3_000, 90_000))}
        if pick.random() < 0.3:
            builder.call(pick.choice(APIS), **how)  # type: ignore[arg-type]
            continue
        node = {"node": pick.randrange(3), "node_name": "MulBackward0"} if pick.random() < 0.2 else {}
        builder.launch(
            pick.choice(("gemm", "relu", "ncclDevKernel_AllReduce_Sum_f32_RING_LL")),
            pick.choice((0, 1, 500, 70_000)),
            start_ns=pick.randrange(900_000, 1_600_000) if pick.random() < 0.5 else None,
            stream=pick.choice((7, 7, 13)),
            device=pick.choice((0, 0, 0, 1)),
            recorded=pick.random() < 0.9,
            stack=stack,
            thread=thread,
            **node,
        )
    builder.launch("gemm", 1_000, stack="/app/train.py:7 main")
    return Trace.open(builder.write(path))


@pytest.mark.parametrize("seed", range(60))
def test_of_anything(seed: int, tmp_path: Path) -> None:
    holds(PathOfStep(of_anything(seed, tmp_path / "run.sqlite")))


@pytest.mark.parametrize("seed", range(12))
def test_of_a_program(seed: int, tmp_path: Path) -> None:
    """On one stream every prediction comes true, whatever the program does."""
    pick = random.Random(seed)
    plan = [
        (pick.choice(("host", "kernel", "kernel", "sync")), line, pick.choice((3_000, 20_000, 45_000)))
        for line in range(10, 20)
    ]

    def program(machine: Machine) -> None:
        for what, line, ns in plan:
            if what == "sync":
                machine.sync(line)
                continue
            if what == "host":
                machine.host(line, ns)
            machine.kernel(line, ns * 2)

    found = made(program, tmp_path / "run.sqlite")
    holds(found)
    for line in pick.sample(range(10, 20), 3):
        for factor in (0.0, 0.5):
            (row,) = found.what_if([f"train.py:{line}={factor}"]).rows
            truth = made(program, tmp_path / f"{line}_{factor}.sqlite", {line: factor}).by_line()
            assert row.after_ns == pytest.approx(truth.step.length_ns, abs=12_000), (plan, line, factor)
