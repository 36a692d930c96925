# SPDX-License-Identifier: Apache-2.0
"""Real kernels of the programs in programs/: on the lines that the program names, at least 99 % with one.

What has no line has a named reason; `-rP` prints the share of each, benchmarks/line_coverage.py keeps them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from recorder.program_lines import lines_of, marked, recorded, share

from profiling_lab.analysis.lines import LinesResult, lines
from profiling_lab.demo.training import record_training
from profiling_lab.trace import Trace

pytestmark = pytest.mark.gpu

STEPS = 3
RECORD = """
from programs import {name}
step = {name}.build("cuda"{options})
for _ in range({warm_up}): step()
torch.cuda.synchronize()
with profiling_lab.record(OUT) as recorder:
    for _ in range({steps}): step()
    torch.cuda.synchronize()
assert recorder.summary.dropped == 0 and recorder.summary.reasons == {{}}, recorder.summary
"""


def of_program(
    run_gpu: Any, tmp_path: Path, name: str, options: str = "", warm_up: int = 2, timeout: int = 120
) -> LinesResult:
    run_gpu(RECORD.format(name=name, options=options, warm_up=warm_up, steps=STEPS), timeout=timeout)
    result = lines_of(tmp_path / "out.sqlite", name)
    print(f"{name}{options}: {share(result.coverage)}")
    return result


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("gpt2", ""),
        ("vit", ""),
        ("checkpointing", ", use_reentrant=False"),
        ("checkpointing", ", use_reentrant=True"),
        ("custom_function", ""),
        ("double_backward", ""),
        ("operators", ""),
        ("operators", ", multithreading=False"),
        ("two_threads", ""),
        ("accumulation", ""),
        ("data_loading", ""),
        ("cuda_graph", ""),
    ],
)
def test_kernels_are_on_their_lines(run_gpu: Any, tmp_path: Path, name: str, options: str) -> None:
    result = of_program(run_gpu, tmp_path, name, options)
    assert recorded(result, name) == marked(name)
    assert result.coverage.attributed_frac >= 0.99, result.coverage.unattributed


def test_the_demo(tmp_path: Path) -> None:
    path = tmp_path / "demo.sqlite"
    record_training(path, "slow", print, steps=2)
    with Trace.open(path) as trace:
        covered = lines(trace, own=("model.py", "train_model.py")).coverage
    print(f"profiling-lab demo: {share(covered)}")
    assert covered.attributed_frac >= 0.99, covered.unattributed


def test_backward_of_a_custom_function_names_where_it_ran(run_gpu: Any, tmp_path: Path) -> None:
    result = of_program(run_gpu, tmp_path, "custom_function")
    ran = {executed.frame.function for row in result.rows for executed in row.executed if row.backward_ns > 0}
    assert ran == {"Swish.backward"}


def test_recomputation_is_a_phase_of_the_size_of_forward(run_gpu: Any, tmp_path: Path) -> None:
    result = of_program(run_gpu, tmp_path, "checkpointing", ", use_reentrant=False")
    in_layer = [row for row in result.rows if row.function == "Layer.forward"]
    assert len(in_layer) == 4
    for row in in_layer:
        assert row.recompute_ns == pytest.approx(row.forward_ns, rel=0.3), row


def test_generated_kernels_are_on_the_lines_they_were_generated_from(run_gpu: Any, tmp_path: Path) -> None:
    pytest.importorskip("triton")
    result = of_program(run_gpu, tmp_path, "compiled", timeout=300)
    assert recorded(result, "compiled") == marked("compiled")
    assert result.coverage.attributed_frac >= 0.99, result.coverage.unattributed


def test_replays_of_compiled_graphs_are_on_the_function_that_was_compiled(
    run_gpu: Any, tmp_path: Path
) -> None:
    pytest.importorskip("triton")
    result = of_program(run_gpu, tmp_path, "compiled", ', mode="reduce-overhead"', warm_up=5, timeout=300)
    outside = {line: p for line, p in marked("compiled").items() if line.startswith(("loss.", "optimizer."))}
    assert recorded(result, "compiled") == marked("compiled", "as a graph") | outside
    assert result.coverage.attributed_frac >= 0.99, result.coverage.unattributed


def test_replays_of_compiled_graphs_kernel_by_kernel(run_gpu: Any, tmp_path: Path) -> None:
    """Their kernels have the line of the capture: Inductor remembers no origins of code that it cuts up."""
    pytest.importorskip("triton")
    run_gpu(
        """
from programs import compiled
with profiling_lab.record(OUT, graph_nodes=True) as recorder:
    step = compiled.build("cuda", mode="reduce-overhead")
    for _ in range(25): step()
    torch.cuda.synchronize()
assert recorder.summary.dropped == 0 and recorder.summary.reasons == {}, recorder.summary
""",
        timeout=300,
    )
    result = lines_of(tmp_path / "out.sqlite", "compiled")
    print(f"kernel by kernel: {share(result.coverage)}")
    of_the_model = [row for row in result.rows if row.function == "Mlp.forward"]
    assert sum(row.kernels for row in of_the_model) > 20 * 10
    assert all(row.forward_ns and row.backward_ns for row in of_the_model), of_the_model
    assert result.coverage.attributed_frac >= 0.99, result.coverage.unattributed
