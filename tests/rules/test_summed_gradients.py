# SPDX-License-Identifier: Apache-2.0
"""Gradients of one weight that are summed up use by use"""

from __future__ import annotations

import pytest
from builders import Judge, TraceBuilder

from profiling_lab.rules import Abstain
from profiling_lab.rules.summed_gradients import RULE

FILE, WORDS, STEPS, US = "/app/model.py", 10, 3, 1_000
GEMM = "sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize64x128x32"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float> >"
LOOP = "losses.append(F.cross_entropy(self.head(out), truth))"


def program(*lines: str, words: int = WORDS, node_name: str = "TBackward0", sum_us: int = 30) -> TraceBuilder:
    """Each step calls a layer for each word: at line 1, then at the other lines."""
    builder = TraceBuilder()
    for number, text in enumerate(lines, 1):
        builder.source(FILE, number, text)
    stack, node = f"/app/train.py:9 main > {FILE}:1 Decoder.forward", 2
    builder.source("/app/train.py", 9, "loss = model(text)")
    builder.launch("embedding", 1 * US, stack="/app/train.py:9 main", peek=node)
    for step in range(STEPS):
        begin, nodes = builder.now_ns, []
        for _ in range(words):
            for other in range(2, len(lines) + 1):
                builder.launch("cell", 5 * US, stack=f"/app/train.py:9 main > {FILE}:{other} Decoder.forward")
            node += 2
            builder.launch(GEMM, 20 * US, stack=stack, peek=node)
            nodes.append(node - 1)
        for word, each in enumerate(reversed(nodes)):
            how = {"thread": 2, "peek": node, "node": each, "node_name": "AddmmBackward0"}
            builder.launch(GEMM, 20 * US, **how).launch(GEMM, 25 * US, **how)
            if word:  # nothing came before the first
                builder.launch(ADD, sum_us * US, **{**how, "node": each - 1, "node_name": node_name})
        builder.range(f"ProfilerStep#{step}", begin, builder.now_ns - 1)
    return builder


def test_fires_on_a_layer_that_is_called_in_a_loop(judge: Judge) -> None:
    (finding,) = judge(RULE, program(LOOP))
    assert finding.cost_ns == STEPS * (WORDS - 1) * 30 * US and finding.events == STEPS * (WORDS - 1)
    assert "9 times in each backward" in finding.what and "torch.stack" in finding.remedy
    assert finding.place is not None and finding.place.line == 1
    saving = finding.saving
    assert saving is not None and len(saving.operations) == STEPS * (4 * WORDS - 1 + WORDS - 1)
    least = dict(zip(saving.operations.tolist(), saving.left.tolist(), strict=True))
    assert sorted(set(least.values())) == pytest.approx([0.5, 0.6, 1.0]), (
        "products read or write the weight once, a third of a sum: 10 of 20 and of 25 µs"
    )
    assert saving.launches_left[saving.left == 0.5] == pytest.approx(1 / WORDS)


@pytest.mark.parametrize(
    "lines",
    [
        ("state = self.cell(word, state)",),
        ("state = self.cell(torch.cat((word, seen), dim=1), first)", "seen = self.look(state)"),
        ("self.state = self.cell(word, self.state)",),
        ("states.append(self.cell(word, states[-1]))",),
        ("state[:] = self.cell(word, state)",),
        ("state = self.cell(",),
    ],
    ids=["itself", "by another line", "an attribute", "a list", "in place", "text that is not whole"],
)
def test_of_a_recurrence_the_sums_alone_are_saved(judge: Judge, lines: tuple[str, ...]) -> None:
    (finding,) = judge(RULE, program(*lines))
    assert finding.saving is not None and set(finding.saving.left.tolist()) == {0.0}
    assert len(finding.saving.operations) == STEPS * (WORDS - 1) and "nn.GRU" in finding.remedy


def test_a_caller_may_bring_it_back(judge: Judge) -> None:
    builder = program("return self.cell(word, state)").source(
        "/app/train.py", 9, "state = model(text, state)"
    )
    (finding,) = judge(RULE, builder)
    assert "nn.GRU" in finding.remedy


def test_what_is_summed_is_no_recurrence(judge: Judge) -> None:
    (finding,) = judge(
        RULE, program("total += F.cross_entropy(self.head(out), truth)", "out = self.next(out)")
    )
    assert "torch.stack" in finding.remedy


@pytest.mark.parametrize(
    "how",
    [{"words": 8}, {"node_name": "AddmmBackward0"}, {"sum_us": 2}],
    ids=["few uses", "sums of what comes in", "short sums"],
)
def test_silent_about_sums_that_are_few_or_short_or_of_activations(judge: Judge, how: dict[str, int]) -> None:
    assert judge(RULE, program(LOOP, **how)) == ()


def test_abstains_without_backward(judge: Judge) -> None:
    verdict = judge(RULE, TraceBuilder().launch("k", 1000, stack=f"{FILE}:1 f"))
    assert isinstance(verdict, Abstain) and "no backward" in verdict.reason
