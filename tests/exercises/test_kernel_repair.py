# SPDX-License-Identifier: Apache-2.0
"""Repaired kernels: right ones pass, and each way to be fast without the work is rejected.

The judge is tested with Python functions as launchers. Compiled ones run on the CPU where there is no GPU.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from profiling_lab.exercises import cuda_build, find, kernel_repair
from profiling_lab.exercises.e05_memory_metrics import repair as memory
from profiling_lab.exercises.e06_compute_metrics import repair as compute
from profiling_lab.exercises.e08_optimization_loop import repair as loop
from profiling_lab.exercises.exercise import CheckStatus, GradedCheck
from profiling_lab.exercises.kernel_repair import Task, code, judged

Call = Callable[..., int]


def scale_grid(values: torch.Tensor, out: torch.Tensor, rows: int, cols: int, factor: float) -> int:
    assert values.shape == (rows, cols)
    out.copy_(values * factor)
    return 0


def flip_tiles(values: torch.Tensor, out: torch.Tensor, rows: int, cols: int) -> int:
    for row in range(0, rows, 32):
        for col in range(0, cols, 32):
            out[row : row + 32, col : col + 32] = values[row : row + 32, col : col + 32].T
    return 0


def smooth(values: torch.Tensor, out: torch.Tensor, n: int, radius: int) -> int:
    window = torch.ones(1, 1, 2 * radius + 1) / (2 * radius + 1)
    out.copy_(torch.nn.functional.conv1d(values.view(1, 1, n), window, padding=radius).view(n))
    return 0


def grow(start: torch.Tensor, steps: torch.Tensor, _: Any, out: torch.Tensor, n: int, rate: float) -> int:
    x = start.clone()
    for step in range(int(steps.max())):
        x = torch.where(step < steps, x + rate * (1 - x * x), x)
    out.copy_(x)
    return 0


def walk(table: torch.Tensor, first: torch.Tensor, out: torch.Tensor, walkers: int, steps: int) -> int:
    following, node = table.view(torch.int32)[:, 31], first.clone()
    out.zero_()
    for _ in range(steps):
        out += table[node.long(), :31]
        node = following[node.long()]
    return 0


def rows(values: torch.Tensor, out: torch.Tensor, height: int, width: int) -> int:
    out.copy_(values * torch.rsqrt(values.square().mean(1, keepdim=True) + loop.EPSILON))
    return 0


RIGHT: dict[str, Call] = {
    "run_scale_grid": scale_grid,
    "run_flip_tiles": flip_tiles,
    "run_smooth": smooth,
    "run_grow": grow,
    "run_walk": walk,
    "run_normalize_rows": rows,
}
TASKS = (*memory.TASKS, *compute.TASKS, *loop.TASKS)


def graded(task: Task, repaired: Call) -> GradedCheck:
    return judged({task.name: RIGHT[task.name]}, {task.name: repaired}, [task], "cpu")[0]


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_a_right_launcher_passes(task: Task) -> None:
    """An implementation in float32 that shares nothing with the reference in float64."""
    found = judged(RIGHT, RIGHT, [task], "cpu")
    assert [each.status for each in found] == [CheckStatus.PASSED, CheckStatus.NOT_CHECKED], found


def half(right: Call) -> Call:
    def call(*arguments: Any) -> int:
        right(*arguments)
        out = next(each for each in arguments[1:] if torch.is_tensor(each) and each.dtype == torch.float32)
        out.view(-1)[out.numel() // 2 :] = 0
        return 0

    return call


def test_results_that_are_cached_hard_coded_or_left_out_fail() -> None:
    task = memory.TASKS[0]
    kept: list[torch.Tensor] = []

    def cached(values: torch.Tensor, out: torch.Tensor, *more: Any) -> int:
        if not kept or kept[0].shape != out.shape:
            scale_grid(values, out, *more)
            kept[:] = [out.clone()]
        else:
            out.copy_(kept[0])
        return 0

    def in_place(values: torch.Tensor, out: torch.Tensor, *more: Any) -> int:
        scale_grid(values, out, *more)
        values.zero_()
        return 0

    def constant(_: torch.Tensor, out: torch.Tensor, *__: Any) -> int:
        out.fill_(0.375)
        return 0

    def rounded(values: torch.Tensor, out: torch.Tensor, *more: Any) -> int:
        scale_grid(values.half().float(), out, *more)
        return 0

    def beyond(values: torch.Tensor, out: torch.Tensor, *more: Any) -> int:
        scale_grid(values, out, *more)
        torch.as_strided(out, (1,), (1,), out.storage_offset() + out.numel()).fill_(0)
        return 0

    again = Task("run_scale_grid", lambda generator, _: memory.grid(generator, 1), 1.0)
    assert graded(again, scale_grid).status is CheckStatus.PASSED
    wrongs: list[tuple[Call, str]] = [(each, "differs by") for each in (cached, constant, rounded)]
    wrongs += [(half(scale_grid), "differs by"), (lambda *_: 0, "differs by nan")]
    wrongs += [(lambda *_: 700, "CUDA error 700"), (in_place, "an input is changed")]
    wrongs += [(beyond, "writes beyond its memory")]
    for wrong, hint in wrongs:
        check = graded(again, wrong)
        assert check.status is CheckStatus.FAILED and hint in check.message, (hint, check)
    assert "run_scale_grid: " in graded(task, constant).message


@pytest.mark.parametrize("task", compute.TASKS, ids=lambda task: task.name)
def test_half_of_the_work_is_not_enough(task: Task) -> None:
    right = RIGHT[task.name]

    def fewer(*arguments: Any) -> int:
        whole = list(arguments)
        whole[-1] = whole[-1] // 2 if isinstance(whole[-1], int) else whole[-1] / 2  # radius, rate or steps
        return right(*whole)

    assert graded(task, fewer).status is CheckStatus.FAILED


def test_a_comment_is_no_repair(tmp_path: Path) -> None:
    exercise = find("memory-metrics")
    starter = exercise.folder / "memory_bandwidth.cu"
    changed = tmp_path / starter.name
    changed.write_text("/* faster */\n" + starter.read_text().replace("  //", " // now"))
    assert code(changed) == code(starter)
    assert kernel_repair.checks(starter, changed, memory.__name__)[0].status is CheckStatus.FAILED
    assert (
        kernel_repair.checks(starter, tmp_path / "gone.cu", memory.__name__)[0].status is CheckStatus.FAILED
    )


GUARD, BLOCK, LAUNCH = "if (row < rows &&", "const dim3 block(32, 8);", "  scale_grid<<<grid, block>>>"
STEPS = "step < steps; step++"
SUM = "k < VECTORS; k++) {\n    squares"
WRONG = (  # of which exercise, why, what of the solution, what instead, what the grader says
    ("memory-metrics", "the second half left out", GUARD, "if (row < rows / 2 &&", "differs by nan"),
    ("memory-metrics", "a constant", "out[i] = factor * in[i];\n  }", "out[i] = 0.5f;\n  }", "differs by"),
    ("memory-metrics", "no launch", LAUNCH, f"  if (false){LAUNCH}", "differs by nan"),
    ("memory-metrics", "a launch that fails", BLOCK, "const dim3 block(32, 64);", "CUDA error"),
    ("memory-metrics", "another name", "run_scale_grid", "run_grid", "no function run_scale_grid"),
    ("compute-metrics", "fewer steps", "steps[item];", "steps[item] / 2;", "run_grow: a result differs"),
    ("compute-metrics", "items in another order", "out[item] = x", "out[place] = x", "run_grow: a result"),
    ("compute-metrics", "half of the walk", STEPS, "step < steps; step += 2", "run_walk: a result differs"),
    ("optimization-loop", "the mean of a part", SUM, SUM.replace("VECTORS", "2"), "differs"),
    ("optimization-loop", "rows of one length alone", "} else {", "} else if (cols == 2048) {", "nan"),
)  # fmt: skip


def graded_source(slug: str, old: str, new: str, folder: Path) -> GradedCheck:
    """The check "result" of the solution with a mistake: on the CPU where there is no GPU."""
    exercise = find(slug)
    name = exercise.program[0].removeprefix("./") + ".cu"
    text = (exercise.folder / "solutions" / name).read_text()
    assert old in text
    (folder / name).write_text(text.replace(old, new))
    module = f"profiling_lab.exercises.{exercise.entry.package}.repair"
    return kernel_repair.checks(exercise.folder / name, folder / name, module)[0]


@pytest.mark.usefixtures("warm_children")
@pytest.mark.parametrize(("slug", "why", "old", "new", "hint"), WRONG, ids=[row[1] for row in WRONG])
def test_wrong_kernels_are_rejected(
    slug: str, why: str, old: str, new: str, hint: str, tmp_path: Path
) -> None:
    if cuda_build.host_compiler() is None and shutil.which("nvcc") is None:
        pytest.skip("there is no C++ compiler on the PATH")
    check = graded_source(slug, old, new, tmp_path)
    assert check.status is CheckStatus.FAILED and hint in check.message, check


def test_a_kernel_that_writes_where_it_must_not_ends_no_grader(tmp_path: Path) -> None:
    if cuda_build.host_compiler() is None and shutil.which("nvcc") is None:
        pytest.skip("there is no C++ compiler on the PATH")
    check = graded_source(
        "memory-metrics", "out[i] = factor * in[i];\n  }", "out[i + (1LL << 40)] = 1;\n  }", tmp_path
    )
    assert check.status is CheckStatus.FAILED, check
    assert "ended with status" in check.message or "CUDA error" in check.message or "fails" in check.message


@pytest.mark.gpu
def test_a_source_that_does_not_compile_is_one_sentence(tmp_path: Path) -> None:
    if shutil.which("nvcc") is None:
        pytest.skip("nvcc is not on the PATH")
    check = graded_source("memory-metrics", "run_scale_grid(", "run_scale_grid((", tmp_path)
    assert check.status is CheckStatus.FAILED and "does not compile" in check.message, check


@pytest.mark.gpu
@pytest.mark.parametrize("slug", ["memory-metrics", "compute-metrics", "optimization-loop"])
def test_the_solution_is_fast_enough(slug: str) -> None:
    if shutil.which("nvcc") is None:
        pytest.skip("nvcc is not on the PATH")
    exercise = find(slug)
    name = exercise.program[0].removeprefix("./") + ".cu"
    module = f"profiling_lab.exercises.{exercise.entry.package}.repair"
    found = kernel_repair.checks(exercise.folder / name, exercise.folder / "solutions" / name, module)
    assert all(each.status is CheckStatus.PASSED for each in found), found
