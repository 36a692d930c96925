# SPDX-License-Identifier: Apache-2.0
"""attn_implementation="profiling_lab" is eager attention, for tiny models of many architectures."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_models import MODELS, VOCABULARY, Tiny, build
from torch import Tensor

transformers = pytest.importorskip("transformers", "5.0", reason="transformers 5 is not installed")

from profiling_lab.integrations import transformers_attention as ours  # noqa: E402

ALL = [pytest.param(tiny, id=tiny.model) for tiny in MODELS]
GENERATING = [p for p, tiny in zip(ALL, MODELS, strict=True) if tiny.kind in ("decoder", "encoder-decoder")]


class Paths:
    """How often flash_attention ran, and why other calls were handed back."""

    def __init__(self) -> None:
        self.flash = 0
        self.options: list[dict[str, Any]] = []
        self.reasons: list[str] = []


@pytest.fixture
def paths(monkeypatch: pytest.MonkeyPatch) -> Paths:
    seen = Paths()
    flash, hand_back = ours.flash_attention, ours._hand_back

    def counted(*args: Any, **options: Any) -> Any:
        seen.flash += 1
        seen.options.append(options)
        return flash(*args, **options)

    def told(why: str, *args: Any) -> Any:
        seen.reasons.append(why)
        return hand_back(why, *args)

    monkeypatch.setattr(ours, "flash_attention", counted)
    monkeypatch.setattr(ours, "_hand_back", told)
    return seen


def tokens(rows: int, columns: int) -> Tensor:
    return torch.randint(3, VOCABULARY, (rows, columns), generator=torch.Generator().manual_seed(3))


def padding(rows: int, columns: int, side: str) -> Tensor:
    """The first sequence is whole, the others lose 3, 4, ... tokens."""
    mask = torch.ones(rows, columns, dtype=torch.long)
    for i in range(1, rows):
        mask[i, slice(0, i + 2) if side == "left" else slice(columns - i - 2, None)] = 0
    return mask


def inputs(tiny: Tiny, side: str | None) -> dict[str, Tensor]:
    """A training step's, with labels only where there is no padding."""
    if tiny.kind == "vision":
        images = torch.randn(3, 3, 16, 16, generator=torch.Generator().manual_seed(3))
        return {"pixel_values": images, "labels": torch.tensor([0, 1, 0])}
    ids = tokens(3, 13)
    made = {"input_ids": ids, "labels": ids}
    if side is not None:
        made["attention_mask"] = padding(3, 13, side)
        own = made["attention_mask"].bool()
        own[:, 1:] &= own[:, :-1].clone()  # a decoder's first token is foretold by padding
        made["labels"] = ids.masked_fill(~own, -100)
    if tiny.kind == "encoder-decoder":
        made["labels"] = tokens(3, 7)
    return made


def step(model: Any, implementation: str, data: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    model.set_attn_implementation(implementation)
    model.zero_grad()
    result = model(**data)
    result.loss.backward()
    gradients = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    return result.logits.detach(), gradients


def assert_same_step(model: Any, data: dict[str, Tensor]) -> None:
    logits, gradients = step(model, "eager", data)
    our_logits, our_gradients = step(model, ours.NAME, data)
    if "attention_mask" in data and data["attention_mask"].shape == logits.shape[:2]:
        at = data["attention_mask"].bool()  # elsewhere the result means nothing
        logits, our_logits = logits[at], our_logits[at]
    torch.testing.assert_close(our_logits, logits, rtol=1e-4, atol=1e-4)
    assert our_gradients.keys() == gradients.keys()
    for name, gradient in gradients.items():
        largest = float(gradient.abs().max())
        difference = float((our_gradients[name] - gradient).abs().max())
        assert difference <= 1e-4 * largest + 1e-5, name


@pytest.mark.parametrize("side", [None, "right", "left"])
@pytest.mark.parametrize("tiny", ALL)
def test_a_training_step(tiny: Tiny, side: str | None, paths: Paths) -> None:
    if tiny.kind == "vision" and side is not None:
        pytest.skip("images have no padding")
    model = build(transformers, tiny)
    assert_same_step(model, inputs(tiny, side))
    if tiny.reason:
        assert paths.reasons and all(why.startswith(tiny.reason) for why in paths.reasons)
    else:
        assert not paths.reasons
    layers = 6 if tiny.kind == "encoder-decoder" else 2
    assert paths.flash + len(paths.reasons) == layers
    if side is not None and paths.flash:
        assert any(options.get("cu_seqlens_q") is not None for options in paths.options)


@pytest.mark.parametrize("side", [None, "left"])
@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("tiny", GENERATING)
def test_generate(tiny: Tiny, cache: str, side: str | None, paths: Paths) -> None:
    if cache == "static" and not tiny.static:
        pytest.skip("the model has no static cache")
    model: Any = build(transformers, tiny)
    prompt = {"input_ids": tokens(3, 9)}
    prompt["attention_mask"] = padding(3, 9, "left") if side else torch.ones(3, 9, dtype=torch.long)
    options = {"max_new_tokens": 8, "do_sample": False, "cache_implementation": cache, "eos_token_id": None}
    if cache == "dynamic":
        del options["cache_implementation"]
    scores = {"output_logits": True, "return_dict_in_generate": True}
    results = []
    for implementation in ("eager", ours.NAME):
        model.set_attn_implementation(implementation)
        results.append(model.generate(**prompt, **options, **scores))
    for eager, our in zip(results[0].logits, results[1].logits, strict=True):
        torch.testing.assert_close(our, eager, rtol=1e-3, atol=1e-3)
    assert torch.equal(results[0].sequences, results[1].sequences)
    if side is None and not tiny.reason:
        assert not paths.reasons
    assert paths.flash or tiny.reason
