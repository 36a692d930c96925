# SPDX-License-Identifier: Apache-2.0
"""The demo recorded on an H200 by nsys and by our recorder: where both know a line, it is the same line."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from profiling_lab.analysis.lines import lines, own_frames
from profiling_lab.trace import Frame, Trace
from profiling_lab.trace.attribution import Phase
from profiling_lab.trace.columns import OperationKind
from profiling_lab.trace.ownership import Ownership

RECORDED = Path("profiling_lab") / "exercises" / "e17_python_backtrace" / "recorded"


class Launch(NamedTuple):
    kernel: str
    phase: int
    frames: tuple[Frame, ...]


Both = tuple[list[Launch], list[Launch]]


def kernels_in_order(path: Path) -> list[Launch]:
    """Every kernel with the user's frames, in the order in which the GPU ran them."""
    with Trace.open(path) as trace:
        operations, found = trace.operations, trace.attribution
        own_row = trace.stacks.own_rows(Ownership())
        rows = np.flatnonzero(operations.kind == OperationKind.KERNEL)
        rows = rows[np.argsort(operations.start_ns[rows], kind="stable")]
        return [
            Launch(
                operations.short_names[operations.name[row]],
                int(found.phase[row]),
                own_frames(trace.stacks, own_row, int(found.stack[row])),
            )
            for row in rows.tolist()
        ]


@pytest.fixture(scope="module")
def both() -> Both:
    folder = Path(__file__).resolve().parents[2] / RECORDED
    return kernels_in_order(folder / "demo_h200.sqlite"), kernels_in_order(folder / "nsys_h200.sqlite")


def place(frame: Frame) -> tuple[str, int]:
    return Path(frame.file).name, frame.line


def test_both_saw_the_same_kernels(both: Both) -> None:
    ours, theirs = both
    assert [launch.kernel for launch in ours] == [launch.kernel for launch in theirs]


def test_every_forward_kernel_that_both_know_has_the_same_line(
    both: Both,
) -> None:
    known = [(o, t) for o, t in zip(*both, strict=True) if o.phase == t.phase == Phase.FORWARD and t.frames]
    assert len(known) > 100
    assert [place(o.frames[0]) for o, _ in known] == [place(t.frames[0]) for _, t in known]


def test_the_phase_of_a_kernel_does_not_depend_on_the_recorder(
    both: Both,
) -> None:
    ours, theirs = both
    assert [launch.phase for launch in ours] == [launch.phase for launch in theirs]


def test_our_recording_leaves_little_without_a_line(both: Both) -> None:
    with Trace.open(Path(__file__).resolve().parents[2] / RECORDED / "demo_h200.sqlite") as trace:
        result = lines(trace)
        assert result.coverage.attributed_frac >= 0.95
        first = result.rows[0]
        assert first.function == "HeavyLayer.forward" and first.backward_ns > 0
    missed = [launch for launch in both[0] if not launch.frames]
    assert len(missed) < 0.05 * len(both[0])
