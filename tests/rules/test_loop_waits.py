# SPDX-License-Identifier: Apache-2.0
"""Launches that go with the waits of a loop"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from builders import TraceBuilder

from profiling_lab.analysis.critical_path.savings import Saving, fewer
from profiling_lab.rules.finding import Finding
from profiling_lab.rules.loop_waits import with_launches
from profiling_lab.rules.view import View
from profiling_lab.trace import Trace

STEPS = 4


def steps(reads: int) -> TraceBuilder:
    """Line 80 reads values in each step, and so often launches two kernels; line 81 launches one."""
    builder = TraceBuilder()
    for step in range(STEPS):
        begin_ns = builder.now_ns
        for _ in range(reads):
            builder.launch("k", 1_000, stack="/a.py:80 f").launch("k", 1_000, stack="/a.py:81 f")
            builder.copy("DtoH", 1_000, size_bytes=8, stack="/a.py:80 f")
            builder.call("cudaStreamSynchronize_v3020", stack="/a.py:80 f")
        builder.range(f"step {step}", begin_ns, builder.now_ns - 1)
    return builder


@pytest.mark.parametrize(("reads", "stepped", "known"), [(8, True, 8), (7, True, 0), (8, False, 0)])
def test_what_is_at_lines_that_wait_again_and_again(
    reads: int, stepped: bool, known: int, tmp_path: Path
) -> None:
    with Trace.open(steps(reads).write(tmp_path / "run.sqlite")) as trace:
        view = View(trace)
        if not stepped:
            view.__dict__["steps"] = None
        waits = np.flatnonzero(view.called("cudaStreamSynchronize")).astype(np.int64)
        kernels = np.flatnonzero(view.kernels).astype(np.int64)
        one = Finding("reads", 1, "idle", None, (), 0, "read less", saving=Saving(calls=waits))
        found = with_launches(view, one, [fewer(kernels, 0.25)])
    assert found.saving is not None and len(found.saving.operations) == STEPS * known
    assert found.saving.launches_left == pytest.approx([0.3 / (2 * reads)] * STEPS * known), (
        "both lines launch a k in each pass, and no wait is between those of a batch"
    )
    assert len(found.saving.calls) == STEPS * reads
    assert (found.remedy != one.remedy) is (known > 0)


def test_a_finding_that_takes_nothing_away_stays(tmp_path: Path) -> None:
    with Trace.open(steps(8).write(tmp_path / "run.sqlite")) as trace:
        one = Finding("slow", 1, "time", None, (), 0, "do less")
        assert with_launches(View(trace), one, []) is one
