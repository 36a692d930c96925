# SPDX-License-Identifier: Apache-2.0
"""Derivatives of every op beyond a plain backward: torch.func, forward mode and second order, plain, compiled
and exported. torch answers some of them with zeros where an op has not said how."""

from __future__ import annotations

import math
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

from profiling_lab.ops import OPS
from profiling_lab.ops._attention_in_torch import forward_in_torch
from profiling_lab.ops.attention import flash_attention
from profiling_lab.ops.case import OpCase, Variant
from profiling_lab.ops.layer_norm_gelu import layer_norm_gelu_residual, reference_residual

CASES: list[OpCase] = [import_module(f"profiling_lab.ops.{slug}").CASE for slug in OPS]
CUSTOM = [pytest.param(c, v, id=f"{c.slug}-{v.name}") for c in CASES for v in c.variants if v.custom]
CPU = torch.device("cpu")
CLOSE = {"rtol": 1e-7, "atol": 1e-9}


def shape_of(case: OpCase) -> tuple[int, ...]:
    """Small, but with rows of more than two elements, which layer norm would take to plus and minus one."""
    shapes = [s.shape for s in case.test_shapes if len(s.shape) > 1 and min(s.shape) > 1]
    return min((s for s in shapes if s[-1] > 2), key=math.prod)


def inputs_of(case: OpCase, generator: torch.Generator) -> tuple[Tensor, ...]:
    return case.make_inputs(shape_of(case), torch.float64, CPU, generator)


def like(tensors: tuple[Tensor, ...], generator: torch.Generator) -> tuple[Tensor, ...]:
    return tuple(torch.randn(t.shape, generator=generator, dtype=t.dtype) for t in tensors)


def assert_same(ours: Any, theirs: Any) -> None:
    """Equal, and not because nothing was computed."""
    torch.testing.assert_close(ours, theirs, **CLOSE)
    for one in ours if isinstance(ours, tuple) else (ours,):
        assert one.any()


# Forward mode


@pytest.mark.parametrize(("case", "variant"), CUSTOM)
def test_forward_mode_by_each_input(case: OpCase, variant: Variant, generator: torch.Generator) -> None:
    inputs = inputs_of(case, generator)
    tangents = like(inputs, generator)
    for i in range(len(inputs)):
        found = []
        for function in (variant.call, variant.reference):
            with forward_ad.dual_level():
                duals = list(inputs)
                duals[i] = forward_ad.make_dual(inputs[i], tangents[i])
                found.append(forward_ad.unpack_dual(function(*duals)).tangent)
        assert_same(*found)
    with forward_ad.dual_level():
        assert torch.equal(variant.call(*inputs), variant.call(*inputs))  # nothing asks for a derivative
    for function in (variant.call, variant.reference):
        found.append(torch.func.jvp(function, inputs, tangents)[1])
    assert_same(*found[-2:])


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize(("case", "variant"), CUSTOM)
def test_compiled_forward_mode(
    case: OpCase, variant: Variant, backend: str, generator: torch.Generator
) -> None:
    torch._dynamo.reset()
    inputs = inputs_of(case, generator)
    tangents = like(inputs, generator)

    def tangent(*tensors: Tensor) -> Tensor:
        return torch.func.jvp(variant.call, tensors, tangents)[1]

    compiled = torch.compile(tangent, fullgraph=True, backend=backend)
    assert_same(compiled(*inputs), torch.func.jvp(variant.reference, inputs, tangents)[1])


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_dual_level(backend: str, generator: torch.Generator) -> None:
    """Compiled code enters it past torch.autograd.forward_ad, which then knows of no level."""
    torch._dynamo.reset()
    q, direction = (torch.randn(1, 5, 2, 8, generator=generator, dtype=torch.float64) for _ in range(2))

    def tangent(q: Tensor) -> Tensor:
        with forward_ad.dual_level():
            out = flash_attention(forward_ad.make_dual(q, direction), q, q)
            return forward_ad.unpack_dual(out).tangent

    assert_same(torch.compile(tangent, fullgraph=True, backend=backend)(q), tangent(q))


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.slug)
def test_forward_mode_of_an_exported_program(case: OpCase, generator: torch.Generator) -> None:
    module = case.module(24, dtype=torch.float64).eval()
    x, direction = torch.randn(2, 4, 5, 24, generator=generator, dtype=torch.float64)
    program = torch.export.export(module, (x,)).module()
    delta = 1e-6
    with torch.no_grad():
        difference = (module(x + delta * direction) - module(x - delta * direction)) / (2 * delta)
        _, ours = torch.func.jvp(program, (x,), (direction,))
    torch.testing.assert_close(ours, difference, rtol=1e-5, atol=1e-7)
    assert ours.any()


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.slug)
def test_forward_mode_of_the_dispatchers_ops(case: OpCase, generator: torch.Generator) -> None:
    """By their first argument, which in the backward ops is the gradient of the result."""
    inputs = inputs_of(case, generator)
    for name, arguments in case.dispatcher_calls(inputs):
        op = getattr(torch.ops.profiling_lab, name)
        x, delta = arguments[0], 1e-6
        direction = torch.randn(x.shape, generator=generator, dtype=torch.float64)

        def first(x: Tensor, op: Any = op, rest: Any = arguments[1:]) -> Tensor:
            results = op(x, *rest)
            return results if isinstance(results, Tensor) else results[0]

        difference = (first(x + delta * direction) - first(x - delta * direction)) / (2 * delta)
        ours = torch.func.jvp(first, (x,), (direction,))[1]
        torch.testing.assert_close(ours, difference, rtol=1e-5, atol=1e-7)
        assert ours.any()


@pytest.mark.parametrize(("case", "variant"), CUSTOM)
def test_gradients_of_a_dual_dy(
    case: OpCase, variant: Variant, generator: torch.Generator, leaves: Any
) -> None:
    """The backward is linear in dy, so the tangent of the gradients is the backward of dy's tangent."""
    inputs = leaves(inputs_of(case, generator))
    y = variant.call(*inputs)
    dy, direction = like((y.detach(), y.detach()), generator)
    expected = torch.autograd.grad(y, inputs, direction, retain_graph=True)
    with forward_ad.dual_level():
        found = torch.autograd.grad(y, inputs, forward_ad.make_dual(dy, direction))
        tangents = tuple(forward_ad.unpack_dual(g).tangent for g in found)
    torch.testing.assert_close(tangents, expected, **CLOSE)


# torch.func


@pytest.mark.parametrize(("case", "variant"), CUSTOM)
def test_functional_gradients(
    case: OpCase, variant: Variant, generator: torch.Generator, gradients: Any
) -> None:
    inputs = inputs_of(case, generator)
    dy = torch.randn(shape_of(case), generator=generator, dtype=torch.float64)
    expected = gradients(variant.reference, inputs, dy)[1:]
    every = tuple(range(len(inputs)))
    ours = torch.func.grad(lambda *args: (variant.call(*args) * dy).sum(), argnums=every)(*inputs)
    assert_same(ours, expected)
    assert_same(torch.func.vjp(variant.call, *inputs)[1](dy), expected)
    row = torch.func.jacrev(lambda *args: (variant.call(*args) * dy).sum()[None], argnums=0)(*inputs)
    assert_same(row[0], expected[0])


@pytest.mark.parametrize(("case", "variant"), CUSTOM)
def test_gradients_per_sample(
    case: OpCase, variant: Variant, generator: torch.Generator, gradients: Any
) -> None:
    """The samples are of the first input; all others are shared, as parameters are."""
    samples = [inputs_of(case, generator)[0] for _ in range(3)]
    shared = inputs_of(case, generator)[1:]
    dy = torch.randn(shape_of(case), generator=generator, dtype=torch.float64)

    def loss(x: Tensor, *others: Tensor) -> Tensor:
        return (variant.call(x, *others) * dy).sum()

    every = tuple(range(1 + len(shared)))
    function = torch.func.vmap(torch.func.grad(loss, argnums=every), in_dims=(0, *(None for _ in shared)))
    ours = function(torch.stack(samples), *shared)
    expected = [gradients(variant.reference, (x, *shared), dy)[1:] for x in samples]
    assert_same(ours, tuple(torch.stack(same) for same in zip(*expected, strict=True)))


@pytest.mark.parametrize(("case", "variant"), CUSTOM)
def test_vmap_over_no_samples(case: OpCase, variant: Variant, generator: torch.Generator) -> None:
    inputs = inputs_of(case, generator)
    none = tuple(t.new_zeros(0, *t.shape) for t in inputs)
    assert torch.func.vmap(variant.call)(*none).shape == (0, *shape_of(case))
    only_last = torch.func.vmap(lambda last: variant.call(*inputs[:-1], last))(none[-1])
    assert only_last.shape == (0, *shape_of(case)) and only_last.device == CPU
    per_sample = torch.func.vmap(torch.func.grad(lambda *args: variant.call(*args).sum()))(*none)
    assert per_sample.shape == none[0].shape


# Second order


@pytest.mark.parametrize(("case", "variant"), CUSTOM)
def test_double_backward(case: OpCase, variant: Variant, generator: torch.Generator, leaves: Any) -> None:
    inputs = inputs_of(case, generator)
    directions = like(inputs, generator)
    found = []
    for function in (variant.call, variant.reference):
        wanted = leaves(inputs)
        first = torch.autograd.grad(function(*wanted).sin().sum(), wanted, create_graph=True)
        total = sum((g * v).sum() for g, v in zip(first, directions, strict=True))
        found.append(torch.autograd.grad(total, wanted))
    assert_same(*found)


@pytest.mark.parametrize("outer", ["jacfwd", "jacrev"])
@pytest.mark.parametrize("inner", ["jacfwd", "jacrev"])
@pytest.mark.parametrize(("case", "variant"), CUSTOM)
def test_hessians(case: OpCase, variant: Variant, inner: str, outer: str, generator: torch.Generator) -> None:
    """Along one direction, against differences: in forward mode torch's own layer_norm is wrong here."""
    inputs = inputs_of(case, generator)
    direction = torch.randn(inputs[0].shape, generator=generator, dtype=torch.float64)

    def along(t: Tensor) -> Tensor:
        return variant.call(inputs[0] + t * direction, *inputs[1:]).sin().sum()

    zero, delta = torch.zeros((), dtype=torch.float64), 1e-4
    ours = getattr(torch.func, outer)(getattr(torch.func, inner)(along))(zero)
    difference = (along(zero + delta) - 2 * along(zero) + along(zero - delta)) / delta**2
    torch.testing.assert_close(ours, difference, rtol=1e-4, atol=1e-5)
    assert ours.abs() > 1e-2


def test_double_backward_in_16_bits(generator: torch.Generator, leaves: Any) -> None:
    """The same within the dtype's rounding, and in the dtype."""
    for case in CASES:
        found = []
        for dtype in (torch.bfloat16, torch.float64):
            wanted = leaves(case.make_inputs(shape_of(case), dtype, CPU, torch.Generator().manual_seed(1)))
            y = case.variants[-1].call(*wanted)
            (g,) = torch.autograd.grad(y.sin().sum(), wanted[:1], create_graph=True)
            (second,) = torch.autograd.grad(g.square().sum(), wanted[:1])
            assert second.dtype == dtype
            found.append(second.double())
        assert (found[0] - found[1]).norm() < 0.1 * found[1].norm(), case.slug


# What only one op has


def test_layer_norm_gelu_residual(generator: torch.Generator, leaves: Any) -> None:
    shapes = ((3, 8), (3, 8), (8,), (8,))
    inputs = tuple(torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes)
    directions = like(inputs, generator)
    found = []
    for function in (layer_norm_gelu_residual, reference_residual):

        def both(*args: Tensor, function: Any = function) -> Tensor:
            y, total = function(*args)
            return y.sin().sum() + (y * total).sum()

        wanted = leaves(inputs)
        first = torch.autograd.grad(both(*wanted), wanted, create_graph=True)
        second = torch.autograd.grad(
            sum((g * v).sum() for g, v in zip(first, directions, strict=True)), wanted
        )
        found.append(
            (
                torch.func.jvp(both, inputs, directions)[1],
                *torch.func.grad(both, argnums=(0, 1, 2, 3))(*inputs),
                *second,
            )
        )
    assert_same(*found)


def with_sink(q: Tensor, k: Tensor, v: Tensor, sink: Tensor) -> tuple[Tensor, Tensor]:
    return flash_attention(q, k, v, sink=sink, causal=True, softcap=2.0, return_lse=True)


def with_sink_in_torch(q: Tensor, k: Tensor, v: Tensor, sink: Tensor) -> tuple[Tensor, Tensor]:
    return forward_in_torch(q, k, v, sink, None, None, q.shape[-1] ** -0.5, -1, 0, 2.0)


def test_the_sink_and_the_lse(generator: torch.Generator, leaves: Any) -> None:
    shapes = ((2, 7, 4, 8), (2, 9, 2, 8), (2, 9, 2, 8), (4,))
    inputs = tuple(torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes)
    directions = like(inputs, generator)
    found = []
    for function in (with_sink, with_sink_in_torch):

        def both(*args: Tensor, function: Any = function) -> Tensor:
            out, lse = function(*args)
            return out.sin().sum() + lse.cos().sum()

        wanted = leaves(inputs)
        first = torch.autograd.grad(both(*wanted), wanted, create_graph=True)
        second = torch.autograd.grad(
            sum((g * v).sum() for g, v in zip(first, directions, strict=True)), wanted
        )
        by_the_sink = torch.func.jvp(lambda s, both=both: both(*inputs[:3], s), inputs[3:], directions[3:])
        per_sample = torch.func.vmap(torch.func.grad(both, argnums=(0, 3)), in_dims=(0, None, None, 0))
        samples = per_sample(inputs[0][None], *inputs[1:3], inputs[3][None])
        found.append((by_the_sink[1], *first, *second, *samples))
    assert_same(*found)


def test_variable_lengths(generator: torch.Generator, leaves: Any) -> None:
    """Sequence by sequence, with an empty one, rows that see nothing and rows behind the last offset."""
    cu_q, cu_k = (torch.tensor(o, dtype=torch.int32) for o in ([0, 3, 3, 9], [0, 4, 6, 9]))
    shapes = ((11, 2, 8), (10, 2, 8), (10, 2, 8), (2,))
    q, k, v, sink = (torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes)
    directions = like((q, k, v), generator)

    for own_sink in (None, sink):

        def ours(q: Tensor, k: Tensor, v: Tensor, own_sink: Any = own_sink) -> Tensor:
            return flash_attention(
                q, k, v, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, causal=True, window=2, sink=own_sink
            )

        def one_by_one(q: Tensor, k: Tensor, v: Tensor, own_sink: Any = own_sink) -> Tensor:
            parts = [
                flash_attention(
                    q[None, a:b], k[None, c:d], v[None, c:d], causal=True, window=2, sink=own_sink
                )[0]
                for a, b, c, d in ((0, 3, 0, 4), (3, 9, 6, 9))
            ]
            return torch.cat([*parts, torch.zeros_like(q[9:])])

        found = []
        for function in (ours, one_by_one):
            wanted = leaves((q, k, v))
            first = torch.autograd.grad(function(*wanted).sin().sum(), wanted, create_graph=True)
            total = sum((g * d).sum() for g, d in zip(first, directions, strict=True))
            second = torch.autograd.grad(total, wanted)
            found.append((torch.func.jvp(function, (q, k, v), directions)[1], *first, *second))
        assert_same(*found)
