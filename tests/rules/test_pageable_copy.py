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
    # They run alone behind a kernel that keeps the GPU busy meanwhile.
    assert (to_gpu.cost_ns, to_host.cost_ns) == (60_000, 10_000)
    assert (to_gpu.place.file, to_gpu.place.line) == ("/app/train.py", 12)
    assert [str(e) for e in to_gpu.evidence] == ["operations[1]", "operations[2]", "operations[3]"]
    assert "3 asynchronous copies" in to_gpu.what and "pin_memory" in to_gpu.remedy


def test_a_number_is_not_to_be_pinned(judge: Judge) -> None:
    for kind, size_bytes, pinned in (("HtoD", 16, False), ("HtoD", 32, True), ("DtoH", 8, True)):
        memory = (PAGEABLE, DEVICE) if kind == "HtoD" else (DEVICE, PAGEABLE)
        builder = TraceBuilder().launch("k", 10_000)
        how = {"source": memory[0], "target": memory[1], "stack": LINE, "call_ns": 30_000}
        builder.copy(kind, 20_000, size_bytes=size_bytes, **how).launch("k", 10_000)
        (finding,) = judge(RULE, builder)
        assert ("pin_memory" in finding.remedy) is pinned, (kind, size_bytes)
        assert pinned or "once before the loop" in finding.remedy


def upload(before_ns: int, between_ns: int = 0) -> TraceBuilder:
    """A copy that waits for the kernel before it, the host's work, and the kernel that needs the copy."""
    builder = TraceBuilder().launch("k", before_ns)
    waited_ns = before_ns + 23_000
    builder.copy("HtoD", 20_000, source=PAGEABLE, target=DEVICE, stack=LINE, call_ns=waited_ns)
    builder.gap(waited_ns - 5_000 + between_ns)
    return builder.launch("k", 1_000_000)


def test_the_wait_for_earlier_work_is_no_cost(judge: Judge) -> None:
    """758.7 ms were claimed of copies of 0.16 ms, while the GPU was busy."""
    (finding,) = judge(RULE, upload(10_000_000))
    assert finding.cost_ns == 20_000 + 8_000, "the copy alone, and the GPU idle until the next launch"
    assert "0.020 ms nothing else ran" in finding.what and "0.008 ms it idled" in finding.what


def test_idle_time_behind_a_copy_costs_no_more_than_its_call(judge: Judge) -> None:
    (finding,) = judge(RULE, upload(0, between_ns=9_000_000))
    assert finding.cost_ns == 23_000, "the host did 9 ms of other work: it would come 23 µs earlier"


def test_a_copy_that_overlaps_a_kernel_costs_nothing(judge: Judge) -> None:
    builder = TraceBuilder().launch("k", 10_000_000, stream=8)
    builder.copy("HtoD", 2_000_000, source=PAGEABLE, target=DEVICE, stack=LINE, call_ns=2_010_000)
    assert judge(RULE, builder.launch("k", 1_000, stream=8)) == ()


def test_silent_on_pinned_memory_synchronous_calls_and_small_change(judge: Judge) -> None:
    builder = TraceBuilder().launch("k", 10_000_000)
    builder.copy("HtoD", 90_000, source=PINNED, target=DEVICE)
    builder.copy("HtoD", 90_000, source=PAGEABLE, target=DEVICE, api="cudaMemcpy_v3020")
    builder.copy("HtoD", 900, source=PAGEABLE, target=DEVICE)
    assert judge(RULE, builder) == ()
    assert judge(RULE, TraceBuilder().launch("k", 1000)) == ()


def test_what_comes_back_from_the_host_is_saved_where_it_was_copied_there(judge: Judge) -> None:
    """As saved tensors: the memory is made where they are copied to the host."""
    there, back, other = "/app/a.py:3 Kept.keep", "/app/a.py:7 Kept.fetch", "/app/a.py:9 main"
    builder = TraceBuilder()
    for kind, size_bytes, stack in (
        ("DtoH", 1 << 20, there),
        ("DtoH", 1 << 22, there),
        ("HtoD", 1 << 22, back),
        ("HtoD", 1 << 20, back),
        ("HtoD", 1 << 20, other),
        ("HtoD", 1 << 21, other),
    ):
        memory = {"source": DEVICE, "target": PAGEABLE} if kind == "DtoH" else {"source": PAGEABLE}
        builder.copy(kind, 90_000, size_bytes=size_bytes, stack=stack, **{"target": DEVICE} | memory)
    findings = judge(RULE, builder.launch("k", 1_000))
    saved = {finding.place.line: finding.saving.operations.tolist() for finding in findings}
    assert saved == {3: [1, 2, 3, 4], 7: [3, 4], 9: [5, 6]}


def test_abstains_without_kinds_of_memory_or_calls(judge: Judge) -> None:
    verdict = judge(RULE, TraceBuilder().copy("HtoD", 90_000))
    assert isinstance(verdict, Abstain) and "memory kinds" in verdict.reason
    lost = TraceBuilder().copy("HtoD", 90_000, source=PAGEABLE, target=DEVICE, recorded=False)
    verdict = judge(RULE, lost)
    assert isinstance(verdict, Abstain) and "the calls of 1 of 1 copies" in verdict.reason
