# SPDX-License-Identifier: Apache-2.0
"""Why the GPU idles"""

from __future__ import annotations

import pytest
from builders import Judge, TraceBuilder

from profiling_lab.analysis.gaps.causes import Cause
from profiling_lab.rules import Abstain
from profiling_lab.rules.gap_cause import REMEDIES, RULE
from profiling_lab.trace.columns import OverheadKind

STEP = "/app/train.py:9 step"


def host_bound(host_ns: int, count: int = 20) -> TraceBuilder:
    builder = TraceBuilder()
    for _ in range(count):
        builder.launch("k", 100_000, stack=STEP).gap(100_000 + host_ns)
    return builder


def test_fires_for_the_hosts_own_code_and_names_where_it_was_going(judge: Judge) -> None:
    (finding,) = judge(RULE, host_bound(200_000))
    assert "host code, on the way to this line" in finding.what and finding.place.line == 9
    assert finding.cost_ns == pytest.approx(19 * 200_000, rel=0.05) and finding.events == 19
    assert {event.table for event in finding.evidence} == {"operations"}


def test_fires_for_allocations_and_not_for_what_is_beside_them(judge: Judge) -> None:
    builder = TraceBuilder()
    for _ in range(10):
        builder.launch("k", 10_000, stack=STEP).gap(20_000)
        builder.call("cudaMalloc_v3020", call_ns=400_000, stack="/app/a.py:3 grow").gap(400_000)
    found = {finding.place.line: finding for finding in judge(RULE, builder)}
    assert "allocation, at this line" in found[3].what and found[3].cost_ns == 9 * 400_000
    assert found[3].confidence == "high" and "reuse" in found[3].remedy


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (OverheadKind.LAZY_FUNCTION_LOADING, "loading GPU code"),
        (OverheadKind.BUFFER_FLUSH, "the profiler itself"),
    ],
)
def test_fires_for_what_the_driver_and_the_profiler_took(judge: Judge, kind: OverheadKind, says: str) -> None:
    builder = host_bound(200_000, count=3)
    free = builder.rows["CUPTI_ACTIVITY_KIND_KERNEL"][0]["end"]
    builder.row(
        "CUPTI_ACTIVITY_KIND_OVERHEAD",
        start=free,
        end=free + 150_000,
        globalTid=builder.tid(1),
        overheadType=kind,
    )
    (finding,) = [f for f in judge(RULE, builder) if says in f.what]
    assert finding.cost_ns == 150_000


def test_silent_where_the_gpu_never_waits(judge: Judge) -> None:
    builder = TraceBuilder()
    for _ in range(20):
        builder.launch("k", 100_000, stack=STEP)
    assert judge(RULE, builder) == ()


def test_silent_for_the_latency_of_launches(judge: Judge) -> None:
    builder = TraceBuilder()
    for i in range(20):
        builder.launch("k", 100_000, start_ns=2_000_000 + i * 105_000, stack=STEP)
    assert judge(RULE, builder) == [], "5 us between kernels that were queued need no cause"


def test_abstains_where_the_launches_are_unknown(judge: Judge) -> None:
    builder = TraceBuilder()
    for i in range(20):
        builder.launch("k", 10_000, start_ns=2_000_000 + i * 100_000, recorded=False)
    verdict = judge(RULE, builder)
    assert isinstance(verdict, Abstain) and "have no cause" in verdict.reason and verdict.to_record


def test_every_cause_has_a_remedy_or_needs_none() -> None:
    needs_none = {Cause.LATENCY, Cause.BETWEEN, Cause.LATE_START, Cause.NOT_RECORDED}
    assert {*REMEDIES, *needs_none} == set(Cause) and not needs_none & set(REMEDIES)


def test_cuda_starting_up_is_no_allocation(judge: Judge) -> None:
    """Uploading a model, then the first kernel: contexts and libraries are made in calls that allocate."""
    builder = TraceBuilder()
    builder.copy("HtoD", 10_000).call("cudaMalloc_v3020", call_ns=2_000_000).gap(2_000_000)
    builder.copy("HtoD", 10_000).launch("k", 10_000)
    builder.call("cudaFree_v3020", call_ns=90_000_000, stack="/app/a.py:3 first_product").gap(90_000_000)
    for _ in range(3):
        builder.launch("k", 10_000).call("cudaMalloc_v3020", call_ns=5_000_000, stack=STEP).gap(5_000_000)
    builder.launch("k", 10_000)
    found = {finding.what.split(": ")[1].split(",")[0]: finding for finding in judge(RULE, builder)}
    start_up = next(f for what, f in found.items() if what.startswith("CUDA starting up"))
    assert start_up.cost_ns == pytest.approx(90e6, rel=0.01) and "paid once" in start_up.remedy
    grown = next(f for what, f in found.items() if what.startswith("allocation"))
    assert grown.cost_ns == pytest.approx(15e6, rel=0.01) and grown.place.line == 9
