# SPDX-License-Identifier: Apache-2.0
"""Calls in each step of a training whose result is not used"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from builders import Judge, TraceBuilder

from profiling_lab.rules import Abstain
from profiling_lab.rules.unused_results import RULE

FILE, STEPS = "/app/train.py", 10
SHOWS = f"{FILE}:8 main > {FILE}:31 Preview.show"
OPTIM = "/v/site-packages/torch/optim/adam.py:9 Adam.step"
Shown = Callable[[TraceBuilder], object]


def decoded(builder: TraceBuilder) -> object:
    builder.launch("vectorized_elementwise_kernel", 10_000, stack=SHOWS)
    return builder.launch("sm90_gemm", 10_000, stack=SHOWS)


def training(
    shown: Shown = decoded, text: str = "preview.show(step, found[0])", every: int = 1, trains: bool = True
) -> TraceBuilder:
    builder = TraceBuilder().source(FILE, 8, text)
    for step in range(STEPS):
        begin = builder.now_ns
        builder.launch("gemm", 10_000, stack=f"{FILE}:6 main", peek=step + 1)
        if trains:
            builder.launch("gemm_back", 20_000, thread=2, node=step, node_name="MmBackward0", peek=step + 1)
        if step % every == 0:
            shown(builder)
        builder.range(f"ProfilerStep#{step}", begin, builder.now_ns - 1)
    return builder


def test_fires_on_what_each_step_only_shows(judge: Judge) -> None:
    (finding,) = judge(RULE, training())
    assert finding.cost_ns == STEPS * 20_000 and "40.0 % of the GPU time" in finding.what
    assert finding.place is not None and finding.place.line == 8 and "Preview.show" in finding.what


@pytest.mark.parametrize(
    "text", ["x = preview.show(found)", "return show(found)", "log(show(found))", "preview.showing(found)"]
)
def test_silent_about_results_that_are_used(judge: Judge, text: str) -> None:
    assert judge(RULE, training(text=text)) == []


def launches(*kernels: str, stack: str = SHOWS) -> Shown:
    def shown(builder: TraceBuilder) -> None:
        for kernel in kernels:
            builder.launch(kernel, 10_000, stack=stack)

    return shown


def upload(builder: TraceBuilder) -> object:
    decoded(builder)
    return builder.copy("HtoD", 1_000, stack=SHOWS)


@pytest.mark.parametrize(
    "shown",
    [
        launches(*["vectorized_elementwise_kernel"] * 4, "gemm"),
        launches("gemm", "gemm", stack=f"{SHOWS} > {OPTIM}"),
        upload,
    ],
    ids=["changes tensors", "optimizer", "from the host"],
)
def test_silent_about_what_changes_something(judge: Judge, shown: Shown) -> None:
    assert judge(RULE, training(shown)) == []


def test_silent_about_what_is_trained_or_comes_now_and_then(judge: Judge) -> None:
    def trained(builder: TraceBuilder) -> None:
        builder.launch("gemm", 10_000, stack=SHOWS, peek=101)
        builder.launch("gemm_back", 10_000, thread=2, node=100, node_name="MmBackward0", peek=101)

    assert judge(RULE, training(trained)) == []
    assert judge(RULE, training(every=2)) == []


def test_what_a_hook_shows_in_backward_counts_too(judge: Judge) -> None:
    engine = "/v/site-packages/torch/autograd/graph.py:829 _engine_run_backward"
    hook = f"{FILE}:7 main > {engine} > {FILE}:9 main.<locals>.<lambda> > {FILE}:31 Preview.show"

    def shown(builder: TraceBuilder) -> None:
        decoded(builder)
        builder.launch("reduce_kernel", 5_000, stack=hook, node=0, node_name="MmBackward0", peek=1)

    builder = training(shown).source(FILE, 9, "x.register_hook(lambda gradient: preview.show(gradient))")
    (finding,) = judge(RULE, builder)
    assert finding.cost_ns == STEPS * 25_000 and finding.place is not None and finding.place.line == 8


def test_what_is_used_elsewhere_does_not_count(judge: Judge) -> None:
    def shown(builder: TraceBuilder) -> None:
        decoded(builder)
        builder.launch("gemm", 5_000, stack=SHOWS.replace(":8 main", ":9 main"))

    (finding,) = judge(RULE, training(shown).source(FILE, 9, "x = preview.show(found)"))
    assert finding.cost_ns == STEPS * 20_000
    ordered = launches("gemm", stack=f"{FILE}:9 main.<locals>.<lambda> > {FILE}:31 Preview.show")
    builder = training(ordered).source(FILE, 9, "best = max(found, key=lambda each: preview.show(each))")
    assert judge(RULE, builder) == [], "a lambda alone says nothing"


def test_abstains_without_backward_steps_or_text(judge: Judge) -> None:
    builder = training()
    del builder.rows["PYREC_SOURCE"]
    assert isinstance(judge(RULE, builder), Abstain)
    assert isinstance(judge(RULE, training(trains=False)), Abstain)
    assert isinstance(judge(RULE, TraceBuilder().launch("k", 1000)), Abstain)
    assert isinstance(judge(RULE, TraceBuilder().launch("k", 1000, stack=SHOWS)), Abstain)
