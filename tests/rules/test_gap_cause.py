# SPDX-License-Identifier: Apache-2.0
"""Why the GPU idles"""

from __future__ import annotations

import pytest
from builders import Judge, TraceBuilder

from profiling_lab.analysis.gaps.causes import Cause
from profiling_lab.rules import Abstain
from profiling_lab.rules.gap_cause import RULE
from profiling_lab.rules.gap_words import REMEDIES
from profiling_lab.trace.columns import OverheadKind

STEP = "/app/train.py:9 step"


def host_bound(host_ns: int, count: int = 20) -> TraceBuilder:
    builder = TraceBuilder()
    for _ in range(count):
        builder.launch("k", 100_000, stack=STEP).gap(100_000 + host_ns)
    return builder


def test_fires_for_the_hosts_own_code_and_names_where_it_was_going(judge: Judge) -> None:
    (finding,) = judge(RULE, host_bound(800_000))
    assert finding.cause == "host_work"
    assert "host code, before this line" in finding.what and finding.place.line == 9
    assert finding.cost_ns == pytest.approx(19 * 800_000, rel=0.05) and finding.events == 19
    assert {event.table for event in finding.evidence} == {"operations"}


def hosts(*stacks: str) -> TraceBuilder:
    builder = TraceBuilder()
    for _ in range(10):
        builder.launch("k", 100_000, stack=STEP).gap(100_000)
        for stack in stacks:
            builder.launch("k", 1_000, stack=stack).gap(1_000_000)
            for tenth in range(1, 10):
                builder.sample(builder.now_ns - tenth * 100_000, stack)
    return builder


def test_host_code_of_one_function_is_one_finding(judge: Judge) -> None:
    work = [f"{STEP} > /app/masks.py:{line} window_mask" for line in (4, 5)]
    (one,) = judge(RULE, hosts(*work))
    assert one.place.function == "window_mask" and "at 2 lines of one function, most of it at" in one.what
    assert one.cost_ns == pytest.approx(20 * 1_000_000, rel=0.15)
    loop = ["/app/train.py:3 step", "/app/train.py:4 step"]
    found = judge(RULE, hosts(*loop, work[0]))
    assert sorted(each.place.line for each in found) == [3, 4, 4], "what calls others does many works"


def test_fires_for_allocations_and_not_for_other_calls_near_them(judge: Judge) -> None:
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


def test_silent_for_short_pauses_from_launch_to_launch(judge: Judge) -> None:
    assert judge(RULE, host_bound(200_000)) == [], "tiny_kernels and bound tell of those"


COPYING = "/app/train.py:5 main > /app/old.py:54 OldPolicy.keep"


def copying(kind: str, kernels: int = 0, wait: str = "") -> TraceBuilder:
    """Many short copies, as a deep copy of a model makes them, and a few kernels at the same line."""
    builder = TraceBuilder().launch("k", 100_000, stack=STEP)
    builder.gap(100_000)
    for number in range(30):
        if wait:
            builder.launch("long", 500_000, stack=STEP).call(wait, call_ns=495_000, stack=STEP).gap(490_000)
        builder.gap(50_000)
        if number < kernels:
            builder.launch("fill", 2_000, stack=COPYING)
        else:
            builder.call("cudaGetDevice_v3020", call_ns=20_000, stack=COPYING).gap(15_000)
            builder.copy(kind, 2_000, stack=COPYING)
    return builder


def test_fires_for_short_pauses_at_a_line_that_only_copies(judge: Judge) -> None:
    """No rule about kernels reports them: a deep copy in each step costs what its host code takes."""
    (finding,) = judge(RULE, copying("DtoD"))
    assert finding.cause == "host_work" and (finding.place.file, finding.place.line) == ("/app/old.py", 54)
    assert finding.cost_ns == pytest.approx(30 * 73_000, rel=0.02), "with what the calls took"
    assert finding.events >= 29


def test_silent_for_short_pauses_before_kernels_and_copies_over_the_bus(judge: Judge) -> None:
    assert judge(RULE, copying("HtoD")) == [], "pageable_copy and its like tell of those"
    assert judge(RULE, copying("DtoD", kernels=15)) == [], "tiny_kernels tells of those"
    assert judge(RULE, copying("DtoD", kernels=14))


def test_short_pauses_are_charged_without_what_a_wait_costs(judge: Judge) -> None:
    """Without the wait the host would be ahead: nothing of the pause would remain."""
    assert judge(RULE, copying("DtoD", wait="cudaDeviceSynchronize_v3020")) == []
    (finding,) = judge(RULE, copying("DtoD", wait="cudaGetDevice_v3020"))
    assert finding.cost_ns > 30 * 40_000


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
    assert isinstance(verdict, Abstain) and "have no known cause" in verdict.reason and verdict.to_record


def test_every_cause_has_a_remedy_or_needs_none() -> None:
    needs_none = {Cause.LATENCY, Cause.BETWEEN, Cause.QUEUE_FULL, Cause.LATE_START, Cause.NOT_RECORDED}
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
    assert start_up.cost_ns == pytest.approx(90e6, rel=0.01) and "happens once" in start_up.remedy
    grown = next(f for what, f in found.items() if what.startswith("allocation"))
    assert grown.cost_ns == pytest.approx(15e6, rel=0.01) and grown.place.line == 9


def pausing(stack: str, *, other_thread: str = "", pause_ns: int = 10_000_000) -> TraceBuilder:
    """Launches with long pauses of the host; ten samples in each pause found it in `stack`."""
    builder = TraceBuilder()
    for _ in range(5):
        builder.launch("k", 100_000, stack=STEP)
        for tenth in range(1, 10):
            at_ns = builder.now_ns + tenth * pause_ns // 10
            builder.sample(at_ns, stack)
            if other_thread:
                builder.sample(at_ns, other_thread, thread=2)
        builder.gap(pause_ns)
    return builder.launch("k", 100_000, stack=STEP)


TOKENIZE = "/app/train.py:5 main > /app/text.py:31 tokenize"
LOADER = "/v/site-packages/torch/utils/data/dataloader.py:733 __next__"


def test_samples_name_the_line_that_the_host_was_in(judge: Judge) -> None:
    (finding,) = judge(RULE, pausing(TOKENIZE))
    assert finding.cause == "host_work" and finding.place.line == 31 and finding.confidence == "high"
    assert finding.cost_ns == pytest.approx(5 * 10_000_000, rel=0.05) and "at this line" in finding.what
    assert "for many at once" in finding.remedy


def test_samples_inside_of_a_library_count_for_the_line_that_calls_it(judge: Judge) -> None:
    (finding,) = judge(RULE, pausing(f"{TOKENIZE} > /v/site-packages/numpy/core/fromnumeric.py:60 argsort"))
    assert finding.cause == "host_work" and (finding.place.file, finding.place.line) == ("/app/text.py", 31)


def test_the_loader_is_named_with_the_line_that_calls_it(judge: Judge) -> None:
    item = f"/app/train.py:5 main > {LOADER} > /app/data.py:14 __getitem__"
    (finding,) = judge(RULE, pausing(item))
    assert finding.cause == "dataloader" and "num_workers" in finding.remedy
    assert (finding.place.file, finding.place.line) == ("/app/train.py", 5)


def test_of_a_loader_with_workers_these_are_too_slow(judge: Judge) -> None:
    """`load in the background` was said of a program that does."""
    wait = f"{LOADER} > /v/site-packages/torch/utils/data/dataloader.py:1310 "
    for function in ("_MultiProcessingDataLoaderIter._try_get_data", "_try_get_data"):
        stack = f"/app/train.py:5 main > {wait}{function} > /usr/lib/python3.12/queue.py:180 Queue.get"
        (finding,) = judge(RULE, pausing(stack))
        assert finding.cause == "dataloader" and "waiting for the workers" in finding.what
        assert finding.remedy.startswith("more workers") and finding.place.line == 5
        assert finding.saving.host[0].kinds, "all of the host's time there"


def test_a_thread_that_runs_python_all_the_while_holds_the_lock(judge: Judge) -> None:
    watcher = "/app/watch.py:7 run > /app/watch.py:12 count"
    (finding,) = judge(RULE, pausing(TOKENIZE, other_thread=watcher))
    assert finding.cause == "gil_wait" and (finding.place.file, finding.place.line) == ("/app/watch.py", 12)
    assert finding.confidence == "medium" and "process" in finding.remedy
    waiting = "/app/watch.py:7 run > /v/lib/python3.12/threading.py:355 wait"
    (finding,) = judge(RULE, pausing(TOKENIZE, other_thread=waiting))
    assert finding.cause == "host_work", "a thread that waits holds nothing"


@pytest.mark.parametrize(
    ("mine", "others", "cause"),
    [
        ("total += table[key]", "count += 1", "gil_wait"),
        ("total += table[key]", "time.sleep(0.01)", "host_work"),
        ("time.sleep(POLL_S)", "count += 1", "host_work"),
        ("with self.lock:", "count += 1", "host_work"),
        ("item = self.event.wait()", "count += 1", "host_work"),
        ("total += table[key]", "self.packed = zlib.compress(data, 6)", "host_work"),
    ],
)
def test_a_line_that_waits_neither_holds_the_lock_nor_wants_it(
    judge: Judge, mine: str, others: str, cause: str
) -> None:
    builder = pausing(TOKENIZE, other_thread="/app/watch.py:7 run > /app/watch.py:12 count")
    for file, line, text in (("/app/text.py", 31, mine), ("/app/watch.py", 12, others)):
        builder.source(file, line, text)
    (finding,) = judge(RULE, builder)
    assert finding.cause == cause


def in_steps(*pauses_ns: int) -> TraceBuilder:
    builder = TraceBuilder()
    for number, pause_ns in enumerate(pauses_ns):
        start_ns = builder.now_ns
        builder.launch("k", 100_000, stack=STEP).gap(200_000).launch("k", 100_000, stack=STEP).gap(pause_ns)
        builder.launch("k", 100_000, stack="/app/train.py:12 evaluate").gap(200_000)
        builder.range(f"ProfilerStep#{number}", start_ns, builder.now_ns)
    return builder


def test_what_happened_in_one_step_only_is_told(judge: Judge) -> None:
    quick, slow = 600_000, 90_000_000
    (finding,) = [f for f in judge(RULE, in_steps(*[0] * 6, slow, *[0] * 6)) if f.place.line == 12]
    assert finding.once and finding.what.endswith("before this line, all of it in one step")
    (finding,) = [f for f in judge(RULE, in_steps(*[slow] * 2, *[0] * 9)) if f.place.line == 12]
    assert not finding.once, "in two steps"
    (finding,) = [f for f in judge(RULE, in_steps(*[0] * 3, slow)) if f.place.line == 12]
    assert not finding.once, "of few steps one says nothing"
    (finding,) = [f for f in judge(RULE, in_steps(*[quick] * 12)) if f.place.line == 12]
    assert not finding.once


def test_one_sample_names_nothing(judge: Judge) -> None:
    builder = TraceBuilder().launch("k", 100_000, stack=STEP)
    builder.sample(builder.now_ns + 5_000_000, TOKENIZE).gap(10_000_000)
    (finding,) = judge(RULE, builder.launch("k", 100_000, stack=STEP))
    assert finding.place.line == 9 and "before this line" in finding.what


@pytest.mark.parametrize(
    ("event", "cause", "remedy"),
    [
        ("garbage collection, generation 2", "garbage_collection", "gc.freeze"),
        ("torch.compile", "recompilation", "dynamic=True"),
    ],
)
def test_pauses_that_python_told_of_have_their_own_cause_and_line(
    judge: Judge, event: str, cause: str, remedy: str
) -> None:
    builder = pausing(TOKENIZE)
    for kernel in [*builder.rows["CUPTI_ACTIVITY_KIND_KERNEL"]][:5]:
        builder.host_event(event, kernel["end"] + 100, kernel["end"] + 8_000_000, "/app/train.py:44 loop")
    found = {finding.cause: finding for finding in judge(RULE, builder)}
    told = found[cause]
    assert told.place.line == 44 and told.confidence == "high" and remedy in told.remedy
    assert told.cost_ns == pytest.approx(5 * 8_000_000, rel=0.05)


@pytest.mark.parametrize(
    ("kernel", "line", "plans"),
    [("cudnn_generated_fort_native_sdpa_sm90", 9, True), ("cudnn_fprop", 5, False), ("nvjet_hsh", 9, False)],
    ids=["new lengths", "host code at another line", "no kernel of cuDNN"],
)
def test_what_comes_before_a_kernel_of_cudnn_is_its_plan(
    judge: Judge, kernel: str, line: int, plans: bool
) -> None:
    builder = TraceBuilder()
    for _ in range(10):
        builder.launch("k", 100_000, stack=STEP).gap(10_000_000)
        for tenth in range(1, 10):
            builder.sample(builder.now_ns - tenth * 1_000_000, f"/app/train.py:{line} step")
        builder.launch(kernel, 100_000, stack=STEP)
    (finding,) = judge(RULE, builder)
    assert finding.cause == "host_work" and ("cuDNN plans each shape" in finding.remedy) is plans
