# SPDX-License-Identifier: Apache-2.0
"""Kinds of allocations, phases and lines: of snapshots, by frames and frees alone."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from memory_model.fake_allocator import FakeAllocator, OutOfMemoryError, frame

import profiling_lab

MIB = 1 << 20
TORCH = "/usr/lib/python3.11/site-packages/torch/"
MAIN = frame("<module>", "/home/u/train.py", 9)


def stack(*frames: tuple[str, str, int]) -> list[dict[str, Any]]:
    """Innermost first; the program calls the last one."""
    return [
        *(frame(name, file if file.startswith("/") else TORCH + file, line) for name, file, line in frames),
        MAIN,
    ]


def kinds(allocator: FakeAllocator, folder: Path, at: str = "peak") -> dict[str, int]:
    path = folder / "snapshot.pickle"
    path.write_bytes(pickle.dumps(allocator.snapshot()))
    with profiling_lab.open(path) as trace:
        return dict(trace.memory(at=at).facts["devices"][0]["kinds"])


@pytest.mark.parametrize(
    ("made", "kind"),
    [(("convert", "nn/modules/module.py", 1360), "parameters"),
     (("__init__", "nn/modules/linear.py", 96), "parameters"),
     (("_init_group", "optim/adamw.py", 90), "optimizer state"),
     (("forward", "nn/modules/linear.py", 125), "unknown"),
     (("adamw", "optim/adamw.py", 300), "unknown"), (("forward", "/home/u/model.py", 3), "unknown")],
)  # fmt: skip
def test_frames_of_torch_tell_what_is_made(made: tuple[str, str, int], kind: str, tmp_path: Path) -> None:
    allocator = FakeAllocator()
    allocator.malloc(MIB, stack(("empty_like", "_refs/__init__.py", 5), made))
    assert kinds(allocator, tmp_path) == {kind: MIB}


def test_what_the_engine_frees_is_an_activation(tmp_path: Path) -> None:
    allocator = FakeAllocator()
    forward = stack(("forward", "/home/u/model.py", 3))
    saved, passing = allocator.malloc(MIB, forward), allocator.malloc(MIB // 2, forward)
    allocator.free(passing, stack(("forward", "/home/u/model.py", 4)))
    allocator.free(saved, [])
    assert kinds(allocator, tmp_path) == {"activations": MIB, "unknown": MIB // 2}


def test_frees_without_frames_of_their_own_tell_nothing(tmp_path: Path) -> None:
    allocator = FakeAllocator()
    allocator.free(allocator.malloc(MIB, stack(("forward", "/home/u/model.py", 3))))
    allocator.free(allocator.malloc(MIB, []))
    assert kinds(allocator, tmp_path) == {"unknown": MIB}


@pytest.mark.parametrize("size", [8_519_680, 33_554_432])
def test_cublas_keeps_its_workspace(size: int, tmp_path: Path) -> None:
    allocator = FakeAllocator()
    allocator.malloc(size, stack(("linear", "nn/functional.py", 5)))
    allocator.free(allocator.malloc(size, stack(("zeros", "/home/u/model.py", 3))))
    found = kinds(allocator, tmp_path)
    assert set(found) == {"workspace", "unknown"}


@pytest.mark.parametrize(
    ("frames", "phase"),
    [(stack(("unpack_hook", "utils/checkpoint.py", 1120)), "recompute"),
     (stack(("checkpoint", "utils/checkpoint.py", 496)), "forward"),
     (stack(("_init_group", "optim/adamw.py", 90)), "optimizer"),
     (stack(("_engine_run_backward", "autograd/graph.py", 829)), "backward"),
     (stack(("apply", "autograd/function.py", 307))[:1], "backward"),
     (stack(("apply", "autograd/function.py", 575)), "forward"), ([], "unknown")],
)  # fmt: skip
def test_frames_tell_the_phase(frames: list[dict[str, Any]], phase: str, tmp_path: Path) -> None:
    allocator = FakeAllocator()
    allocator.malloc(MIB, frames)
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(allocator.snapshot()))
    with profiling_lab.open(path) as trace:
        assert trace.memory()["phase"] == [phase]


def test_an_error_in_forward_leaves_the_kind_open(tmp_path: Path) -> None:
    allocator = FakeAllocator(100 * MIB)
    allocator.malloc(80 * MIB, stack(("forward", "/home/u/model.py", 3)))
    with pytest.raises(OutOfMemoryError):
        allocator.malloc(30 * MIB, stack(("forward", "/home/u/model.py", 3)))
    assert kinds(allocator, tmp_path) == {"unknown": 80 * MIB}
