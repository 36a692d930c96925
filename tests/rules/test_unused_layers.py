# SPDX-License-Identifier: Apache-2.0
"""Layers behind the last one whose output is used"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from builders import Judge, TraceBuilder

from profiling_lab.rules import Abstain
from profiling_lab.rules.unused_layers import RULE

FILE, STEPS, LAYER_NS, OTHER_NS = "/app/train.py", 10, 10_000, 30_000
WALK = f"{FILE}:6 main > {FILE}:22 Net.forward"
WITHOUT = f"{FILE}:5 main > {FILE}:22 Net.forward"
TEXTS = {22: "x = layer(x)", 6: "seen = net(x)", 5: "wanted = net(truth)", 9: "x = x * 2"}


@dataclass
class Training:
    """Steps of forward, in which each kernel makes a node, and of backward through some of these nodes."""

    builder: TraceBuilder = field(default_factory=TraceBuilder)
    node: int = 0

    def forward(self, kernel: str, ns: int = LAYER_NS, stack: str = WALK) -> int:
        self.node += 1
        self.builder.launch(kernel, ns, stack=stack, peek=self.node + 1)
        return self.node

    def without_gradients(self, kernel: str, stack: str = WITHOUT) -> None:
        self.builder.launch(kernel, LAYER_NS, stack=stack, peek=self.node + 1)

    def backward(self, nodes: list[int]) -> None:
        for node in reversed(nodes):
            self.builder.launch(
                "dgrad", LAYER_NS, thread=2, node=node, node_name="MmBackward0", peek=self.node + 1
            )

    def with_texts(self, **other: str) -> TraceBuilder:
        for line, text in (TEXTS | {int(name[1:]): text for name, text in other.items()}).items():
            self.builder.source(FILE, line, text)
        return self.builder


def walked(
    used: int = 2,
    layers: tuple[int, ...] = (),
    exits: tuple[int, ...] = (),
    kernel: str = "gemm",
    walk: str = WALK,
    **texts: str,
) -> TraceBuilder:
    """In each step a network of equal layers, used until one of them. layers, exits: how many the first steps
    have, and how many they use.
    """
    training = Training()
    for step in range(STEPS):
        number, until = (first[step] if step < len(first) else n for first, n in ((layers, 5), (exits, used)))
        first = training.forward("gemm", stack=f"{FILE}:4 main")
        nodes = [training.forward(kernel.format(layer), stack=walk) for layer in range(number)]
        training.backward([first, *nodes[:until]])
        training.builder.launch("adam", OTHER_NS, stack=f"{FILE}:7 main", peek=training.node + 1)
    return training.with_texts(**texts)


def test_fires_on_layers_behind_the_last_used_one(judge: Judge) -> None:
    (finding,) = judge(RULE, walked())
    assert finding.cost_ns == STEPS * 3 * LAYER_NS and "in 30 operations" in finding.what
    assert finding.place is not None and finding.place.line == 22
    assert finding.saving is not None and len(finding.saving.operations) == 30


@pytest.mark.parametrize(
    "builder",
    [
        walked(used=5),
        walked(used=0),
        walked(used=4),
        walked(exits=(1, 5)),
        walked(kernel="elementwise"),
        walked(x22="outs.append(net(crop))", x6="loss = of(crops)"),
        walked(x22=""),
        walked(walk="/v/site-packages/net.py:22 Net.forward", kernel="gemm_{}"),
        walked(x6="seen = net(x.detach())"),
    ],
    ids=[
        "all used",
        "none",
        "one behind",
        "exits",
        "no products",
        "begins again",
        "no text",
        "no line",
        "detached",
    ],
)
def test_silent(judge: Judge, builder: TraceBuilder) -> None:
    assert judge(RULE, builder) == ()


def test_one_step_in_ten_may_differ(judge: Judge) -> None:
    (finding,) = judge(RULE, walked(exits=(5,)))
    assert finding.cost_ns == (STEPS - 1) * 3 * LAYER_NS
    (finding,) = judge(RULE, walked(layers=(1,)))
    assert finding.cost_ns == (STEPS - 1) * 3 * LAYER_NS


def test_a_call_whose_kernels_differ_needs_no_text(judge: Judge) -> None:
    (finding,) = judge(RULE, walked(kernel="gemm_{}", x22=""))
    assert finding.cost_ns == STEPS * 3 * LAYER_NS


def test_silent_if_a_later_product_is_used(judge: Judge) -> None:
    training = Training()
    for _ in range(STEPS):
        nodes = [training.forward("gemm") for _ in range(5)]
        training.backward([nodes[0], nodes[1], nodes[4]])
    assert judge(RULE, training.with_texts()) == ()


def test_what_lies_between_counts_unless_it_is_used(judge: Judge) -> None:
    def trained(also: bool) -> TraceBuilder:
        training = Training()
        for _ in range(STEPS):
            nodes = [training.forward("gemm"), training.forward("gemm")]
            training.forward("elementwise", stack=f"{FILE}:6 main > {FILE}:9 Net.act")
            other = training.forward("gemm", stack=f"{FILE}:6 main > {FILE}:9 Net.act")
            training.forward("gemm")
            training.forward("pool")
            training.backward([nodes[0], *([other] if also else [])])
        return training.with_texts()

    (finding,) = judge(RULE, trained(also=False))
    assert finding.cost_ns == STEPS * 5 * LAYER_NS
    assert judge(RULE, trained(also=True)) == ()


def test_calls_without_gradients_that_multiply_the_same_count_too(judge: Judge) -> None:
    def trained(kernels: list[str], stack: str = WITHOUT) -> TraceBuilder:
        training = Training()
        for _ in range(STEPS):
            first = training.forward("gemm", stack=f"{FILE}:4 main")
            for kernel in kernels:
                training.without_gradients(kernel, stack)
            nodes = [training.forward("gemm") for _ in range(4)]
            training.backward([first, *nodes[:2]])
        return training.with_texts()

    (finding,) = judge(RULE, trained(["gemm", "relu", "gemm", "gemm", "relu", "gemm", "relu"]))
    assert finding.cost_ns == STEPS * (2 + 4) * LAYER_NS
    (finding,) = judge(RULE, trained(["gemm"] * 4, WITHOUT.replace(":22", ":23")))
    assert finding.cost_ns == STEPS * 2 * LAYER_NS
    (finding,) = judge(RULE, trained(["gemm"] * 3))
    assert finding.cost_ns == STEPS * 2 * LAYER_NS
    (finding,) = judge(RULE, trained(["gemm", "gemm", "gemm", "other_gemm"]))
    assert finding.cost_ns == STEPS * 2 * LAYER_NS


def test_a_forward_that_no_backward_follows_says_nothing(judge: Judge) -> None:
    builder = walked()
    for layer in range(5):
        builder.launch("gemm", LAYER_NS, stack=WALK, peek=1_000 + layer)
    (finding,) = judge(RULE, builder)
    assert finding.cost_ns == STEPS * 3 * LAYER_NS


def test_each_thread_has_a_call_of_its_own(judge: Judge) -> None:
    builder, thread_of = TraceBuilder(), (1, 3)
    for step in range(STEPS):
        first = 100 * step
        for thread in thread_of:
            builder.launch("gemm", LAYER_NS, stack=WALK, thread=thread)  # of no autograd
            for node in range(first, first + 5):
                builder.launch("gemm", LAYER_NS, stack=WALK, thread=thread, peek=node + 1)
        for thread in thread_of:
            for node in (first + 1, first):
                how = {"node_thread": thread, "node_name": "MmBackward0"}
                builder.launch("dgrad", LAYER_NS, thread=2, node=node, peek=0, **how)
    (finding,) = judge(RULE, Training(builder).with_texts())
    assert finding.cost_ns == STEPS * 2 * 3 * LAYER_NS


def test_silent_about_little(judge: Judge) -> None:
    builder = walked()
    builder.launch("other", 100 * STEPS * LAYER_NS, stack=f"{FILE}:7 main", peek=10_000)
    assert judge(RULE, builder) == ()


def test_abstains_without_backward_or_nodes(judge: Judge) -> None:
    assert isinstance(judge(RULE, TraceBuilder().launch("gemm", 1000, peek=1)), Abstain)
    builder = TraceBuilder().launch("gemm", 1000, stack=WALK)
    engine = f"{FILE}:7 main > /v/site-packages/torch/autograd/graph.py:829 _engine_run_backward"
    assert isinstance(judge(RULE, builder.launch("gemm", 1000, stack=engine)), Abstain)
