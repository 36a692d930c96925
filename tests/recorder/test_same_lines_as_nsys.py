# SPDX-License-Identifier: Apache-2.0
"""Two recorders, one program: the shipped recordings of the same steps on an H200, ours and nsys'."""

from __future__ import annotations

from pathlib import PurePath

import numpy as np
import pytest

from profiling_lab.exercises import find
from profiling_lab.trace import Trace
from profiling_lab.trace.columns import OperationKind
from profiling_lab.trace.ownership import Ownership

RECORDED = find("python-backtrace").folder / "recorded"
OWN = Ownership(("model.py", "train_model.py"))  # the program; what started it differs

Line = tuple[str, int]


def kernels(name: str) -> tuple[list[str], list[Line | None]]:
    """Short names and own lines of all kernels, in the order in which the GPU ran them."""
    with Trace.open(RECORDED / name) as trace:
        operations, own_row = trace.operations, trace.stacks.own_rows(OWN)
        rows = np.flatnonzero(operations.kind == OperationKind.KERNEL)
        rows = rows[np.argsort(operations.start_ns[rows], kind="stable")]
        names = [operations.short_names[number] for number in operations.name[rows]]
        stacks = own_row[trace.attribution.stack[rows]]
        frames = [trace.stacks.frames[trace.stacks.frame[stack]] if stack else None for stack in stacks]
        return names, [(PurePath(f.file).name, f.line) if f else None for f in frames]


@pytest.fixture(scope="module")
def ours() -> tuple[list[str], list[Line | None]]:
    return kernels("demo_h200.sqlite")


@pytest.fixture(scope="module")
def theirs() -> tuple[list[str], list[Line | None]]:
    return kernels("nsys_h200.sqlite")


def test_both_saw_the_same_kernels_in_the_same_order(
    ours: tuple[list[str], list[Line | None]], theirs: tuple[list[str], list[Line | None]]
) -> None:
    assert len(ours[0]) > 500 and ours[0] == theirs[0]


def test_every_kernel_that_nsys_has_a_stack_of_is_on_the_same_line(
    ours: tuple[list[str], list[Line | None]], theirs: tuple[list[str], list[Line | None]]
) -> None:
    both = [(mine, its) for mine, its in zip(ours[1], theirs[1], strict=True) if its is not None]
    assert len(both) > 100
    assert [mine for mine, _ in both] == [its for _, its in both]


def test_ours_has_a_line_for_every_kernel_that_nsys_has_none_for(
    ours: tuple[list[str], list[Line | None]], theirs: tuple[list[str], list[Line | None]]
) -> None:
    """Backward, and what is launched through cudaLaunchKernelExC: three quarters of this program."""
    alone = [mine for mine, its in zip(ours[1], theirs[1], strict=True) if its is None]
    assert len(alone) > len(ours[1]) / 2
    assert None not in alone
