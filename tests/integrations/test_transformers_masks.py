# SPDX-License-Identifier: Apache-2.0
"""What a mask of transformers says is what its matrix says, and what cannot be said stays a matrix."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from tiny_models import MODELS, VOCABULARY, build
from torch import Tensor, nn

transformers = pytest.importorskip("transformers", "5.0", reason="transformers 5 is not installed")
from transformers import masking_utils as theirs  # noqa: E402

from profiling_lab.integrations import transformers_attention as ours  # noqa: E402
from profiling_lab.integrations._transformers_masks import StructuredMask, mask  # noqa: E402

HEADS, DIM, BATCH = 4, 8, 3
FUNCTIONS = {
    "causal": theirs.causal_mask_function,
    "window": theirs.sliding_window_causal_mask_function(4),
    "both ways": theirs.bidirectional_mask_function,
    "window both ways": theirs.sliding_window_bidirectional_mask_function(3),
}


class Layer(nn.Module):
    is_causal, num_key_value_groups, training = True, 2, False


def attended(q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> Tensor:
    k, v = (t.repeat_interleave(2, 1) for t in (k, v))
    scores = (q @ k.mT * DIM**-0.5).masked_fill(~visible, torch.finfo(q.dtype).min)
    return (scores.softmax(-1) @ v).transpose(1, 2)


def padded(kind: str, length: int) -> Tensor | None:
    if kind == "none":
        return None
    valid = torch.ones(BATCH, length, dtype=torch.bool)
    if kind in ("left", "both"):
        valid[1, : min(2, length)] = False
    if kind in ("right", "both"):
        valid[2, max(length - 2, 0) :] = False
    if kind == "a whole sequence":
        valid[1] = False
    return valid


@pytest.mark.parametrize("padding", ["none", "left", "right", "both", "a whole sequence"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_structure_is_the_matrix(name: str, padding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Queries and keys of a prefill, its continuation, decoding, a static cache with free places, and one
    that has dropped what is behind its window.
    """
    reasons: list[str] = []
    monkeypatch.setattr(ours, "_hand_back", lambda why, *_: (reasons.append(why), None))
    generator = torch.Generator().manual_seed(5)
    shapes = [
        (9, 9, 0, 0),
        (3, 9, 6, 0),
        (1, 9, 8, 0),
        (5, 12, 0, 0),
        (2, 12, 7, 0),
        (2, 5, 8, 5),
        (1, 4, 8, 5),
    ]
    compared = 0
    for (queries, keys, q_offset, kv_offset), skip in itertools.product(shapes, (False, True)):
        asked = {
            "batch_size": BATCH, "q_length": queries, "kv_length": keys, "q_offset": q_offset,
            "kv_offset": kv_offset, "mask_function": FUNCTIONS[name],
            "attention_mask": padded(padding, q_offset + queries), "device": torch.device("cpu"),
        }  # fmt: skip
        if "both ways" in name and q_offset + queries != kv_offset + keys:
            continue
        both = {"allow_is_causal_skip": skip, "allow_is_bidirectional_skip": skip}
        never = {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
        made, matrix = mask(**asked, **both), theirs.sdpa_mask(**asked, **never)
        assert made is None or (isinstance(made, StructuredMask) and made.shape == matrix.shape)
        q = torch.randn(BATCH, HEADS, queries, DIM, generator=generator)
        k, v = (torch.randn(BATCH, HEADS // 2, keys, DIM, generator=generator) for _ in range(2))
        layer = Layer()
        layer.is_causal = "both ways" not in name
        out, _ = ours.attention(layer, q, k, v, made)
        if out is None:
            assert queries == 1 and padding != "none" and reasons[-1].startswith("one query")
            continue
        valid = asked["attention_mask"]
        rows = torch.ones(BATCH, queries, dtype=torch.bool) if valid is None else valid[:, q_offset:]
        torch.testing.assert_close(out[rows], attended(q, k, v, matrix)[rows])
        if made is not None and (layer.is_causal or "window" in name):
            assert (out[~rows] == 0).all()
        assert made is None or made._matrix is None, "the matrix was made"
        compared += 1
    assert compared >= 4


@pytest.mark.parametrize("name", FUNCTIONS)
def test_packed_sequences(name: str) -> None:
    positions = torch.tensor([[0, 1, 2, 3, 0, 1, 0, 1, 2], [0, 0, 1, 2, 3, 4, 5, 6, 7]])
    sequences = theirs.find_packed_sequence_indices(positions)
    if pack := getattr(theirs, "packed_sequence_compatibility_function", None):  # before 5.24
        function = pack(FUNCTIONS[name], positions, sequences)
    else:
        function = theirs.and_masks(
            theirs.remap_positions_for_packed_sequence(FUNCTIONS[name], positions),
            theirs.packed_sequence_mask_function(sequences),
        )
    asked = {"batch_size": 2, "q_length": 9, "kv_length": 9, "q_offset": 0, "mask_function": function}
    asked["allow_is_causal_skip"] = False
    made, matrix = mask(**asked), theirs.sdpa_mask(**asked)
    assert isinstance(made, StructuredMask)
    assert made.structure.cu_seqlens_q.tolist() == [0, 4, 6, 9, 10, 18]
    q = torch.randn(2, HEADS, 9, DIM, generator=torch.Generator().manual_seed(5))
    k, v = q[:, :2] + 1, q[:, 2:] - 1
    torch.testing.assert_close(ours.attention(Layer(), q, k, v, made)[0], attended(q, k, v, matrix))


def test_a_mask_that_is_read_is_a_matrix() -> None:
    made = mask(
        batch_size=1,
        q_length=4,
        kv_length=4,
        q_offset=0,
        mask_function=FUNCTIONS["window"],
        allow_is_causal_skip=False,
    )
    expected = torch.ones(4, 4, dtype=torch.bool).tril()
    assert isinstance(made, StructuredMask) and made.dtype == torch.bool and made.dim() == 4
    assert torch.equal(made[0, 0], expected) and type(made & True) is Tensor
    assert torch.equal(torch.where(made, 1.0, 0.0)[0, 0], expected.float())


@pytest.mark.parametrize(
    "function",
    [
        theirs.chunked_causal_mask_function(3, torch.zeros(2, dtype=torch.long)),
        theirs.or_masks(
            theirs.causal_mask_function, theirs.blockwise_overlay(torch.zeros(2, 6, dtype=torch.long))
        ),
        lambda b, h, q, k: k <= q + 1,
    ],
    ids=["chunks", "blocks", "a user's own"],
)
def test_other_patterns_are_matrices(function: Any) -> None:
    made = mask(
        batch_size=2, q_length=6, kv_length=6, q_offset=0, mask_function=function, allow_is_causal_skip=False
    )
    assert type(made) is Tensor
    assert torch.equal(
        made,
        theirs.sdpa_mask(
            batch_size=2, q_length=6, kv_length=6, mask_function=function, allow_is_causal_skip=False
        ),
    )


def test_holes_between_keys_are_a_matrix() -> None:
    valid = torch.tensor([[1, 1, 0, 1]]).bool()
    made = mask(batch_size=1, q_length=4, kv_length=4, q_offset=0, attention_mask=valid)
    assert type(made) is Tensor


# What is handed back, each by its reason, and still right


@pytest.fixture
def reasons(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    seen: list[str] = []
    hand_back = ours._hand_back
    monkeypatch.setattr(ours, "_hand_back", lambda why, *rest: (seen.append(why), hand_back(why, *rest))[1])
    return seen


def logits(model: Any, **data: Any) -> tuple[Tensor, Tensor]:
    results = []
    for implementation in ("eager", ours.NAME):
        model.set_attn_implementation(implementation)
        torch.manual_seed(11)
        with torch.no_grad():
            results.append(model(**data).logits)
    return results[0], results[1]


def tiny(name: str, **options: Any) -> Any:
    (found,) = (t for t in MODELS if t.model == name)
    for key, value in options.items():
        found.options[key] = value
    return build(transformers, found)


@pytest.mark.parametrize("name", ["LlamaForCausalLM", "Gemma2ForCausalLM", "GptOssForCausalLM"])
def test_a_mask_of_the_users_own(name: str, reasons: list[str]) -> None:
    """To SDPA, or where SDPA ignores softcap or sinks, to the model's eager attention."""
    ids = torch.randint(3, VOCABULARY, (2, 7), generator=torch.Generator().manual_seed(1))
    visible = torch.ones(2, 1, 7, 7, dtype=torch.bool).tril()
    visible[:, :, 5, 1:4] = False
    additive = torch.zeros(2, 1, 7, 7).masked_fill(~visible, torch.finfo(torch.float32).min)
    model = tiny(name)
    for given in ({"full_attention": additive, "sliding_attention": additive}, additive):
        if isinstance(given, dict) == (name == "LlamaForCausalLM"):
            continue
        eager, our = logits(model, input_ids=ids, attention_mask=given)
        torch.testing.assert_close(our, eager, rtol=1e-4, atol=1e-4)
    assert set(reasons) == {"a mask that is neither causal, nor a window, nor padding or packed sequences"}


@pytest.mark.parametrize("scores", [{}, {"s_aux": torch.linspace(-1, 1, HEADS)}], ids=["", "sink"])
def test_padding_in_a_mask_of_the_users_own(scores: dict[str, Any], reasons: list[str]) -> None:
    """Lengths where it ends the keys, for encoders; whatever else one row of a mask says is handed back."""
    generator = torch.Generator().manual_seed(2)
    shapes = ((HEADS, 5), (HEADS // 2, 9), (HEADS // 2, 9))
    query, key, value = (torch.randn(BATCH, *shape, DIM, generator=generator) for shape in shapes)
    behind = (torch.arange(9) < torch.tensor([9, 4, 2])[:, None])[:, None, None]
    in_front = "a mask of other keys than the last ones"
    for given, rows, why in (
        (behind, query, []),
        (behind.expand(-1, HEADS, 5, -1), query, []),
        ((torch.arange(9) < 6).expand(BATCH, 1, 1, -1), query, []),
        (behind.flip(3), query, [in_front]),
        (behind, query[:, :, :1], ["one query a sequence over padded keys, which would be copied"]),
    ):
        if why and scores:
            continue  # to the eager attention of a model
        reasons.clear()
        found, _ = ours.attention(Layer(), rows, key, value, given, **scores)
        additive = torch.zeros(given.shape).masked_fill(~given, -torch.inf)
        logits = rows @ key.repeat_interleave(2, 1).mT * DIM**-0.5 + additive
        if scores:
            sink = scores["s_aux"].view(1, HEADS, 1, 1).expand(BATCH, -1, logits.shape[2], 1)
            logits = torch.cat([logits, sink], -1)
        weights = logits.softmax(-1)[..., :9]
        torch.testing.assert_close(found, (weights @ value.repeat_interleave(2, 1)).transpose(1, 2))
        assert reasons == why


@pytest.mark.parametrize("name", ["LlamaForCausalLM", "Gemma2ForCausalLM"])
def test_dropout(name: str, reasons: list[str]) -> None:
    model = tiny(name)
    model.config.attention_dropout = 0.5
    model.train()
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.5
    model.set_attn_implementation(ours.NAME)
    ids = torch.randint(3, VOCABULARY, (2, 7))
    first, second = model(input_ids=ids).logits, model(input_ids=ids).logits
    assert not torch.equal(first, second) and set(reasons) == {"dropout"}


@pytest.mark.parametrize("name", ["LlamaForCausalLM", "GptOssForCausalLM"])
def test_a_model_without_the_interface(
    name: str, reasons: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its eager attention may do what no argument says."""
    model = tiny(name)
    monkeypatch.setattr(ours, "_follows_the_interface", lambda _: False)
    ids = torch.randint(3, VOCABULARY, (2, 7), generator=torch.Generator().manual_seed(1))
    eager, our = logits(model, input_ids=ids)
    torch.testing.assert_close(our, eager, rtol=1e-4, atol=1e-4)
    assert len(reasons) == 2 and "supports neither" in reasons[0]


def test_which_models_have_the_interface() -> None:
    from importlib import import_module

    for name, answer in (("llama", True), ("gpt_oss", True), ("markuplm", False)):
        module = import_module(f"transformers.models.{name}.modeling_{name}").__name__
        assert ours._follows_the_interface(module) is answer


def test_no_eager_attention_to_hand_back_to() -> None:
    q = torch.zeros(1, 2, 3, 8)
    with pytest.raises(ValueError, match=r"needs its eager attention .*attn_implementation=.eager"):
        ours.attention(Layer(), q, q, q, None, dropout=0.1, softcap=2.0)


@pytest.mark.parametrize("name", ["LlamaForCausalLM", "MistralForCausalLM", "Gemma2ForCausalLM"])
def test_compiled(name: str) -> None:
    """A window or padding is a matrix there, because its values are not known while tracing."""
    torch._dynamo.reset()
    model = tiny(name)
    ids = torch.randint(3, VOCABULARY, (2, 9), generator=torch.Generator().manual_seed(1))
    valid = torch.ones(2, 9, dtype=torch.long)
    valid[0, :2] = 0
    for data in ({"input_ids": ids}, {"input_ids": ids, "attention_mask": valid}):
        eager, _ = logits(model, **data)
        model.set_attn_implementation(ours.NAME)
        with torch.no_grad():
            our = torch.compile(model, backend="aot_eager", fullgraph=True)(**data).logits
        at = data.get("attention_mask", torch.ones_like(ids)).bool()
        torch.testing.assert_close(our[at], eager[at], rtol=1e-4, atol=1e-4)


def test_compiled_layers() -> None:
    """Only the layers are compiled: the mask is made outside and handed in."""
    torch._dynamo.reset()
    model = tiny("MistralForCausalLM")
    ids = torch.randint(3, VOCABULARY, (2, 9), generator=torch.Generator().manual_seed(1))
    eager, _ = logits(model, input_ids=ids)
    for layer in model.model.layers:
        layer.compile(backend="aot_eager")
    _, our = logits(model, input_ids=ids)
    torch.testing.assert_close(our, eager, rtol=1e-4, atol=1e-4)


def test_gradient_checkpointing() -> None:
    model = tiny("MistralForCausalLM").train()
    ids = torch.randint(3, VOCABULARY, (2, 9), generator=torch.Generator().manual_seed(1))
    found = []
    for implementation, again in (("eager", False), (ours.NAME, True)):
        model.set_attn_implementation(implementation)
        if again:
            model.gradient_checkpointing_enable()
        model.zero_grad()
        model(input_ids=ids, labels=ids).loss.backward()
        found.append(model.model.layers[0].self_attn.q_proj.weight.grad.clone())
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)
