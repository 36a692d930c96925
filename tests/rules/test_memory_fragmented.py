# SPDX-License-Identifier: Apache-2.0
"""Reserved memory in pieces that are too small"""

from __future__ import annotations

import contextlib

from builders import Judge, TraceBuilder
from memory_model.fake_allocator import OutOfMemoryError
from memory_model.recordings import MIB, MemoryRecording

from profiling_lab.rules import Abstain
from profiling_lab.rules.memory_fragmented import RULE


def in_pieces(wanted: int, total: int = 80 << 30) -> TraceBuilder:
    """100 MiB in blocks of 2 MiB, each second one free; then one large request at line 50."""
    recording = MemoryRecording(total=total, capacity=100 * MIB)
    recording.launch()
    blocks = [recording.malloc(2 * MIB, "/app/train.py:20 fill") for _ in range(50)]
    recording.free(*blocks[::2])
    with contextlib.suppress(OutOfMemoryError):
        if wanted:
            recording.malloc(wanted, "/app/train.py:50 ask")
    recording.launch()
    return recording.finish()


def test_fires_for_an_error_that_had_enough_free(judge: Judge) -> None:
    (finding,) = judge(RULE, in_pieces(40 * MIB))
    assert f"ran out of memory for {40 * MIB:,} bytes with {50 * MIB:,} bytes free" in finding.what
    assert f"at most {2 * MIB:,} in one piece" in finding.what and finding.place.line == 50


def test_fires_where_most_of_the_gpu_is_reserved_and_free(judge: Judge) -> None:
    recording = MemoryRecording(total=200 * MIB)
    recording.launch()
    blocks = [recording.malloc(2 * MIB, "/app/train.py:20 fill") for _ in range(50)]
    recording.free(*blocks[::2])
    recording.malloc(40 * MIB, "/app/train.py:60 more")
    recording.launch()
    (finding,) = judge(RULE, recording.finish())
    assert f"{140 * MIB:,} bytes reserved, 35.7 % free in segments" in finding.what
    assert finding.place.line == 60


def test_silent_where_the_gpu_is_mostly_free(judge: Judge) -> None:
    assert judge(RULE, in_pieces(0)) == []


def test_silent_for_an_error_that_nothing_would_have_held(judge: Judge) -> None:
    assert judge(RULE, in_pieces(90 * MIB)) == []


def test_abstains_without_a_history(judge: Judge) -> None:
    assert isinstance(judge(RULE, TraceBuilder().launch("gemm", 100)), Abstain)
