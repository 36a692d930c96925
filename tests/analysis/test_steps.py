# SPDX-License-Identifier: Apache-2.0
"""Steps found by each of the signs, and where their time goes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from builders import TraceBuilder

from profiling_lab.analysis.steps import StepsResult, steps
from profiling_lab.errors import NotEnoughDataError, UsageError
from profiling_lab.trace import Trace

RECORDED = Path(__file__).resolve().parents[2] / "profiling_lab/exercises/e17_python_backtrace/recorded"


def steps_of(builder: TraceBuilder, folder: Path, nvtx: str | None = None) -> StepsResult:
    with Trace.open(builder.write(folder / "run.sqlite")) as trace:
        result = steps(trace, nvtx)
    for row in result.rows:
        assert row.compute_ns + row.communication_ns + row.copy_ns + row.idle_ns == row.wall_ns > 0
    return result


def test_parts_of_a_step_and_what_comes_first(tmp_path: Path) -> None:
    builder = TraceBuilder()
    at = 2_000_000
    for kind, start, length in (("gemm", 0, 100), ("ncclDevKernel_AllReduce", 50, 100), ("gemm", 400, 10)):
        builder.launch(kind, length, start_ns=at + start, stream=7 + (start == 50))
    builder.copy("HtoD", 200, start_ns=at + 100, stream=9).memset(20, start_ns=at + 340, stream=9)
    (row,) = steps_of(builder, tmp_path).rows
    # Compute 0-100 and 400-410, communication 100-150, copies 150-300 and 340-360, the rest of 410 idle.
    assert (row.compute_ns, row.communication_ns, row.copy_ns, row.idle_ns) == (110, 50, 170, 80)


def test_profiler_steps_are_used_unchanged(tmp_path: Path) -> None:
    builder = TraceBuilder()
    for i in range(3):
        begin = builder.now_ns
        builder.launch("gemm", 1000).gap(50_000)
        builder.range(f"ProfilerStep#{i}", begin, builder.now_ns)
    result = steps_of(builder, tmp_path)
    assert (result.sign, result.clock, result.steps) == ("ProfilerStep", "host", 3)
    assert [row.name for row in result.rows] == ["ProfilerStep#0", "ProfilerStep#1", "ProfilerStep#2"]
    assert {row.wall_ns for row in result.rows} == {55_000}


def ranges(builder: TraceBuilder, name: str, times: int = 3) -> TraceBuilder:
    for _ in range(times):
        begin = builder.now_ns
        builder.launch("gemm", 30_000).launch("relu", 30_000)
        builder.range(name, begin, builder.now_ns)
    return builder


def test_ranges_are_followed_to_the_gpu(tmp_path: Path) -> None:
    """The host is done with all steps while the GPU is in the first: on its clock a step is its own work."""
    result = steps_of(ranges(TraceBuilder(), "training_step"), tmp_path)
    assert (result.sign, result.clock) == ("range", "gpu") and "training_step" in result.how
    assert [row.compute_ns for row in result.rows] == [60_000] * 3
    assert [row.name for row in result.rows] == [f"training_step #{i}" for i in (1, 2, 3)]
    assert result.outside_ns == 0


def test_work_between_two_steps_belongs_to_neither(tmp_path: Path) -> None:
    builder = ranges(ranges(TraceBuilder(), "step", 1).launch("evaluate", 500_000), "step", 1)
    result = steps_of(builder, tmp_path)
    assert [row.compute_ns for row in result.rows] == [60_000, 60_000]
    assert result.outside_busy_ns == 500_000


def test_own_ranges(tmp_path: Path) -> None:
    builder = ranges(ranges(TraceBuilder(), "training_step"), "epoch", 2)
    result = steps_of(builder, tmp_path, "^epoch$")
    assert result.steps == 2 and "'^epoch$'" in result.how
    with Trace.open(tmp_path / "run.sqlite") as trace:
        with pytest.raises(NotEnoughDataError, match="no finished range"):
            steps(trace, "nothing_like_it")
        with pytest.raises(UsageError, match="regular expression"):
            steps(trace, "(")
        with pytest.raises(UsageError, match="at least 1"):
            steps(trace, limit=0)


def test_optimizer_lines(tmp_path: Path) -> None:
    builder = TraceBuilder()
    optimizer = "/app/train.py:9 main > /lib/python3.11/site-packages/torch/optim/adamw.py:200 AdamW.step"
    for i in range(4):
        for j in range(2 + i % 2):  # no exact period
            builder.launch(f"gemm{i}{j}", 10_000, stack="/app/train.py:7 main")
        builder.launch("adam", 1000, stack=optimizer).launch("adam2", 1000, stack=optimizer)
    result = steps_of(builder, tmp_path)
    assert (result.sign, result.steps) == ("optimizer", 3), "before the first end there is no whole step"
    assert [row.compute_ns for row in result.rows] == [32_000, 22_000, 32_000]


def test_period_of_the_launches(tmp_path: Path) -> None:
    builder = TraceBuilder().copy("HtoD", 9000)
    for _ in range(5):
        builder.launch("embed", 1000)
        for _ in range(3):
            builder.launch("gemm", 1000).launch("relu", 2000)
    result = steps_of(builder, tmp_path)
    assert (result.sign, result.steps) == ("period", 5)
    assert {row.compute_ns for row in result.rows} == {10_000}, "the step, not the layer in it"


def test_sizes_that_grow_repeat_lines_but_not_kernels(tmp_path: Path) -> None:
    """A cache that grows needs other kernels in each step, and some steps need one more."""
    builder = TraceBuilder()
    for step in range(6):
        builder.launch(f"embed_{step}", 1000, stack="/app/run.py:3 main")
        for _ in range(2):
            for part in range(1 + step % 3):
                builder.launch(f"gemm_{step}_{part}", 2000, stack="/app/run.py:5 main > /app/net.py:7 f")
            builder.launch(f"cat_{step}", 1000, stack="/app/run.py:5 main > /app/net.py:8 f")
    result = steps_of(builder, tmp_path)
    assert (result.sign, result.steps) == ("period", 6)


@pytest.mark.parametrize(("layers", "steps"), [((2, 3), 12), ((1, 3), 6)])
def test_sizes_that_take_turns_are_a_step_each(tmp_path: Path, layers: tuple[int, int], steps: int) -> None:
    """Each size has kernels of its own. Parts that launch far more than others are parts of a step."""
    builder = TraceBuilder()
    for _ in range(6):
        for size, number in enumerate(layers):
            for part in range(number):
                builder.launch(f"embed_{size}_{part}", 1000, stack="/app/run.py:3 main")
            for part in range(number):
                builder.launch(f"gemm_{size}_{part}", 2000, stack="/app/run.py:5 main > /app/net.py:7 f")
    result = steps_of(builder, tmp_path)
    assert (result.sign, result.steps) == ("period", steps)


def test_without_lines_other_kernels_are_no_steps(tmp_path: Path) -> None:
    builder = TraceBuilder()
    for step in range(6):
        builder.launch(f"embed_{step}", 1000).launch(f"gemm_{step}", 2000)
    assert steps_of(builder, tmp_path).sign == "window"


def test_steps_that_differ_share_what_they_launch_once(tmp_path: Path) -> None:
    """Branches are taken at random, and so often that no sequence of launches comes again."""
    taken = np.random.default_rng(0).random((12, 30)) < 0.8
    builder = TraceBuilder()
    for step in taken.tolist():
        for branch, runs in enumerate(step):
            if runs:
                builder.launch(f"k{branch % 3}", 1_000, stack=f"/app/net.py:{5 + branch % 2} forward")
        builder.launch("mean", 1_000, stack="/app/net.py:9 predict")
    result = steps_of(builder, tmp_path)
    assert (result.sign, result.steps) == ("period", 11)


def test_a_step_of_two_loops_begins_where_the_first_one_begins_again(tmp_path: Path) -> None:
    """A prompt is read word by word, then the answer is said: nothing comes once in a step but the turns."""
    builder = TraceBuilder()
    for _ in range(8):
        for words, around in ((20, "/app/run.py:4 read"), (6, "/app/run.py:9 answer")):
            for _ in range(words):
                builder.launch("embed", 1_000, stack=f"{around} > /app/net.py:7 f")
                builder.launch("gemm", 2_000, stack=f"{around} > /app/net.py:8 f")
    result = steps_of(builder, tmp_path)
    assert (result.sign, result.steps) == ("period", 7)
    assert {row.compute_ns for row in result.rows} == {26 * 3_000}


@pytest.mark.parametrize(
    ("counts", "steps"), [(range(2, 26, 2), 11), ((2, 18, 3, 16, 24, 4, 9, 2, 19, 5, 30), 0)]
)
def test_steps_that_have_more_and_more_to_do(tmp_path: Path, counts: Sequence[int], steps: int) -> None:
    """Hooks that are registered again in each step: no step is like the others, but each has more."""
    builder, chosen = TraceBuilder(), random.Random(0)
    for count in counts:
        builder.launch("embed", 1_000, stack="/app/net.py:3 forward")
        for _ in range(count):
            builder.launch("mean", 1_000, stack=f"/app/net.py:{chosen.randrange(5, 9)} hook")
    result = steps_of(builder, tmp_path)
    assert result.steps == steps if steps else result.sign == "window"


def test_the_same_kernel_again_and_again_is_no_step(tmp_path: Path) -> None:
    builder = TraceBuilder().launch("fill", 1_000)
    for _ in range(30):
        builder.launch("attend", 1_000)
    assert steps_of(builder, tmp_path).sign == "window"


def test_a_kernel_that_comes_at_any_time_is_no_sign_of_a_step(tmp_path: Path) -> None:
    once = TraceBuilder()
    for number in range(40):
        once.launch("mean" if number in (0, 3, 4, 20, 21, 22, 39) else f"k{number}", 1_000)
    assert steps_of(once, tmp_path).sign == "window"


def test_without_any_sign_the_window_is_one_step(tmp_path: Path) -> None:
    result = steps_of(TraceBuilder().launch("gemm", 1000).launch("relu", 1000), tmp_path)
    assert result.sign == "window" and "the whole window" in result.how and len(result.rows) == 1
    assert result.outside_ns == 0


def test_an_outlier_says_what_grew(tmp_path: Path) -> None:
    builder = TraceBuilder()
    for i in range(6):
        begin = builder.now_ns
        builder.launch("gemm", 1000).gap(900_000 if i == 4 else 50_000)
        builder.range(f"ProfilerStep#{i}", begin, builder.now_ns)
    slow = [(row.name, row.grew) for row in steps_of(builder, tmp_path).rows if row.outlier]
    assert slow == [("ProfilerStep#4", "idle")]


def test_each_process_has_its_own_steps(tmp_path: Path) -> None:
    builder = TraceBuilder()
    for _ in range(4):
        builder.launch("a", 1000, pid=100).launch("b", 1000, pid=100)
        builder.launch("a", 1000, pid=200, device=1).launch("c", 1000, pid=200, device=1)
    result = steps_of(builder, tmp_path)
    assert result.steps == 8 and {(row.pid, row.device) for row in result.rows} == {(100, 0), (200, 1)}


def test_the_demo() -> None:
    with Trace.open(RECORDED / "demo_h200.sqlite") as trace:
        result = steps(trace)
    assert (result.sign, result.steps, result.clock) == ("range", 4, "gpu")
    for row in result.rows:
        assert row.wall_ns == pytest.approx(22_514_000, rel=2e-3)
        assert 0.02 < row.idle_ns / row.wall_ns < 0.03 and row.communication_ns == 0


@pytest.mark.parametrize(
    ("workers", "wall_ms", "idle_ms"),
    [
        (0, [176.1, 174.0, 176.9, 181.3, 176.5, 164.3], 461),
        (4, [181.6, 123.9, 126.8, 126.3, 163.5, 116.1], 231),
    ],
)
def test_resnet50_steps(captures: Path, workers: int, wall_ms: list[float], idle_ms: float) -> None:
    with Trace.open(captures / f"resnet50_num_workers_{workers}.pt.trace.json.gz") as trace:
        result = steps(trace)
    assert result.sign == "ProfilerStep"
    assert [round(row.wall_ns / 1e6, 1) for row in result.rows] == wall_ms
    assert sum(row.idle_ns for row in result.rows) == pytest.approx(idle_ms * 1e6, rel=0.01)


def test_fsdp_inference_is_copying(captures: Path) -> None:
    with Trace.open(captures / "fsdp_inference_2xh100.sqlite") as trace:
        result = steps(trace)
    assert result.sign == "period" and "layers" in result.how and result.clock == "gpu"
    assert {row.device for row in result.rows} == {0, 1}
    for row in result.rows:
        assert row.copy_ns > 0.95 * row.wall_ns and row.idle_ns < 0.01 * row.wall_ns
