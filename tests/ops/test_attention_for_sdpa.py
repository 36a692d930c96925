# SPDX-License-Identifier: Apache-2.0
"""flash_attention_for_sdpa hands back what is no plain call of plain tensors, and answers as torch does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from profiling_lab.ops.attention import flash_attention_for_sdpa

sdpa = F.scaled_dot_product_attention


class Calls(TorchDispatchMode):  # type: ignore[misc]  # torch is untyped here
    """How often flash_attention's forward ran inside."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.count += func is torch.ops.profiling_lab.attention_fwd.default
        return func(*args, **(kwargs or {}))


@pytest.fixture
def qkv(generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = (torch.randn(2, heads, 33, 16, generator=generator) for heads in (4, 4, 4))
    return q, k, v


def drawn(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(shape, generator=generator)


OPTIONS: list[tuple[dict[str, Any], int]] = [
    ({}, 1),
    ({"scale": 0.7}, 1),
    ({"scale": 0.7, "is_causal": True}, 1),
    ({"is_causal": True}, 1),
    ({"attn_mask": "additive"}, 0),
    ({"attn_mask": "boolean"}, 0),
]


@pytest.mark.parametrize(("options", "ours"), OPTIONS, ids=[str(o) for o, _ in OPTIONS])
def test_options_mean_what_torch_means(
    options: dict[str, Any], ours: int, qkv: tuple[Tensor, ...], generator: torch.Generator
) -> None:
    masks = {"additive": drawn(generator, 33, 33), "boolean": drawn(generator, 33, 33) > 0}
    options = {n: masks.get(o, o) for n, o in options.items()}
    plain = sdpa(*qkv)
    with flash_attention_for_sdpa(), Calls() as calls:
        found = sdpa(*qkv, **options)
    assert calls.count == ours
    torch.testing.assert_close(found, sdpa(*qkv, **options))
    assert not options or not torch.allclose(found, plain, atol=1e-2)  # the option counts


def test_fewer_heads_of_keys_need_enable_gqa(generator: torch.Generator) -> None:
    q, k, v = (drawn(generator, 3, heads, 33, 16) for heads in (4, 2, 2))
    with flash_attention_for_sdpa(), Calls() as calls:
        found = sdpa(q, k, v, enable_gqa=True)
        assert calls.count == 1
        for tensors, options in (((q, k, v), {}), ((q[:, :3], k, v), {"enable_gqa": True})):
            with pytest.raises(RuntimeError):  # torch's own
                sdpa(*tensors, **options)
    assert calls.count == 1
    torch.testing.assert_close(found, sdpa(q, k, v, enable_gqa=True))


def test_a_head_dim_of_zero(qkv: tuple[Tensor, ...]) -> None:
    empty = [x[..., :0] for x in qkv]
    with flash_attention_for_sdpa():
        assert sdpa(*empty).shape == (2, 4, 33, 0)


def test_the_backend_that_was_asked_for(qkv: tuple[Tensor, ...]) -> None:
    for backends, ours in (
        ([SDPBackend.MATH], 0),
        ([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH], 1),
    ):
        with flash_attention_for_sdpa(), sdpa_kernel(backends), Calls() as calls:
            torch.testing.assert_close(sdpa(*qkv), sdpa(*qkv))
        assert calls.count == 2 * ours


@pytest.mark.parametrize("layout", [torch.jagged, torch.strided], ids=str)
def test_nested_tensors(layout: torch.layout, generator: torch.Generator) -> None:
    rows = [drawn(generator, n, 2, 8) for n in (3, 5)]
    if layout == torch.jagged:  # its ragged dimension is the first
        nested = torch.nested.nested_tensor(rows, layout=layout).transpose(1, 2)
    else:
        nested = torch.nested.nested_tensor([x.transpose(0, 1).contiguous() for x in rows])
    with flash_attention_for_sdpa(), Calls() as calls:
        found = sdpa(nested, nested, nested)
    assert calls.count == 0
    for one, alone in zip(found.unbind(), rows, strict=True):
        x = alone.transpose(0, 1)[None]
        torch.testing.assert_close(one, sdpa(x, x, x)[0])


def test_transforms(qkv: tuple[Tensor, ...]) -> None:
    q, k, v = qkv

    def results() -> list[Tensor]:
        return [
            torch.func.vmap(lambda q: sdpa(q, k, v))(torch.stack([q, -q])),
            torch.func.grad(lambda q: sdpa(q, k, v).sin().sum())(q),
            torch.func.vmap(torch.func.grad(lambda q: sdpa(q[None], k[:1], v[:1]).sin().sum()))(q),
        ]

    with flash_attention_for_sdpa(), Calls() as calls:
        found = results()
    assert calls.count == 0
    torch.testing.assert_close(found, results())


def test_fx_sees_torchs_function(qkv: tuple[Tensor, ...]) -> None:
    class Model(nn.Module):  # type: ignore[misc]  # torch is untyped here
        def forward(self, q: Tensor) -> Tensor:
            return sdpa(q, q, q, is_causal=True)

    with flash_attention_for_sdpa():
        traced = torch.fx.symbolic_trace(Model())
    assert [n.target for n in traced.graph.nodes if n.op == "call_function"] == [sdpa]
    torch.testing.assert_close(traced(qkv[0]), Model()(qkv[0]))


def test_dtensors(python_warm: Any) -> None:
    """They may be sharded over the rows, of which each rank would see its own alone."""
    if not torch.distributed.is_available():
        pytest.skip("this torch has no torch.distributed")
    done = python_warm(
        "import torch\n"
        "from torch import distributed\n"
        "from torch.distributed.tensor import DTensor, Replicate, init_device_mesh\n"
        "from torch.nn.attention import SDPBackend, sdpa_kernel\n"
        "from torch.nn import functional as F\n"
        "from profiling_lab.ops import flash_attention_for_sdpa\n"
        "distributed.init_process_group('gloo', store=distributed.HashStore(), rank=0, world_size=1)\n"
        "mesh = init_device_mesh('cpu', (1,))\n"
        "local = torch.randn(2, 4, 33, 16)\n"
        "x = DTensor.from_local(local, mesh, [Replicate()])\n"
        "with flash_attention_for_sdpa(), sdpa_kernel(SDPBackend.MATH):\n"
        "    found = F.scaled_dot_product_attention(x, x, x)\n"
        "with flash_attention_for_sdpa():\n"
        "    try:\n"
        "        F.scaled_dot_product_attention(x, x, x)\n"
        "    except Exception as error:\n"
        "        assert 'profiling_lab' not in str(error), error\n"
        "assert isinstance(found, DTensor)\n"
        "expected = F.scaled_dot_product_attention(local, local, local)\n"
        "torch.testing.assert_close(found.to_local(), expected)\n"
        "distributed.destroy_process_group()\n"
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("training", [True, False])
def test_a_compiled_transformer(training: bool, generator: torch.Generator) -> None:
    torch._dynamo.reset()
    layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True).train(training)
    x = drawn(generator, 2, 50, 64)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    with flash_attention_for_sdpa():
        found = compiled(x)
    torch.testing.assert_close(found, layer(x))


def test_the_backend_that_a_compiled_function_asks_for(qkv: tuple[Tensor, ...]) -> None:
    torch._dynamo.reset()
    targets: list[str] = []

    def backend(graph: Any, _: Any) -> Any:
        targets.extend(str(node.target) for node in graph.graph.nodes)
        return graph

    def model(*tensors: Tensor) -> Tensor:
        with sdpa_kernel(SDPBackend.MATH):
            return sdpa(*tensors)

    with flash_attention_for_sdpa():
        found = torch.compile(model, fullgraph=True, backend=backend)(*qkv)
    assert any("scaled_dot_product" in name for name in targets), targets
    torch.testing.assert_close(found, model(*qkv))


def test_a_patched_function_is_called(monkeypatch: pytest.MonkeyPatch, generator: torch.Generator) -> None:
    """What others put in the place of F.linear (quantisation, LoRA) runs inside of nn.MultiheadAttention."""
    layer = nn.MultiheadAttention(64, 4, batch_first=True)
    x = drawn(generator, 2, 50, 64)
    real, seen = F.linear, []

    def linear(*args: Any, **kwargs: Any) -> Tensor:
        seen.append(args[0].shape)
        return real(*args, **kwargs)

    def run() -> tuple[Tensor, int]:
        seen.clear()
        return layer(x, x, x, need_weights=False)[0], len(seen)

    monkeypatch.setattr(F, "linear", linear)
    expected, calls = run()
    with flash_attention_for_sdpa(), Calls() as ours:
        found, patched = run()
    assert ours.count == 1 and patched == calls > 0
    torch.testing.assert_close(found, expected)


def test_the_context_as_a_decorator(qkv: tuple[Tensor, ...]) -> None:
    @flash_attention_for_sdpa()
    def attend(depth: int) -> Tensor:
        """A function's own name."""
        return sdpa(*qkv) if depth == 0 else attend(depth - 1)

    with Calls() as calls:
        found = attend(2)
    assert calls.count == 1 and attend.__name__ == "attend"
    torch.testing.assert_close(found, sdpa(*qkv))
    with Calls() as calls:
        sdpa(*qkv)
    assert calls.count == 0  # outside of it nothing has changed
