# SPDX-License-Identifier: Apache-2.0
"""Loops whose calls compute all earlier positions again"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from builders import Judge, TraceBuilder

from profiling_lab.rules import Abstain
from profiling_lab.rules.recomputed_prefix import RULE

MAIN, GENERATE = "/app/run.py:9 main", "/app/run.py:9 main > /app/run.py:4 generate"
FORWARD = f"{GENERATE} > /app/model.py:21 Net.forward"
NORM, GELU = "at::native::vectorized_layer_norm_kernel", "at::native::vectorized_elementwise_kernel<gelu>"
PRODUCT, CACHE = "nvjet_tst", "at::native::CatArrayBatchedCopy"
COPY = "at::native::elementwise_kernel<direct_copy_kernel_cuda>"
ROWS, LAYERS, ANSWERS = 16, 3, 3
US = 1_000


@dataclass
class Program:
    """Answers, each of some words after a prompt."""

    first: int = 100
    words: int = 8
    answers: int = ANSWERS
    more: int = 1
    cached: bool = False
    norm: str = NORM
    trains: bool = False
    prefill: str = FORWARD
    by_head: bool = False
    between: str = ""
    nodes: int = 0

    def built(self, blocks: bool = True) -> TraceBuilder:
        builder = TraceBuilder()
        for _ in range(self.answers):
            for word in range(self.words):
                self.call(builder, word, blocks)
                if self.trains:
                    for node in range(self.nodes - LAYERS, self.nodes):
                        how = {"thread": 2, "peek": self.nodes, "node": node}
                        builder.launch("norm_backward", US, node_name="NativeLayerNormBackward0", **how)
                builder.launch("argmax", 2 * US, blocks=ROWS if blocks else None, stack=GENERATE)
                builder.launch(COPY, 2 * US, blocks=64 + word if blocks else None, stack=GENERATE)
        return builder

    def call(self, builder: TraceBuilder, word: int, blocks: bool) -> None:
        stack, seen = FORWARD if word else self.prefill, self.first + self.more * word
        computed = ROWS * (1 if self.cached and word else seen)
        for _ in range(LAYERS):
            self.nodes += self.trains
            for kernel, rows in (
                (self.norm, computed),
                *([(self.norm, 4 * computed)] if self.by_head else []),
                (CACHE, ROWS * seen),
                *([(self.between, ROWS)] if self.between else []),
                (PRODUCT, 132),
                (GELU, 4 * computed),
            ):
                at = f"{stack} > /app/model.py:{30 + (kernel == GELU)} Layer.forward"
                at += " > /v/site-packages/torch/nn/norm.py:5 f" if rows == computed else ""
                how = {"peek": self.nodes} if self.trains else {}
                builder.launch(kernel, 100 * US, blocks=rows if blocks else None, stack=at, **how)


def test_keeping_keys_and_values_launches_two_copies_beside_each_attention(judge: Judge) -> None:
    (finding,) = judge(RULE, Program().built())
    (with_attention,) = judge(RULE, Program(between="fmha_cutlassF_bf16").built())
    assert (finding.saving.launches_left == 1).all()
    assert with_attention.saving.launches_left == pytest.approx(1 + 2 / 5), "one of five is an attention"


@pytest.mark.parametrize(("first", "words"), [(100, 8), (1, 30)])
def test_fires_on_calls_that_grow_by_a_position(judge: Judge, first: int, words: int) -> None:
    (finding,) = judge(RULE, Program(first, words=words).built())
    calls = ANSWERS * (words - 1)
    assert finding.cost_ns == calls * LAYERS * 400 * US, "neither what comes behind, nor the first calls"
    assert f"{calls} calls" in finding.what
    assert f"from {first} to {first + words - 1} positions" in finding.what
    assert finding.place is not None and finding.place.line == 21, "the call, not a layer"
    assert "keys and values" in finding.remedy and finding.saving is not None
    assert (finding.saving.launches_left == 1).all()
    least = max(0.03, 1 / (first + words - 1))
    assert finding.saving.left.min() == pytest.approx(least), "a kernel takes some microseconds"


def test_the_first_call_of_a_loop_may_be_at_another_line(judge: Judge) -> None:
    """As in libraries: at the same line of yours."""
    prompt = f"{MAIN} > /v/site-packages/transformers/g.py:3 prefill"
    words = f"{MAIN} > /v/site-packages/transformers/g.py:7 decode"
    builder = TraceBuilder()
    for _ in range(ANSWERS):
        for word in range(8):
            for _ in range(LAYERS):
                stack = words if word else prompt
                builder.launch(NORM, 100 * US, blocks=ROWS * (50 + word), stack=stack)
                builder.launch(PRODUCT, 100 * US, blocks=132, stack=stack)
            builder.launch("argmax", 2 * US, blocks=ROWS, stack=MAIN)
    (finding,) = judge(RULE, builder)
    assert f"{ANSWERS * 7} calls" in finding.what and finding.place.line == 9


def test_norms_of_several_widths_at_one_line_are_told_apart(judge: Judge) -> None:
    (finding,) = judge(RULE, Program(by_head=True).built())
    assert f"{ANSWERS * 7} calls" in finding.what


@pytest.mark.parametrize(
    "program",
    [
        Program(cached=True),
        Program(words=2, answers=8),
        Program(words=5, answers=1),
        Program(more=0),
        Program(norm="reduce_kernel<MaxOps>"),
        Program(trains=True),
    ],
    ids=["cached", "few words", "few calls", "no growth", "no norms", "trains"],
)
def test_silent_about_calls_that_do_not_grow(judge: Judge, program: Program) -> None:
    assert judge(RULE, program.built()) == ()


def test_silent_about_batches_of_any_length(judge: Judge) -> None:
    builder = TraceBuilder()
    for length in (5, 9, 17, 18, 30, 31, 33, 60, 61, 80, 99, 120):
        builder.launch(NORM, 100 * US, blocks=length, stack=FORWARD)
    assert judge(RULE, builder) == ()


def test_silent_about_several_batches_of_a_length(judge: Judge) -> None:
    """Sorted by length, the next bucket is longer by the same, but not each has as many batches."""
    builder = TraceBuilder()
    for bucket in range(12):
        for _ in range(1 + bucket % 5):
            builder.launch(NORM, 100 * US, blocks=8 * (4 + bucket), stack=FORWARD)
    assert judge(RULE, builder) == ()


def test_abstains_without_blocks(judge: Judge) -> None:
    verdict = judge(RULE, Program().built(blocks=False))
    assert isinstance(verdict, Abstain) and "blocks" in verdict.reason
