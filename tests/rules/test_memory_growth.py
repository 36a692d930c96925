# SPDX-License-Identifier: Apache-2.0
"""Memory that grows from step to step"""

from __future__ import annotations

from builders import Judge, TraceBuilder
from memory_model.recordings import MIB, MemoryRecording, training

from profiling_lab.rules import Abstain
from profiling_lab.rules.memory_growth import RULE


def trained(steps: int = 8, **how: int) -> TraceBuilder:
    recording = MemoryRecording()
    training(recording, steps, **how)
    return recording.finish()


def test_fires_for_activations_in_a_list(judge: Judge) -> None:
    (finding,) = judge(RULE, trained(keep=3 * MIB))
    assert f"this line holds {3 * MIB:,} bytes more after each step" in finding.what
    assert (finding.place.file, finding.place.line) == ("/app/train.py", 40)
    assert finding.cause == "kept_tensors" and finding.cost_ns == 0 and finding.evidence


def test_fires_for_a_loss_that_is_logged_as_a_tensor(judge: Judge) -> None:
    (finding,) = judge(RULE, trained(keep=4))
    assert "holds 512 bytes more" in finding.what and finding.place.line == 40
    assert finding.cause == "logged_tensor" and "loss.item()" in finding.remedy


def test_silent_where_memory_stays(judge: Judge) -> None:
    assert judge(RULE, trained()) == []


def test_silent_for_what_only_some_steps_keep(judge: Judge) -> None:
    recording = MemoryRecording()
    training(recording, 4)
    recording.malloc(50 * MIB, "/app/train.py:70 best_so_far")
    training(recording, 4)
    assert judge(RULE, recording.finish()) == []


def test_silent_where_it_grew_in_too_few_steps(judge: Judge) -> None:
    recording = MemoryRecording()
    training(recording, 6, keep=3 * MIB)  # a cache that is full then
    training(recording, 3)
    assert judge(RULE, recording.finish()) == []


def test_abstains_without_a_history(judge: Judge) -> None:
    verdict = judge(RULE, TraceBuilder().launch("gemm", 100))
    assert isinstance(verdict, Abstain) and "record --memory" in verdict.to_record


def test_abstains_for_too_few_steps(judge: Judge) -> None:
    verdict = judge(RULE, trained(3, keep=3 * MIB))
    assert isinstance(verdict, Abstain) and "too few to see growth" in verdict.reason
