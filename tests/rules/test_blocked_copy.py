# SPDX-License-Identifier: Apache-2.0
"""Copies meant to be asynchronous that blocked the host"""

from __future__ import annotations

from builders import Judge, TraceBuilder

from profiling_lab.rules import Abstain
from profiling_lab.rules.blocked_copy import RULE
from profiling_lab.trace.columns import MemoryKind

PAGEABLE, PINNED, DEVICE = MemoryKind.PAGEABLE, MemoryKind.PINNED, MemoryKind.DEVICE


def step(source: int, call_ns: int, *, waits: bool = False, size_bytes: int = 1 << 20) -> TraceBuilder:
    builder = TraceBuilder().launch("k", 50_000).gap(100_000)
    builder.copy(
        "HtoD",
        40_000,
        source=source,
        target=DEVICE,
        size_bytes=size_bytes,
        call_ns=call_ns,
        stack="/app/train.py:7 step",
    ).gap(call_ns)
    return builder.call("cudaStreamSynchronize_v3020") if waits else builder.launch("k", 5_000)


def test_fires_where_nothing_waits_afterwards(judge: Judge) -> None:
    (finding,) = judge(RULE, step(PAGEABLE, 45_000))
    assert finding.cost_ns == 45_000 and finding.place.line == 7, "40 µs alone; the host is 45 µs later"
    assert str(finding.evidence[0]) == "operations[2]" and "non_blocking" in finding.remedy


def test_silent_where_the_host_was_not_held_or_meant_to_wait(judge: Judge) -> None:
    assert judge(RULE, step(PAGEABLE, 4_000)) == (), "the call came back at once"
    assert judge(RULE, step(PAGEABLE, 45_000, waits=True)) == (), "the program waits anyway"
    assert judge(RULE, step(PINNED, 45_000)) == ()
    assert judge(RULE, step(PAGEABLE, 45_000, size_bytes=65_536)) == (), "staged, not waited for"
    assert judge(RULE, TraceBuilder().launch("k", 1000)) == ()


def test_abstains_without_kinds_of_memory_or_calls(judge: Judge) -> None:
    verdict = judge(RULE, TraceBuilder().copy("HtoD", 90_000))
    assert isinstance(verdict, Abstain) and "memory kinds" in verdict.reason
    verdict = judge(RULE, TraceBuilder().copy("HtoD", 90_000, source=PAGEABLE, recorded=False))
    assert isinstance(verdict, Abstain) and "not recorded" in verdict.reason
