# SPDX-License-Identifier: Apache-2.0
"""Reading values from the GPU: .item() and its kin"""

from __future__ import annotations

import pytest
from builders import Judge, TraceBuilder

from profiling_lab.rules import Abstain
from profiling_lab.rules.implicit_sync import RULE

WAIT = "cudaStreamSynchronize_v3020"
LINE = "/app/train.py:59 train"


def reading(size_bytes: int, *, thread: int = 1, between: str = "") -> TraceBuilder:
    builder = TraceBuilder()
    for _ in range(3):
        builder.launch("k", 50_000).copy("DtoH", 1_000, size_bytes=size_bytes, stack=LINE)
        if between:
            builder.call(between)
        builder.call(WAIT, call_ns=50_000, stack=LINE, thread=thread).gap(70_000)
    return builder.launch("k", 50_000)


def test_fires_with_the_line_and_the_idle_time(judge: Judge) -> None:
    (finding,) = judge(RULE, reading(4))
    # Per round: the copy ends at 54 µs, the wait at 60; the next kernel starts at 88 µs.
    assert (finding.events, finding.cost_ns) == (3, 3 * 34_000)
    assert (finding.place.file, finding.place.line) == ("/app/train.py", 59)
    assert "3 reads of a value" in finding.what and finding.evidence[0].table == "calls"


def test_silent_on_large_copies_and_waits_of_others(judge: Judge) -> None:
    assert judge(RULE, reading(65)) == ()
    assert judge(RULE, reading(4, thread=2)) == (), "another thread waits"
    assert judge(RULE, reading(4, between="cudaLaunchKernel_v7000")) == (), "not at once"
    assert judge(RULE, TraceBuilder().launch("k", 1000)) == ()


def test_the_last_call_of_a_thread_is_followed_by_none(judge: Judge) -> None:
    builder = TraceBuilder().launch("k", 50_000).copy("DtoH", 1_000, size_bytes=4, stack=LINE)
    builder.call(WAIT, call_ns=50_000, stack=LINE, thread=2).gap(70_000).launch("k", 50_000, thread=3)
    assert judge(RULE, builder) == ()


def test_abstains_without_the_calls_of_the_copies(judge: Judge) -> None:
    verdict = judge(RULE, TraceBuilder().copy("DtoH", 1_000, size_bytes=4, recorded=False))
    assert isinstance(verdict, Abstain) and "not recorded" in verdict.reason


def test_a_read_begins_with_its_copy(judge: Judge) -> None:
    """The host spends its time in both calls, and a slow one could use it to queue work."""
    builder = TraceBuilder()
    for _ in range(20):
        builder.launch("k", 1_000, stack=LINE).gap(10_000)
        builder.copy("DtoH", 1_000, size_bytes=4, stack=LINE).call(WAIT, call_ns=2_000, stack=LINE)
    (finding,) = judge(RULE, builder.launch("k", 50_000))
    assert finding.cost_ns == 20 * 7_000, "5 µs to the wait, and 2 µs in it"


def test_products_before_a_read_are_not_made_for_it(judge: Judge) -> None:
    """A line that calls a library launches a whole model, and then what computes the value."""
    builder = TraceBuilder()
    for _ in range(3):
        for kernel in ("cast", "nvjet_sm90_tst_128x256_64x4_2x1_v_bz_NNT", "compare", "all"):
            builder.launch(kernel, 50_000, stack=LINE)
        builder.copy("DtoH", 1_000, size_bytes=4, stack=LINE).call(WAIT, call_ns=190_000, stack=LINE)
        builder.gap(200_000)
    (finding,) = judge(RULE, builder)
    kernels, copies = [2, 3, 6, 7, 10, 11], [12, 13, 14]
    assert finding.saving.operations.tolist() == kernels + copies


@pytest.mark.parametrize(("kernel", "left"), [("DeviceSelectSweepKernel", 0.3), ("isnan_kernel", 0.0)])
def test_a_selection_by_a_mask_is_made_in_another_way(judge: Judge, kernel: str, left: float) -> None:
    """`x[mask]` reads how much the mask selects: what takes its place, as torch.where, takes time."""
    builder = TraceBuilder()
    for _ in range(3):
        builder.launch("gemm", 50_000, stack="/app/train.py:5 main").launch(kernel, 5_000, stack=LINE)
        builder.copy("DtoH", 1_000, size_bytes=4, stack=LINE).call(WAIT, call_ns=60_000, stack=LINE)
        builder.gap(200_000)
    (finding,) = judge(RULE, builder)
    assert set(finding.saving.launches_left.tolist()) == {left} and len(finding.saving.operations) == 6


def test_a_read_in_backward_is_that_of_the_forward_line(judge: Judge) -> None:
    """A mask as an index counts its rows again in backward, on autograd's thread, which has no stack."""
    builder = TraceBuilder()
    for step in range(3):
        builder.launch("index", 5_000, stack=LINE, peek=step)
        builder.launch("count", 5_000, node=step, node_name="IndexBackward0", thread=2, peek=0)
        builder.copy("DtoH", 1_000, size_bytes=4, node=step, node_name="IndexBackward0", thread=2, peek=0)
        builder.call(WAIT, call_ns=20_000, thread=2).gap(30_000)
    (finding,) = judge(RULE, builder.launch("k", 50_000))
    assert finding.place is not None and finding.place.line == 59
