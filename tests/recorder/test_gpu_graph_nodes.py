# SPDX-License-Identifier: Apache-2.0
"""CUDA graphs kernel by kernel on a real GPU: inference, and a training step with its backward, by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from profiling_lab.analysis.lines import lines
from profiling_lab.trace import Trace

pytestmark = pytest.mark.gpu


def by_line(path: Path) -> dict[int, Any]:
    with Trace.open(path) as trace:
        rows = lines(trace, own=("script.py",)).rows
    return {row.line - 1: row for row in rows if row.file.endswith("script.py")}


def test_a_captured_forward(run_gpu: Any, query: Any, tmp_path: Path) -> None:
    run_gpu("""
with profiling_lab.record(OUT, graph_nodes=True) as recorder:
    a = torch.randn(256, 256, device="cuda"); (a @ a).sin(); torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        b = a @ a
        c = b.sin()
        d = c.cos().exp()
    for _ in range(5):
        graph.replay()
    torch.cuda.synchronize()
    assert torch.allclose(d, (a @ a).sin().cos().exp())
print(recorder.summary.meta, recorder.summary.reasons)
""")
    nodes = query("SELECT count(DISTINCT graphNodeId) FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE graphNodeId")
    known = query(
        "SELECT count(DISTINCT k.graphNodeId) FROM CUPTI_ACTIVITY_KIND_KERNEL k "
        "JOIN PYREC_GRAPH_NODE n USING (graphNodeId)"
    )
    assert nodes == known and nodes[0][0] >= 4, (nodes, known)
    found = by_line(tmp_path / "out.sqlite")
    assert found[5].kernels >= 5 and found[5].kernels % 5 == 0
    assert found[6].kernels == 5 and found[7].kernels == 10
    assert 9 not in found, "nothing is left on the replay's line"


def test_a_captured_training_step(run_gpu: Any, tmp_path: Path) -> None:
    run_gpu("""
with profiling_lab.record(OUT, graph_nodes=True):
    w = torch.randn(256, 256, device="cuda", requires_grad=True)
    x = torch.randn(64, 256, device="cuda")
    def step():
        hidden = x @ w
        return hidden.tanh().sum()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(2): step().backward(); w.grad = None
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step().backward()
    torch.cuda.synchronize()
    for _ in range(100):
        graph.replay()
    torch.cuda.synchronize()
""")
    found = by_line(tmp_path / "out.sqlite")
    for line in (5, 6):
        assert found[line].kernels >= 200, "forward and backward of 100 replays"
        assert found[line].forward_ns > 0 and found[line].backward_ns > 0
    assert 15 not in found, "nothing is left on the replay's line"
