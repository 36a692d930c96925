# SPDX-License-Identifier: Apache-2.0
"""Waits of the host, and what the GPU loses by them"""

from __future__ import annotations

from builders import Judge, TraceBuilder

from profiling_lab.rules import Abstain
from profiling_lab.rules.implicit_sync import RULE as IMPLICIT
from profiling_lab.rules.sync_calls import RULE

WAIT = "cudaStreamSynchronize_v3020"
LINE = "/app/train.py:30 step"


def waiting(builder: TraceBuilder, wait_ns: int, think_ns: int, api: str = WAIT) -> TraceBuilder:
    """A kernel of 50 µs, a wait until it is done, and the host's own work before the next kernel."""
    builder.launch("k", 50_000).call(api, call_ns=wait_ns, stack=LINE).gap(wait_ns + think_ns)
    return builder


def test_charges_the_idle_time_after_the_wait(judge: Judge) -> None:
    builder = TraceBuilder()
    for _ in range(4):
        waiting(builder, 50_000, 20_000)
    builder.launch("k", 50_000)
    (finding,) = judge(RULE, builder)
    # Per round the kernel runs from 3 to 53 µs, the wait from 5 to 55; the next kernel starts at 83 µs.
    assert finding.cost_ns == 4 * 30_000 and finding.events == 4
    assert finding.place.line == 30 and str(finding.evidence[0]) == "calls[1]"
    assert "the host waited 0.200 ms" in finding.what


def test_a_gap_is_charged_once(judge: Judge) -> None:
    builder = waiting(TraceBuilder(), 50_000, 0)
    builder.call("cudaDeviceSynchronize_v3020", call_ns=1_000, stack="/app/train.py:31 step").gap(20_000)
    builder.launch("k", 50_000)
    findings = judge(RULE, builder)
    # The second wait blocks the host for 1 µs more; both are the work of one function.
    assert {f.place.line: f.cost_ns for f in findings} == {30: 35_000}


def test_silent_where_waits_cost_nothing(judge: Judge) -> None:
    builder = TraceBuilder()
    for _ in range(20):
        builder.launch("k", 50_000, stream=7).launch("k", 50_000, stream=8)
    builder.call("cudaEventSynchronize_v3020", call_ns=10_000).gap(200)
    builder.call("cudaStreamWaitEvent_v3020", call_ns=900_000)
    assert judge(RULE, builder) == [], "the GPU has work; a stream that waits for an event blocks no thread"
    assert judge(RULE, TraceBuilder().launch("k", 1000)) == []


def test_one_wait_at_the_end_of_what_is_measured_is_no_finding(judge: Judge) -> None:
    def waits(times: int) -> TraceBuilder:
        builder = TraceBuilder().launch("k", 900_000).launch("k", 900_000)
        for _ in range(times):
            builder.call("cudaDeviceSynchronize_v3020", call_ns=1_700_000 // times, stack=LINE)
        return builder

    assert judge(RULE, waits(1)) == []
    (finding,) = judge(RULE, waits(2))
    assert finding.cost_ns == 0 and "the host waited 1.700 ms" in finding.what


def test_waits_outside_of_the_recording_are_no_part_of_it(judge: Judge) -> None:
    """A profiler that sets itself up waits long before the first kernel."""
    builder = (
        TraceBuilder().call("cudaDeviceSynchronize_v3020", call_ns=900_000_000, stack=LINE).gap(900_000_000)
    )
    for _ in range(20):
        builder.launch("k", 50_000)
    assert judge(RULE, builder) == []


def test_a_wait_that_ends_a_copy_has_the_remedy_of_the_copy(judge: Judge) -> None:
    builder = TraceBuilder()
    for _ in range(4):
        builder.launch("k", 5_000)
        builder.copy("HtoD", 50_000, source=0, stack=LINE).call(WAIT, call_ns=60_000, stack=LINE).gap(90_000)
    builder.launch("k", 50_000)
    (finding,) = judge(RULE, builder)
    assert finding.what.startswith("4 waits for a copy to end") and "pinned" in finding.remedy
    assert finding.cost_ns > 0


def test_a_later_wait_is_not_that_of_a_copy(judge: Judge) -> None:
    """non_blocking=True, other work of the host, and then a wait: it was not the copy that waited."""
    builder = TraceBuilder()
    for _ in range(4):
        builder.copy("DtoH", 1_000, size_bytes=4, stack="/app/train.py:20 step").gap(30_000)
        waiting(builder, 50_000, 20_000)
        builder.copy("HtoD", 1_000, stack="/app/train.py:21 step").gap(30_000)
        builder.call(WAIT, call_ns=5_000, stack=LINE)
    builder.launch("k", 50_000)
    assert not judge(IMPLICIT, builder)
    found = judge(RULE, builder)
    assert [finding.what.split(" (")[0] for finding in found] == ["8 waits for the GPU"]


def test_reading_a_value_is_the_business_of_another_rule(judge: Judge) -> None:
    builder = TraceBuilder().launch("k", 50_000).copy("DtoH", 1_000, size_bytes=4)
    waiting_read = builder.call(WAIT, call_ns=60_000, stack=LINE).gap(90_000).launch("k", 50_000)
    assert judge(RULE, waiting_read) == []


def test_abstains_without_calls(judge: Judge) -> None:
    verdict = judge(RULE, TraceBuilder().launch("k", 1000, recorded=False))
    assert isinstance(verdict, Abstain) and "no CUDA API call" in verdict.reason


def test_what_the_host_does_behind_a_wait_for_other_reasons_is_not_for_the_wait(judge: Judge) -> None:
    builder = TraceBuilder()
    for _ in range(4):
        builder.launch("k", 2_000_000).call("cudaDeviceSynchronize_v3020", call_ns=1_998_000).gap(1_993_000)
        loading_ns = builder.now_ns
        builder.gap(5_000_000).range("DataLoader.__next__", loading_ns, builder.now_ns)
        builder.gap(100_000)
    (finding,) = judge(RULE, builder.launch("k", 2_000_000))
    assert finding.cost_ns == 4 * 103_000, "20 ms of loading data are none of it"


def test_a_wait_costs_at_most_what_it_lasted(judge: Judge) -> None:
    builder = TraceBuilder()
    for _ in range(4):
        builder.launch("k", 2_000_000).call("cudaDeviceSynchronize_v3020", call_ns=1_998_000).gap(1_993_000)
        builder.gap(50_000_000)
    (finding,) = judge(RULE, builder.launch("k", 2_000_000))
    assert finding.cost_ns == 4 * 1_998_000, "without it the host had come 2 ms earlier, not 50"


def test_a_wait_costs_the_idle_time_until_the_next_one(judge: Judge) -> None:
    """Had it not waited, the host would have queued the short kernels while the long one ran."""
    builder = TraceBuilder()
    for _ in range(4):
        builder.launch("long", 500_000).call(WAIT, call_ns=500_000, stack=LINE).gap(500_000)
        for _ in range(10):
            builder.launch("short", 1_000)
    (finding,) = judge(RULE, builder)
    # 10 µs to the first short kernel, 9 pauses of 4 µs, and 4 µs to the next long one.
    assert finding.cost_ns == 3 * (10_000 + 9 * 4_000 + 4_000) + 10_000 + 9 * 4_000


def test_a_host_that_is_too_slow_anyway_loses_only_the_length_of_the_wait(judge: Judge) -> None:
    builder = TraceBuilder()
    for _ in range(4):
        builder.launch("k", 5_000).call(WAIT, call_ns=6_000, stack=LINE).gap(6_000)
        for _ in range(10):
            builder.launch("k", 1_000)
    (finding,) = judge(RULE, builder)
    assert finding.cost_ns == 4 * 6_000


def test_pauses_between_queued_operations_remain_without_the_wait(judge: Judge) -> None:
    builder = TraceBuilder()
    for _ in range(4):
        for _ in range(100):
            builder.launch("k", 50_000)
            builder.gpu_free_ns = {key: free + 1_000 for key, free in builder.gpu_free_ns.items()}
        builder.call("cudaDeviceSynchronize_v3020", call_ns=4_600_000, stack=LINE).gap(4_590_000)
    (finding,) = judge(RULE, builder.launch("k", 50_000))
    assert finding.cost_ns < 4 * 20_000, "the pauses within a step, 0.1 ms, are not the wait's"


def test_a_wait_in_one_of_many_steps_happened_once(judge: Judge) -> None:
    """As that of a timer in the middle of a recording."""
    for waits, once in (({5}, True), ({5, 7}, False)):
        builder = TraceBuilder()
        for step in range(10):
            begin_ns = builder.now_ns
            builder.launch("k", 300_000)
            if step in waits:
                builder.call(WAIT, call_ns=300_000, stack=LINE).gap(400_000)
            builder.launch("k", 300_000).gap(600_000)
            builder.range(f"ProfilerStep#{step}", begin_ns, builder.now_ns - 1)
        (finding,) = judge(RULE, builder)
        assert finding.once is once
