# SPDX-License-Identifier: Apache-2.0
"""The serving loop answers what a plain loop over whole sequences answers, and writes its results."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import REPO

torch = pytest.importorskip("torch")
from torch.nn import functional as F  # noqa: E402

from profiling_lab.ops import flash_attention, flash_attention_with_cache  # noqa: E402


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(REPO / "benchmarks"))
    return import_module("serving_model")


def plain_loop(weights: Any, prompt: Any, new: int) -> list[int]:
    """One sequence alone, computed as a whole for each token; nothing is kept."""
    tokens = prompt.tolist()

    def attend(_: int, q: Any, k: Any, v: Any) -> Any:
        q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return out[0].transpose(0, 1)

    for _ in range(new):
        logits = weights.logits(torch.tensor(tokens), torch.arange(len(tokens)), None, attend)
        tokens.append(int(logits[-1].argmax()))
    return tokens[len(prompt) :]


def stand_in() -> Any:
    """flash_attn's two functions, called as its documentation says."""

    def varlen(q: Any, k: Any, v: Any, cu_q: Any, cu_k: Any, most_q: int, most_k: int, causal: bool) -> Any:
        assert most_q == most_k == int(cu_q.diff().max())
        return flash_attention(q, k, v, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, causal=causal)

    return SimpleNamespace(flash_attn_varlen_func=varlen, flash_attn_with_kvcache=flash_attention_with_cache)


@pytest.mark.parametrize("page", [1, 4, 64])
@pytest.mark.parametrize("kind", ["Paged", "Padded", "FlashAttn"])
def test_its_tokens_are_those_of_a_plain_loop(
    kind: str, page: int, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "flash_attn", stand_in())
    weights = model.Weights(model.Config.tiny(), "cpu", torch.float64)
    generator = torch.Generator().manual_seed(5)
    prompts = [torch.randint(61, (n,), generator=generator) for n in (9, 3, 1, 12)]
    cache = getattr(model, kind)(weights.config, prompts, 7, page)
    server = model.Server(weights, cache, prompts, 7)
    expected = [plain_loop(weights, prompt, 7) for prompt in prompts]
    assert len({tuple(answer) for answer in expected}) == 4  # they say something
    for _ in range(2):  # what was before does not stay
        assert server.generate().tolist() == expected
        server.token.fill_(3)


def test_the_script_writes_results(model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flash_attn", None)
    output = tmp_path / "serving.jsonl"
    arguments = ["serving_loop.py", "--device", "cpu", "--rounds", "2", "-o", str(output)]
    monkeypatch.setattr(sys, "argv", arguments)
    assert import_module("serving_loop").main() == 0
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    assert {(line["provider"], line["metric"]) for line in lines if "time" not in line["metric"]} == {
        ("ours", "tokens_per_second"), ("sdpa", "tokens_per_second"), ("ours", "over_sdpa"),
    }  # fmt: skip
    times = {(line["provider"], line["case"]["phase"]): line for line in lines if line["metric"] == "time"}
    assert len(times) == 4 and all(line["benchmark"] == "serving_loop" for line in lines)
    (rate,) = (
        line["value"] for line in lines if (line["provider"], line["metric"]) == ("ours", "tokens_per_second")
    )
    assert rate == pytest.approx(2 * 5 / (times["ours", "steps"]["value"] * 1e-9))


def test_a_provider_that_is_wrong_is_left_out(
    model: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "flash_attn", None)
    monkeypatch.setattr(model.Paged, "step", lambda self, layer, q, k, v: torch.zeros_like(q))
    loop = import_module("serving_loop")
    weights = model.Weights(model.Config.tiny(), "cpu", torch.float32)
    found = loop.servers(weights, loop.prompts(2, 12, 61, "cpu"), 6, 4, graph=False)
    assert list(found) == ["sdpa"]
    said = capsys.readouterr().err
    assert "left out: ours: its logits differ by" in said and "left out: flash-attn: import" in said


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["Paged", "Padded"])
def test_a_graph_answers_as_the_steps_do(kind: str, model: Any) -> None:
    config = model.Config(d_model=256, heads=4, kv_heads=2, head_dim=64, hidden=256, layers=2, vocabulary=61)
    weights = model.Weights(config, "cuda", torch.bfloat16)
    prompts = [torch.arange(n, device="cuda") % 61 for n in (40, 7)]
    server = model.Server(weights, getattr(model, kind)(config, prompts, 9, 16), prompts, 9)
    expected = server.generate()
    server.capture()
    assert torch.equal(server.generate(), expected)
