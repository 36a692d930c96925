# SPDX-License-Identifier: Apache-2.0
"""One model, two sets of ops: the same parameters, the same function, and each op really its own."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor, nn

from profiling_lab.exercises.e17_python_backtrace.model import TransformerWithHeavyLayer
from profiling_lab.models import Transformer

TINY = {"vocab_size": 50, "d_model": 32, "nhead": 4, "num_layers": 2}
OURS = {"attention_fwd", "layer_norm_gelu", "heavy_layer_fast_keeping"}


def same_models(hidden_norm: bool) -> tuple[Transformer, Transformer]:
    torch.manual_seed(0)
    plain = Transformer(**TINY, ops="torch", hidden_norm=hidden_norm)
    fast = Transformer(**TINY, ops="fast", hidden_norm=hidden_norm)
    assert fast.load_state_dict(plain.state_dict()).missing_keys == []
    return plain, fast


def results(model: nn.Module, tokens: Tensor) -> dict[str, Tensor]:
    """The output and every gradient."""
    output = model(tokens[:, :-1])
    nn.functional.cross_entropy(output.flatten(0, 1), tokens[:, 1:].flatten()).backward()
    return {"output": output.detach()} | {name: p.grad for name, p in model.named_parameters()}


def tokens_of(rows: int = 3, length: int = 17) -> Tensor:
    return torch.randint(50, (rows, length), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("hidden_norm", [False, True])
def test_fast_and_torch_agree_in_output_and_every_gradient(hidden_norm: bool) -> None:
    plain, fast = (results(model.double(), tokens_of()) for model in same_models(hidden_norm))
    assert fast.keys() == plain.keys()
    for name in plain:
        torch.testing.assert_close(fast[name], plain[name], rtol=1e-9, atol=1e-12, msg=name)


def test_without_hidden_norm_it_is_the_exercises_model() -> None:
    """Same seed, same parameters under the same names, same numbers."""
    torch.manual_seed(3)
    theirs = TransformerWithHeavyLayer(**TINY)
    torch.manual_seed(3)
    ours = Transformer(**TINY, ops="torch")
    assert ours.heavy.implementation == theirs.heavy.implementation == "slow"
    expected = theirs.state_dict()
    assert ours.state_dict().keys() == expected.keys()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in ours.state_dict().items())
    assert torch.equal(ours(tokens_of()), theirs(tokens_of()))


def called(model: nn.Module) -> set[str]:
    """The ops of this package that a forward and backward calls."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        results(model, tokens_of())
    names = (event.name for event in recorded.events())
    return {name.removeprefix("profiling_lab::") for name in names if name.startswith("profiling_lab::")}


def test_the_flag_chooses_the_ops() -> None:
    plain, fast = same_models(hidden_norm=True)
    assert called(fast) >= OURS
    assert not called(plain) & OURS
    assert called(Transformer(**TINY, ops="fast")) >= OURS - {"layer_norm_gelu"}  # which has no place there


def test_torch_takes_any_heavy_layer_and_fast_only_its_own() -> None:
    assert Transformer(**TINY, ops="torch", heavy="loop").heavy.implementation == "loop"
    assert Transformer(**TINY, ops="fast").heavy.implementation == "fast"
    with pytest.raises(ValueError, match=r"^Transformer: heavy is 'loop', but ops='fast' has the fast one$"):
        Transformer(**TINY, ops="fast", heavy="loop")
    with pytest.raises(
        ValueError, match=r"^Transformer: ops is 'quick', expected one of \('torch', 'fast'\)$"
    ):
        Transformer(**TINY, ops="quick")  # type: ignore[arg-type]


def test_both_train_alike_under_autocast() -> None:
    losses: list[list[float]] = []
    for model in same_models(hidden_norm=True):
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        losses.append([])
        for _ in range(4):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                output = model(tokens_of()[:, :-1])
                loss = nn.functional.cross_entropy(output.flatten(0, 1), tokens_of()[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            losses[-1].append(loss.item())
    plain, fast = losses
    assert plain[0] > plain[-1]
    assert all(math.isclose(a, b, rel_tol=0.02) for a, b in zip(plain, fast, strict=True))


def test_compiles_as_one_graph() -> None:
    torch._dynamo.reset()
    _, fast = same_models(hidden_norm=True)
    again = copy.deepcopy(fast)
    compiled = torch.compile(again, fullgraph=True, backend="aot_eager")
    expected = results(fast, tokens_of())
    torch.testing.assert_close(results(compiled, tokens_of())["output"], expected["output"])
    for name, parameter in again.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], msg=name)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_fast_and_torch_agree_on_the_gpu(dtype: torch.dtype) -> None:
    """At the demo's size; the distance to float64 is at most twice that of torch's own ops."""
    torch.manual_seed(0)
    plain = Transformer(ops="torch", hidden_norm=True).cuda()
    fast = Transformer(ops="fast", hidden_norm=True).cuda()
    fast.load_state_dict(plain.state_dict())
    tokens = torch.randint(10000, (4, 129), generator=torch.Generator().manual_seed(1)).cuda()
    exactly = Transformer(ops="torch", heavy="loop", hidden_norm=True).cuda().double()
    exactly.load_state_dict(plain.state_dict())
    truth = results(exactly, tokens)
    found = []
    for model in (plain, fast):
        with torch.autocast("cuda", dtype, enabled=dtype != torch.float32):
            found.append(results(model, tokens))
    for name, exact in truth.items():
        own, ours = ((one[name].double() - exact).norm().item() for one in found)
        assert ours <= 2 * own + 1e-6 * exact.norm().item(), name
