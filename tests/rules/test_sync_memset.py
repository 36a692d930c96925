# SPDX-License-Identifier: Apache-2.0
"""Synchronous memsets."""

from __future__ import annotations

from builders import Judge, TraceBuilder

from profiling_lab.rules import Abstain
from profiling_lab.rules.sync_memset import RULE
from profiling_lab.trace.columns import MemoryKind

API = "cudaMemset_v3020"


def test_fires_on_pinned_and_managed_memory(judge: Judge) -> None:
    builder = TraceBuilder().launch("k", 1_000)
    for memory in (MemoryKind.PINNED, MemoryKind.MANAGED):
        builder.memset(2_000, memory=memory, api=API, call_ns=20_000, stack="/app/a.py:3 f").gap(20_000)
    (finding,) = judge(RULE, builder.launch("k", 1_000))
    assert (finding.cost_ns, finding.events, finding.place.line) == (2 * 20_000, 2, 3)


def test_silent_on_the_gpus_own_memory_and_asynchronous_calls(judge: Judge) -> None:
    builder = TraceBuilder().launch("k", 100_000)
    builder.memset(2_000, memory=MemoryKind.DEVICE, api=API, call_ns=20_000)
    builder.memset(2_000, memory=MemoryKind.PINNED, call_ns=20_000)
    assert judge(RULE, builder) == ()
    assert judge(RULE, TraceBuilder().launch("k", 1000)) == ()


def test_abstains_without_kinds_of_memory_or_calls(judge: Judge) -> None:
    verdict = judge(RULE, TraceBuilder().memset(2_000, api=API))
    assert isinstance(verdict, Abstain) and "memory kinds" in verdict.reason
    verdict = judge(RULE, TraceBuilder().memset(2_000, recorded=False))
    assert isinstance(verdict, Abstain) and "not recorded" in verdict.reason
