# SPDX-License-Identifier: Apache-2.0
"""Communication of autograd hooks is named with the modules whose gradients it reduces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from builders import TraceBuilder

from profiling_lab.analysis.coverage import IN_HOOKS, hook_reductions
from profiling_lab.analysis.lines import lines
from profiling_lab.trace import Trace
from profiling_lab.trace.ownership import Ownership

REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
CALL = "/v/site-packages/torch/nn/modules/module.py:1 Module._call_impl"
ENGINE: dict[str, Any] = {"thread": 2, "logical_thread": 2}
HOOK = ENGINE | {"node": -1, "node_name": "torch::autograd::AccumulateGrad"}


def forward_of(*modules: str) -> TraceBuilder:
    """One launch and one node per module, in this order; node n belongs to module n."""
    builder = TraceBuilder().launch("first", 1, stack="/app/train.py:1 main", peek=0)
    for number, module in enumerate(modules):
        stack = f"/app/train.py:9 main > {CALL} > /app/model.py:{number + 1} {module}"
        builder.launch(f"forward {module}", 10, stack=stack, peek=number + 1)
    return builder


def reduced(builder: TraceBuilder, tmp_path: Path) -> tuple[list[tuple[tuple[str, ...], int, int]], str]:
    with Trace.open(builder.write(tmp_path / "t.sqlite")) as trace:
        found = hook_reductions(trace, trace.stacks.own_rows(Ownership()))
        (reason,) = (u.reason for u in lines(trace).coverage.unattributed if u.reason.startswith(IN_HOOKS))
    return [(r.modules, r.ns, r.operations) for r in found], reason


def test_a_bucket_holds_the_gradients_since_the_one_before(tmp_path: Path) -> None:
    builder = forward_of("Trunk.forward", "Trunk.forward", "Net.<locals>.Head.forward")
    for _ in range(2):
        builder.launch("dhead", 5, node=2, **ENGINE).launch(REDUCE, 100, **HOOK)
        builder.launch("dtrunk", 5, node=1, **ENGINE).launch("bucket copy", 1, **HOOK)
        builder.launch("dtrunk", 5, node=0, **ENGINE).launch(REDUCE, 300, **HOOK)
    found, reason = reduced(builder, tmp_path)
    assert found == [(("Trunk",), 600, 2), (("Head",), 200, 2)]
    assert reason == f"{IN_HOOKS}; gradients of Trunk, Head"


def test_threads_of_two_devices_have_their_own_buckets(tmp_path: Path) -> None:
    builder = forward_of("A.forward", "B.forward")
    other = {"thread": 3, "logical_thread": 3}
    builder.launch("da", 5, node=0, **ENGINE).launch("db", 5, node=1, **other)
    builder.launch(REDUCE, 7, **(HOOK | other)).launch(REDUCE, 9, **HOOK)
    assert reduced(builder, tmp_path)[0] == [(("A",), 9, 1), (("B",), 7, 1)]


LINEAR = f"{CALL} > /v/site-packages/torch/nn/modules/linear.py:9 Linear.forward"


@pytest.mark.parametrize(("frame", "name"), [("loss_of", "loss_of"), (f"main > {LINEAR}", "Linear")])
def test_without_a_module_of_the_users(tmp_path: Path, frame: str, name: str) -> None:
    builder = TraceBuilder().launch("first", 1, stack="/app/train.py:1 main", peek=0)
    builder.launch("forward", 10, stack=f"/app/train.py:5 {frame}", peek=1)
    builder.launch("backward", 5, node=0, **ENGINE).launch(REDUCE, 7, **HOOK)
    assert reduced(builder, tmp_path)[0] == [((name,), 7, 1)]


def test_a_reduction_of_unknown_gradients_says_no_more_than_is_known(tmp_path: Path) -> None:
    builder = forward_of("A.forward").launch(REDUCE, 7, **HOOK)
    assert reduced(builder, tmp_path) == ([((), 7, 1)], IN_HOOKS)


def test_what_the_engine_launches_outside_of_its_nodes_is_named(tmp_path: Path) -> None:
    builder = forward_of("A.forward").launch("da", 5, node=0, **ENGINE)
    builder.launch("back from the bucket", 7, peek=0, **ENGINE)
    builder.row(
        "ThreadNames", nameId=builder.string("pt_autograd_0"), priority=None, globalTid=builder.tid(2)
    )
    with Trace.open(builder.write(tmp_path / "t.sqlite")) as trace:
        why = {u.reason: u.ns for u in lines(trace).coverage.unattributed}
    assert why == {
        "launched by the autograd engine outside of its nodes: callbacks at the end of backward (DDP)": 7
    }
