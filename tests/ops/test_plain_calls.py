# SPDX-License-Identifier: Apache-2.0
"""Plain calls take a shorter way through torch: who has a say is heard, and the results are the same."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from profiling_lab.ops._calls import choice
from profiling_lab.ops.case import OpCase
from profiling_lab.ops.layer_norm_gelu import layer_norm_gelu, layer_norm_gelu_residual

CASES: list[OpCase] = [
    import_module(f"profiling_lab.ops.{slug}").CASE
    for slug in ("attention", "heavy_layer", "layer_norm_gelu")
]


class Calls(TorchDispatchMode):  # type: ignore[misc]  # torch is untyped here
    """Which of our ops are called inside."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func.namespace == "profiling_lab":
            self.names.append(str(func).split(".")[-1])
        return func(*args, **(kwargs or {}))


class Named(torch.Tensor):  # type: ignore[misc]
    """A class of a user's own."""


def inputs_of(case: OpCase, device: torch.device, generator: torch.Generator) -> tuple[Tensor, ...]:
    dtype = getattr(torch, case.dtypes(device)[0])
    return case.make_inputs(case.small_shape, dtype, device, generator)


def test_who_has_a_say(device: torch.device) -> None:
    way = choice("an op", ("x", "y", "z"), 1, "dispatched", "plain", "with gradient")
    x = torch.ones(2, device=device)
    leaf = torch.ones(2, device=device, requires_grad=True)
    assert way(x, None, x) == "plain"
    assert way(x, None, leaf) == "with gradient"
    assert way(torch.nn.Parameter(x)) == "with gradient"
    with torch.no_grad():
        assert way(leaf) == "plain"
    with torch.inference_mode():
        assert way(x) == "plain"
    contexts: list[Any] = [
        torch.autocast(device.type, dtype=torch.bfloat16),
        Calls(),
        torch.autograd.forward_ad.dual_level(),
    ]
    for context in contexts:
        with context:
            assert way(x, leaf) == "dispatched", context
    ways: list[str] = []

    def look(row: Tensor) -> Tensor:
        ways.append(way(row))
        return row

    torch.vmap(look)(torch.ones(2, 2, device=device))
    ways.append(way(x.to("meta")))
    assert set(ways) == {"dispatched"}
    assert way(leaf, x.as_subclass(Named)) is None  # such a class answers for the public function
    for first in ("x", None):
        with pytest.raises(TypeError, match=f"^an op expected tensors, got {type(first).__name__}$"):
            way(first, x)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.slug)
def test_a_plain_call_is_the_dispatched_one(
    case: OpCase, device: torch.device, generator: torch.Generator, gradients: Any
) -> None:
    """The same bits on the CPU, forward and backward; the mode that sends a call the long way is heard."""
    inputs = inputs_of(case, device, generator)
    call: Callable[..., Tensor] = case.variants[-1].call
    dy = torch.ones_like(call(*inputs))
    plain = gradients(call, inputs, dy)
    with Calls() as calls:
        dispatched = gradients(call, inputs, dy)
    assert set(calls.names) == {"default"} and len(calls.names) == 2
    for a, b in zip(plain, dispatched, strict=True):
        torch.testing.assert_close(a, b)
        assert device.type != "cpu" or torch.equal(a, b)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.slug)
def test_the_plain_overload_is_the_same_op(
    case: OpCase, device: torch.device, generator: torch.Generator
) -> None:
    for name, arguments in case.dispatcher_calls(inputs_of(case, device, generator)):
        packet = getattr(torch.ops.profiling_lab, name)
        schema, plain = (str(getattr(packet, o)._schema) for o in ("default", "plain"))
        assert plain == schema.replace("(", ".plain(", 1)
        results = packet.default(*arguments), packet.plain(*arguments)
        torch.testing.assert_close(*results)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.slug)
def test_a_profile_names_the_op(case: OpCase, generator: torch.Generator) -> None:
    from torch.profiler import ProfilerActivity, profile

    inputs = [t.requires_grad_() for t in inputs_of(case, torch.device("cpu"), generator)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with profile(activities=[ProfilerActivity.CPU]) as recorded:
            case.variants[-1].call(*inputs).sum().backward()
    names = [e.name for e in recorded.events() if e.name.startswith("profiling_lab::")]
    assert len(names) == 2 and all(name.startswith(f"profiling_lab::{case.slug}") for name in names), names


def test_a_batch_of_gradients_takes_the_general_path(device: torch.device) -> None:
    """With is_grads_batched the backward is under vmap: then the kernel alone would be wrong."""
    leaves = [torch.randn(s, device=device, requires_grad=True) for s in ((3, 8), (8,), (8,))]
    y = layer_norm_gelu(*leaves)
    dys = torch.randn(2, 3, 8, device=device)
    batched = torch.autograd.grad(y, leaves, dys, is_grads_batched=True, retain_graph=True)
    for i in range(2):
        single = torch.autograd.grad(y, leaves, dys[i], retain_graph=True)
        for a, b in zip(batched, single, strict=True):
            torch.testing.assert_close(a[i], b)


def test_only_the_sum_of_a_residual_was_used(device: torch.device) -> None:
    x, residual = (torch.randn(3, 8, device=device, requires_grad=True) for _ in range(2))
    weight = torch.ones(8, device=device, requires_grad=True)
    _, total = layer_norm_gelu_residual(x, residual, weight)
    dx, dresidual, dweight = torch.autograd.grad(
        total, (x, residual, weight), torch.ones_like(total), allow_unused=True
    )
    assert dweight is None
    assert torch.equal(dx, torch.ones_like(x)) and torch.equal(dresidual, dx)


def test_compiled_autograd_takes_the_backward_of_a_plain_call() -> None:
    """Its forward ran past the dispatcher; what is traced of the backward is the op that can be traced."""
    from torch._dynamo import compiled_autograd

    leaves = [torch.randn(s, requires_grad=True) for s in ((3, 8), (8,), (8,))]
    expected = torch.autograd.grad(layer_norm_gelu(*leaves).sum(), leaves)
    total = layer_norm_gelu(*leaves).sum()
    with compiled_autograd._enable(lambda graph: torch.compile(graph, backend="aot_eager", fullgraph=True)):
        total.backward()
    for leaf, gradient in zip(leaves, expected, strict=True):
        torch.testing.assert_close(leaf.grad, gradient)
