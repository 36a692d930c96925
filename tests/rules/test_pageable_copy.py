# SPDX-License-Identifier: Apache-2.0
"""Asynchronous copies of pageable memory"""

from __future__ import annotations

from builders import Judge, TraceBuilder

from profiling_lab.rules import Abstain
from profiling_lab.rules.pageable_copy import RULE
from profiling_lab.trace.columns import MemoryKind

PAGEABLE, PINNED, DEVICE = MemoryKind.PAGEABLE, MemoryKind.PINNED, MemoryKind.DEVICE
LINE = "/app/train.py:12 load"


def test_fires_and_names_the_line(judge: Judge) -> None:
    builder = TraceBuilder().launch("k", 1_000_000)
    for _ in range(3):
        builder.copy("HtoD", 20_000, source=PAGEABLE, target=DEVICE, stack=LINE, call_ns=30_000).gap(50_000)
    builder.copy("DtoH", 10_000, source=DEVICE, target=PAGEABLE, stack="/app/train.py:20 log")
    to_gpu, to_host = judge(RULE, builder)
    # The call outlasts the copy going in, the copy outlasts its call coming back.
    assert (to_gpu.cost_ns, to_host.cost_ns) == (90_000, 10_000)
    assert (to_gpu.place.file, to_gpu.place.line) == ("/app/train.py", 12)
    assert [str(e) for e in to_gpu.evidence] == ["operations[1]", "operations[2]", "operations[3]"]
    assert "3 asynchronous copies" in to_gpu.what and "pin_memory" in to_gpu.remedy


def test_silent_on_pinned_memory_synchronous_calls_and_small_change(judge: Judge) -> None:
    builder = TraceBuilder().launch("k", 10_000_000)
    builder.copy("HtoD", 90_000, source=PINNED, target=DEVICE)
    builder.copy("HtoD", 90_000, source=PAGEABLE, target=DEVICE, api="cudaMemcpy_v3020")
    builder.copy("HtoD", 900, source=PAGEABLE, target=DEVICE)
    assert judge(RULE, builder) == ()
    assert judge(RULE, TraceBuilder().launch("k", 1000)) == ()


def test_abstains_without_kinds_of_memory_or_calls(judge: Judge) -> None:
    verdict = judge(RULE, TraceBuilder().copy("HtoD", 90_000))
    assert isinstance(verdict, Abstain) and "which memory" in verdict.reason
    lost = TraceBuilder().copy("HtoD", 90_000, source=PAGEABLE, target=DEVICE, recorded=False)
    verdict = judge(RULE, lost)
    assert isinstance(verdict, Abstain) and "the calls of 1 of 1 copies" in verdict.reason
