# SPDX-License-Identifier: Apache-2.0
"""Layers that are applied to all positions, of which the last is used; and rows that are picked late"""

from __future__ import annotations

import pytest
from builders import Judge, TraceBuilder

from profiling_lab.rules import Abstain
from profiling_lab.rules.picked_late import RULE

FILE, US = "/app/serve.py", 1_000
MODULE = "/v/site-packages/torch/nn/modules/module.py:9 Module._call_impl"
HEAD, CALL, PICK = "return self.head(x).float()", "logits = model(prompts)", "word = logits[:, -1].argmax(-1)"
NORM = "void at::native::vectorized_layer_norm_kernel<float>()"


def serving(
    head: str | None = HEAD,
    call: str = CALL,
    *readers: str,
    kernels: tuple[str, ...] = ("nvjet_gemm", "direct_copy_kernel"),
    positions: int = 4096,
) -> TraceBuilder:
    """Line 12 calls a function that ends with line 32; the lines behind the call read what it gives."""
    builder, inside = TraceBuilder(), f"{FILE}:12 next_word > {MODULE} > {FILE}:"
    if head is not None:
        builder.source(FILE, 32, head).source(FILE, 31, "x = self.norm(self.blocks(x))")
        builder.source(FILE, 12, call)
        for number, text in enumerate(readers, 13):
            builder.source(FILE, number, text)
    for _ in range(4):
        builder.launch(NORM, 10 * US, blocks=positions, stack=f"{inside}31 Model.forward")
        for kernel in kernels:
            builder.launch(kernel, 50 * US, blocks=132, stack=f"{inside}32 Model.forward")
        for number in range(len(readers)):
            builder.launch("reduce", 5 * US, blocks=8, stack=f"{FILE}:{13 + number} next_word")
    return builder


def test_fires_on_scores_of_all_positions(judge: Judge) -> None:
    (finding,) = judge(RULE, serving(HEAD, CALL, PICK))
    assert finding.place is not None and finding.place.line == 32
    assert finding.cost_ns == 4 * 100 * US and set(finding.saving.left) == {0.05}
    assert "logits_to_keep=1" in finding.remedy


@pytest.mark.parametrize(
    ("head", "call", "readers"),
    [
        (HEAD, "return model(prompts)[:, -1, :]", ()),
        (HEAD, "logits = model(prompts).logits", ("return logits[:, -1:].topk(8)",)),
        (HEAD, CALL, (PICK, "y = logits[:, -1].max()")),
        ("return self.head(self.norm(x))[:, -1]", "y = model(prompts)", ()),
        ("scores = F.linear(x, self.words.weight)[..., -1, :]", "y = model(prompts)", ()),
    ],
)
def test_other_ways_to_pick(judge: Judge, head: str, call: str, readers: tuple[str, ...]) -> None:
    (finding,) = judge(RULE, serving(head, call, *readers))
    assert finding.place.line == 32


@pytest.mark.parametrize(
    ("head", "call", "readers"),
    [
        (HEAD, CALL, ("word = logits.argmax(-1)",)),
        (HEAD, CALL, (PICK, "loss = F.cross_entropy(logits.mT, words)")),
        (HEAD, CALL, ("word = logits[:, 0].argmax(-1)",)),
        (HEAD, CALL, ("word = logits[:, -2].argmax(-1)",)),
        (HEAD, CALL, ("word = logits[-1].argmax(-1)",)),
        (HEAD, CALL, ("word = logits.cumsum(1)[:, -1]",)),
        (HEAD, CALL, ()),
        (HEAD, "logits, kept = model(prompts)", (PICK,)),
        (HEAD, "logits = 2 * model(prompts)", (PICK,)),
        ("y = self.head(x).float()", CALL, (PICK,)),
        ("return self.out(self.layers(x)[:, -1])", "y = model(x)", ()),
    ],
)
def test_silent_where_more_may_be_used(judge: Judge, head: str, call: str, readers: tuple[str, ...]) -> None:
    assert judge(RULE, serving(head, call, *readers)) == []


@pytest.mark.parametrize(
    "kernels",
    [("gemm", "gelu", "gemm"), ("gemm", "softmax"), ("gemm", "rnncell_gemm"), ("flash_fwd",), ("copy",)],
)
def test_silent_about_what_is_not_one_layer(judge: Judge, kernels: tuple[str, ...]) -> None:
    assert not judge(RULE, serving(HEAD, CALL, PICK, kernels=kernels))


def test_silent_about_one_position_of_each(judge: Judge) -> None:
    assert judge(RULE, serving(HEAD, CALL, PICK, positions=64)) == []


def test_silent_where_another_call_uses_all(judge: Judge) -> None:
    builder = serving(HEAD, CALL, PICK).source(FILE, 22, "loss = F.cross_entropy(model(words).mT, truth)")
    stack = f"{FILE}:22 evaluate > {MODULE} > {FILE}:32 Model.forward"
    assert judge(RULE, builder.launch("nvjet_gemm", 50 * US, stack=stack)) == []


def test_abstains_without_text(judge: Judge) -> None:
    assert isinstance(judge(RULE, serving(None)), Abstain)


ENLARGE, SIGMOID = "upsample_bilinear2d_out_frame<float>", "vectorized_elementwise_kernel<sigmoid>"
GATHER = "vectorized_gather_kernel<16, long>"
SELECT = "index_elementwise_kernel<128, 4, gpu_index_kernel<index_kernel_impl<OpaqueType<4>>>>"


def masks(
    text: str = "kept = pick(enlarged(masks), best)",
    made: tuple[str, ...] = (ENLARGE, SIGMOID),
    picks: tuple[tuple[str, int], ...] = ((GATHER, 30 * US),),
    behind: str = "",
    inside: str = "return masks.sigmoid()",
) -> TraceBuilder:
    """Line 5 calls what makes them, at line 2, and what picks, at line 9."""
    builder, line = (
        TraceBuilder().source(FILE, 5, text).source(FILE, 2, inside),
        f"{FILE}:3 main > {FILE}:5 cells",
    )
    for _ in range(4):
        builder.launch("gemm", 50 * US, stack=f"{FILE}:3 main > {FILE}:4 cells")
        for kernel in made:
            builder.launch(kernel, 200 * US, stack=f"{line} > {FILE}:2 enlarged")
        for kernel, took_ns in picks:
            builder.launch(kernel, took_ns, stack=f"{line} > {FILE}:9 pick")
        if behind:
            builder.launch(behind, 10 * US, stack=line)
    return builder


@pytest.mark.parametrize(
    "text", ["return enlarged(masks)[best]", "y = enlarged(masks).index_select(0, best)"]
)
def test_other_ways_to_pick_rows(judge: Judge, text: str) -> None:
    (finding,) = judge(RULE, masks(text))
    assert finding.place.line == 5


@pytest.mark.parametrize("picks", [((GATHER, 30 * US),), ((SELECT, 20 * US), (SELECT, 10 * US))])
def test_fires_on_rows_that_are_picked_behind(judge: Judge, picks: tuple[tuple[str, int], ...]) -> None:
    (finding,) = judge(RULE, masks(picks=picks))
    assert finding.place is not None and finding.place.line == 5
    assert finding.cost_ns == 4 * 400 * US and "picked then" in finding.what
    assert set(finding.saving.left) == {0.15} and set(finding.saving.launches_left) == {1.0}
    assert finding.remedy.startswith("pick first")


@pytest.mark.parametrize(
    "builder",
    [
        masks(picks=((GATHER, 150 * US),)),  # most of them
        masks(picks=()),
        masks(picks=(("_scatter_gather_elementwise_kernel<scatter_gather_internal_kernel<true>>", 30 * US),)),
        masks(made=()),
        masks(made=(ENLARGE, "softmax_warp_forward")),
        masks(made=(ENLARGE, "gemm")),
        masks(made=(GATHER, ENLARGE, SIGMOID)),  # picked before
        masks(behind="vectorized_elementwise_kernel<mul>"),
        masks(text="for part in pick(enlarged(masks), best):"),
        masks(text="kept = pick("),
        masks(text="return enlarged(masks), pick(masks, best)"),
        masks(text="return Cells(enlarged(masks), pick(masks, best))"),
        masks(inside="self.state = self.state.sigmoid()"),
        masks(inside="return masks.mul_(0.9)"),
    ],
)
def test_silent_about_other_picks(judge: Judge, builder: TraceBuilder) -> None:
    assert judge(RULE, builder) == []
