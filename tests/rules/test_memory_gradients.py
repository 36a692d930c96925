# SPDX-License-Identifier: Apache-2.0
"""Gradients that are zeroed instead of freed"""

from __future__ import annotations

from builders import Judge, TraceBuilder
from memory_model.recordings import MIB, MemoryRecording, training

from profiling_lab.rules import Abstain
from profiling_lab.rules.memory_gradients import RULE


def trained(steps: int = 8, *, zero: bool = False) -> TraceBuilder:
    recording = MemoryRecording()
    training(recording, steps, zero=zero)
    return recording.finish()


def test_fires_where_they_add_to_the_peak_of_forward(judge: Judge) -> None:
    (finding,) = judge(RULE, trained(zero=True))
    assert f"stay allocated from step to step, {8 * MIB:,} bytes, 9.8 % of the peak" in finding.what
    assert "set_to_none=True" in finding.remedy and finding.place.line == 31


def test_silent_where_they_are_freed(judge: Judge) -> None:
    assert judge(RULE, trained()) == []


def with_peak_in_backward(late: bool) -> TraceBuilder:
    recording = MemoryRecording()
    training(recording, 6, zero=True)
    for number in range(10):
        if number == (8 if late else 1):
            recording.free(recording.malloc(100 * MIB))  # no frames: the engine's
        recording.launch("mul_bwd", node=4, node_name="MulBackward0", thread=2)
    return recording.finish()


def test_fires_where_the_peak_is_early_in_backward(judge: Judge) -> None:
    (finding,) = judge(RULE, with_peak_in_backward(late=False))
    assert f"{8 * MIB:,} bytes" in finding.what


def test_silent_where_the_peak_is_late_in_backward(judge: Judge) -> None:
    assert judge(RULE, with_peak_in_backward(late=True)) == []


def test_abstains_for_too_few_steps(judge: Judge) -> None:
    verdict = judge(RULE, trained(2, zero=True))
    assert isinstance(verdict, Abstain) and "the gradients of 2 optimizer steps" in verdict.reason


def test_abstains_without_a_history(judge: Judge) -> None:
    assert isinstance(judge(RULE, TraceBuilder().launch("gemm", 100)), Abstain)
