# SPDX-License-Identifier: Apache-2.0
"""Workspaces of cuBLAS at the peak"""

from __future__ import annotations

import pytest
from builders import Judge, TraceBuilder
from memory_model.recordings import MIB, MemoryRecording

from profiling_lab.rules import Abstain
from profiling_lab.rules.memory_workspace import RULE

LINEAR = "/app/model.py:8 forward > /usr/lib/python3.11/site-packages/torch/nn/functional.py:5 linear"


def with_workspaces(count: int, others: int) -> TraceBuilder:
    recording = MemoryRecording()
    recording.launch()
    for _ in range(count):
        recording.malloc(32 * MIB, LINEAR)
    recording.malloc(others, "/app/model.py:3 weights")
    recording.launch()
    return recording.finish()


def test_fires_where_they_take_much_of_the_peak(judge: Judge) -> None:
    (finding,) = judge(RULE, with_workspaces(2, 36 * MIB))
    assert f"workspaces of cuBLAS (2 of them) hold {64 * MIB:,} bytes, 64.0 % of the peak" in finding.what
    assert (finding.place.file, finding.place.line) == ("/app/model.py", 8)


@pytest.mark.parametrize(("count", "others"), [(0, 30 * MIB), (1, 400 * MIB)])
def test_silent_where_they_take_little(judge: Judge, count: int, others: int) -> None:
    assert judge(RULE, with_workspaces(count, others)) == []


def test_abstains_without_a_history(judge: Judge) -> None:
    assert isinstance(judge(RULE, TraceBuilder().launch("gemm", 100)), Abstain)
