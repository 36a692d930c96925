# SPDX-License-Identifier: Apache-2.0
"""The forward of a network that is not trained, in each step of a training"""

from __future__ import annotations

from pathlib import Path

import pytest
from builders import Judge, TraceBuilder

from profiling_lab.rules import RULES, Abstain, run
from profiling_lab.rules.frozen_network import RULE
from profiling_lab.trace import Trace

FILE, STEPS, US = "/app/train.py", 10, 1_000
CALL = f"{FILE}:8 main > {FILE}:24 Data.features"
NETWORK = f"{CALL} > {FILE}:41 Frozen.forward"
TEACHER = f"{FILE}:9 main > {FILE}:41 Frozen.forward"


def training(
    network: str = NETWORK,
    took_ns: int = 100 * US,
    every: int = 1,
    kernel: str = "gemm",
    norm: str = "vectorized_layer_norm_kernel",
    trained: tuple[str, ...] = (f"{FILE}:6 main",),
    text: str = "loss = f(head(data.features(x)))",
) -> TraceBuilder:
    """A head is trained on what a network makes, and other lines with it."""
    builder, nodes = TraceBuilder(), 0
    if text:
        builder.source(FILE, 8, text).source(FILE, 9, "y = net(x)").source(FILE, 24, "return self.net(x)")
    for step in range(STEPS):
        begin = builder.now_ns
        if step % every == 0:
            builder.copy("HtoD", 10 * US, stack=CALL)
            builder.launch(kernel, took_ns, stack=network)
            builder.launch(norm, took_ns, stack=network)
        for line in trained:
            nodes += 1
            builder.launch("gemm", 10 * US, stack=line, peek=nodes)
            how = {"thread": 2, "node": nodes - 1, "node_name": "MmBackward0", "peek": nodes}
            builder.launch("gemm_back", 10 * US, **how)
        builder.range(f"ProfilerStep#{step}", begin, builder.now_ns - 1)
    return builder


def test_fires_on_a_call_that_nothing_is_trained_through(judge: Judge) -> None:
    (finding,) = judge(RULE, training())
    assert finding.cost_ns == STEPS * 210 * US, "with what it reads"
    assert finding.place is not None and finding.place.line == 8 and "Data.features" in finding.what
    assert "keep what it makes" in finding.remedy and finding.confidence == "low"


def test_it_says_what_keeping_would_win_and_is_ranked_as_a_symptom(tmp_path: Path) -> None:
    """Whether inputs come again is not known."""
    with Trace.open(training().write(tmp_path / "run.sqlite")) as trace:
        (first, *_) = run(trace, RULES).findings
    assert first.rule == RULE.name and first.severity != "high" and first.gain_per_step_ns is not None
    assert first.at_most_per_step_ns == first.gain_per_step_ns == pytest.approx(210 * US, rel=0.1)
    assert RULE.symptom and 0 < first.rank_ns <= STEPS * first.gain_per_step_ns


def test_of_calls_with_the_same_the_outer_one_is_told(judge: Judge) -> None:
    builder = training(network=f"{FILE}:9 main > {FILE}:50 Net.encode > {FILE}:41 Frozen.forward")
    (finding,) = judge(RULE, builder.source(FILE, 50, "return self.frozen(x)"))
    assert finding.place is not None and finding.place.line == 9


def test_fires_on_a_module(judge: Judge) -> None:
    module = "/v/site-packages/torch/nn/modules/module.py:1790 Module._call_impl"
    (finding,) = judge(RULE, training(network=f"{FILE}:9 main > {module} > {FILE}:41 Frozen.forward"))
    assert finding.cost_ns == STEPS * 200 * US and finding.place is not None and finding.place.line == 9


@pytest.mark.parametrize(
    "builder",
    [
        training(took_ns=2 * US),
        training(every=2),
        training(kernel="vectorized_elementwise_kernel"),
        training(norm="vectorized_elementwise_kernel"),
        training(trained=(TEACHER,)),
        training(trained=(f"{FILE}:6 main", NETWORK)),
    ],
    ids=[
        "a small part",
        "now and then",
        "no products",
        "an augmentation",
        "a mean of what is trained",
        "trained through",
    ],
)
def test_silent_about_what_is_needed(judge: Judge, builder: TraceBuilder) -> None:
    assert judge(RULE, builder) == ()


@pytest.mark.parametrize(
    "builder", [training(trained=()), training(text="")], ids=["no backward", "no texts"]
)
def test_abstains(judge: Judge, builder: TraceBuilder) -> None:
    assert isinstance(judge(RULE, builder), Abstain)
