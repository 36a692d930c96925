# SPDX-License-Identifier: Apache-2.0
"""layer_norm_gelu: y = gelu(layer_norm(x) * weight + bias) in one pass, forward and backward; with a
residual, of x + residual, which it returns too.

With h = (x - mean) rstd, z = h weight + bias and dz = dy gelu'(z), row by row of x (averages are over a row):
    dweight = sum of dz h    dbias = sum of dz    dh = dz weight    dx = rstd (dh - avg(dh) - h avg(dh h))
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from profiling_lab.ops import _registration as registration
from profiling_lab.ops.case import OpCase, Shape, TestShape, Variant

Approximate = Literal["none", "tanh"]
_APPROXIMATE = get_args(Approximate)

_FORWARD = registration.overload("layer_norm_gelu")
_RESIDUAL = registration.overload("layer_norm_gelu_residual")
_BACKWARD = registration.overload("layer_norm_gelu_backward")
_PLAIN_FORWARD = registration.plain_overload("layer_norm_gelu")
_PLAIN_RESIDUAL = registration.plain_overload("layer_norm_gelu_residual")
_PLAIN_BACKWARD = registration.plain_overload("layer_norm_gelu_backward")


def layer_norm_gelu(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    approximate: Approximate = "none",
) -> Tensor:
    """Return gelu(layer_norm(x) * weight + bias), normalised over the last dimension.

    x is (..., d), weight and bias are (d,); one dtype and one device for all. float32, bfloat16 and float16,
    on the CPU also float64; statistics and sums are kept in float32 (float64 for float64). Rows of x may lie
    any stride apart without being copied. The result is contiguous, of x's shape.

    approximate: "none" is z * Phi(z), "tanh" its usual approximation, as in torch.nn.functional.gelu. The
    result is accurate relative to its size, also where z is far below zero; infinite z give NaN.

    Differentiable once, in reverse mode; the gradients of weight and bias have the same bits in every run.
    Under autocast weight and bias are cast to x's dtype and x stays as it is.
    Raises ValueError for shapes, dtypes, devices or options that do not fit together, RuntimeError for a
    CUDA tensor where profiling_lab was built without CUDA kernels, for forward-mode and for second-order
    differentiation.
    """
    route = registration.route(x, weight, bias)
    if route == registration.PLAIN_WITH_GRADIENT:
        return cast(Tensor, _apply(x, weight, bias, eps, approximate))
    if route == registration.PLAIN:
        return cast(Tensor, _PLAIN_FORWARD(x, weight, bias, eps, approximate)[0])
    tensors = (x, weight) if bias is None else (x, weight, bias)
    registration.check_call("layer_norm_gelu", *tensors)
    return cast(Tensor, _FORWARD(x, weight, bias, eps, approximate)[0])


def layer_norm_gelu_residual(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    approximate: Approximate = "none",
) -> tuple[Tensor, Tensor]:
    """Return y = gelu(layer_norm(s) * weight + bias) and s = x + residual, in one pass over memory.

    residual has the shape, dtype and device of x; everything else as in layer_norm_gelu. s is rounded to the
    dtype before it is normalised, as x + residual in plain torch is, and carries on the residual stream. Both
    results are contiguous. The gradient that reaches s from elsewhere is added in the backward's only pass; x
    and residual get the same gradient.
    """
    route = registration.route(x, residual, weight, bias)
    if route == registration.PLAIN_WITH_GRADIENT:
        y, total = _apply_residual(x, residual, weight, bias, eps, approximate)
        return y, total
    if route == registration.PLAIN:
        y, total, _ = _PLAIN_RESIDUAL(x, residual, weight, bias, eps, approximate)
        return y, total
    tensors = (x, residual, weight) if bias is None else (x, residual, weight, bias)
    registration.check_call("layer_norm_gelu", *tensors)
    y, total, _ = _RESIDUAL(x, residual, weight, bias, eps, approximate)
    return y, total


def _check(x: Tensor, weight: Tensor, bias: Tensor | None, approximate: str) -> None:
    """The checks of layer_norm_gelu.cpp, in its words, for the paths that never reach it."""
    if approximate not in _APPROXIMATE:
        raise ValueError(f"layer_norm_gelu: approximate is '{approximate}', expected 'none' or 'tanh'")
    if x.dim() == 0:
        raise ValueError("layer_norm_gelu: x has no dimensions, expected at least one")
    d = x.shape[-1]
    if d == 0:
        raise ValueError("layer_norm_gelu: x has last dimension 0, and an empty row has no mean")
    for name, vector in (("weight", weight), ("bias", bias)):
        if vector is None:
            continue
        _check_alike(name, vector, x)
        if vector.dim() != 1:
            shape = list(vector.shape)
            raise ValueError(
                f"layer_norm_gelu: {name} has shape {shape}, expected one dimension of {d} elements"
            )
        if vector.shape[0] != d:
            raise ValueError(
                f"layer_norm_gelu: {name} has {vector.shape[0]} elements but x has last dimension {d}"
            )


def _check_alike(name: str, tensor: Tensor, x: Tensor) -> None:
    if tensor.device != x.device:
        raise ValueError(f"layer_norm_gelu: {name} is on {tensor.device} but x is on {x.device}")
    if tensor.dtype != x.dtype:
        theirs, ours = str(tensor.dtype)[6:], str(x.dtype)[6:]
        raise ValueError(f"layer_norm_gelu: {name} has dtype {theirs} but x has dtype {ours}")


# Fake: shapes and dtypes without data, for torch.compile, torch.export and meta tensors. Results are
# contiguous.


def _statistics(x: Tensor) -> Tensor:
    return x.new_empty((2, *x.shape[:-1]), dtype=torch.float64 if x.dtype == torch.float64 else torch.float32)


def _forward_fake(
    x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, approximate: str
) -> tuple[Tensor, Tensor]:
    _check(x, weight, bias, approximate)
    return x.new_empty(x.shape), _statistics(x)


def _residual_fake(
    x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor | None, eps: float, approximate: str
) -> tuple[Tensor, Tensor, Tensor]:
    _check(x, weight, bias, approximate)
    _check_alike("residual", residual, x)
    if residual.shape != x.shape:
        shapes = list(residual.shape), list(x.shape)
        raise ValueError(f"layer_norm_gelu: residual has shape {shapes[0]} but x has shape {shapes[1]}")
    return x.new_empty(x.shape), x.new_empty(x.shape), _statistics(x)


def _backward_fake(
    dy: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    statistics: Tensor,
    approximate: str,
    dsum: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    return x.new_empty(x.shape), weight.new_empty(weight.shape), weight.new_empty(weight.shape)


# Autograd. The statistics are saved, two numbers a row; z is computed again: cheaper than reading it.
# Everything stands twice: for the dispatcher, which torch.compile and transforms need, and as the
# autograd.Function of plain calls.


def _gradients(
    saved: tuple[Tensor, ...], approximate: str, dy: Tensor | None, dsum: Tensor | None = None
) -> tuple[Tensor | None, ...]:
    """For x, weight and bias."""
    x, weight, bias, statistics = saved
    if dy is None:  # only the sum was used
        return dsum, None, None
    op = _PLAIN_BACKWARD if registration.is_plain_backward(dy) else _BACKWARD
    dx, dweight, dbias = op(dy, x, weight, bias, statistics, approximate, dsum)
    return dx, dweight, None if bias is None else dbias


class _LayerNormGelu(torch.autograd.Function):  # type: ignore[misc]  # torch is untyped here
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, approximate: str
    ) -> Tensor:
        y, statistics = _PLAIN_FORWARD(x, weight, bias, eps, approximate)
        ctx.save_for_backward(x, weight, bias, statistics)
        ctx.approximate = approximate
        return cast(Tensor, y)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        dx, dweight, dbias = _gradients(ctx.saved_tensors, ctx.approximate, dy)
        return dx, dweight, dbias, None, None


class _LayerNormGeluResidual(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        residual: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        eps: float,
        approximate: str,
    ) -> tuple[Tensor, Tensor]:
        y, total, statistics = _PLAIN_RESIDUAL(x, residual, weight, bias, eps, approximate)
        ctx.save_for_backward(total, weight, bias, statistics)
        ctx.approximate = approximate
        ctx.set_materialize_grads(False)
        return y, total

    @staticmethod
    def backward(ctx: Any, dy: Tensor | None, dsum: Tensor | None) -> tuple[Tensor | None, ...]:
        dx, dweight, dbias = _gradients(ctx.saved_tensors, ctx.approximate, dy, dsum)
        return dx, dx, dweight, dbias, None, None


_apply = registration.plain_apply(_LayerNormGelu)
_apply_residual = registration.plain_apply(_LayerNormGeluResidual)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, weight, bias, _, ctx.approximate = inputs
    _, statistics = output
    ctx.mark_non_differentiable(statistics)
    ctx.save_for_backward(x, weight, bias, statistics)


def _backward(ctx: Any, dy: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    # saved_tensors once: checkpointing computes anew each time
    return *_gradients(ctx.saved_tensors, ctx.approximate, dy), None, None


def _setup_residual_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    _, _, weight, bias, _, ctx.approximate = inputs
    _, total, statistics = output
    ctx.mark_non_differentiable(statistics)
    ctx.save_for_backward(total, weight, bias, statistics)


def _residual_backward(ctx: Any, dy: Tensor, dsum: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    dx, dweight, dbias = _gradients(ctx.saved_tensors, ctx.approximate, dy, dsum)
    return dx, dx, dweight, dbias, None, None


# Autocast. The op computes in fp32 whatever it reads, so x need not be cast; weight and bias follow it.


def _align_with_x(dtype: torch.dtype, args: tuple[Any, ...]) -> tuple[Any, ...]:
    x, weight, bias, *options = args
    return x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype), *options


def _align_residual_with_x(dtype: torch.dtype, args: tuple[Any, ...]) -> tuple[Any, ...]:
    x, residual, *rest = args
    first, *others = _align_with_x(dtype, (x, *rest))
    return first, residual.to(x.dtype), *others


# vmap. A batch of x is just more rows; a batch of weights is so many separate calls.


def _vmap_rule(
    info: Any, in_dims: tuple[int | None, ...], *args: Any
) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    if in_dims[0] is not None and in_dims[1] is None and in_dims[2] is None:
        return _FORWARD(args[0].movedim(in_dims[0], 0), *args[1:]), (0, 1)
    return _separately(_FORWARD, info, in_dims, args)


def _residual_vmap_rule(
    info: Any, in_dims: tuple[int | None, ...], *args: Any
) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    return _separately(_RESIDUAL, info, in_dims, args)


def _separately(
    op: Any, info: Any, in_dims: tuple[int | None, ...], args: tuple[Any, ...]
) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    calls = (
        [a if dim is None else a.select(dim, i) for a, dim in zip(args, in_dims, strict=True)]
        for i in range(info.batch_size)
    )
    results = [op(*call) for call in calls]
    stacked = tuple(torch.stack(part) for part in zip(*results, strict=True))
    return stacked, (0,) * len(stacked)


torch.library.register_fake("profiling_lab::layer_norm_gelu", _forward_fake)
torch.library.register_fake("profiling_lab::layer_norm_gelu_residual", _residual_fake)
torch.library.register_fake("profiling_lab::layer_norm_gelu_backward", _backward_fake)
torch.library.register_autograd("profiling_lab::layer_norm_gelu", _backward, setup_context=_setup_context)
torch.library.register_autograd(
    "profiling_lab::layer_norm_gelu_residual", _residual_backward, setup_context=_setup_residual_context
)
torch.library.register_vmap("profiling_lab::layer_norm_gelu", _vmap_rule)
torch.library.register_vmap("profiling_lab::layer_norm_gelu_residual", _residual_vmap_rule)
registration.refuse_double_backward("layer_norm_gelu_backward", "layer_norm_gelu")
registration.register_autocast("layer_norm_gelu", _align_with_x)
registration.register_autocast("layer_norm_gelu_residual", _align_residual_with_x)


class LayerNormGelu(nn.Module):  # type: ignore[misc]  # torch is untyped here
    """layer_norm_gelu with its own weight, 1 at first, and bias, 0 at first (None for bias=False): applies
    to (..., d).
    """

    def __init__(
        self,
        d: int,
        eps: float = 1e-5,
        approximate: Approximate = "none",
        *,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if approximate not in _APPROXIMATE:
            raise ValueError(f"LayerNormGelu: approximate is {approximate!r}, expected one of {_APPROXIMATE}")
        self.d = d
        self.eps = eps
        self.approximate: Approximate = approximate
        self.weight = nn.Parameter(torch.empty(d, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(d, device=device, dtype=dtype)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set weight to one and bias to zero."""
        nn.init.ones_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        return layer_norm_gelu(x, self.weight, self.bias, self.eps, self.approximate)

    def extra_repr(self) -> str:
        return f"d={self.d}, eps={self.eps}, approximate={self.approximate!r}, bias={self.bias is not None}"


def reference(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    approximate: Approximate = "none",
) -> Tensor:
    """layer_norm_gelu in plain torch, as it is usually written."""
    return F.gelu(F.layer_norm(x, x.shape[-1:], weight, bias, eps), approximate=approximate)


# The case


def _make_inputs(
    shape: Shape, dtype: torch.dtype, device: torch.device, generator: torch.Generator
) -> tuple[Tensor, ...]:
    def normal(*size: int, mean: float, scale: float) -> Tensor:
        values = torch.randn(*size, generator=generator, dtype=torch.float64) * scale + mean
        return values.to(device=device, dtype=dtype)

    d = shape[-1]
    return normal(*shape, mean=0.5, scale=2.0), normal(d, mean=1.0, scale=0.3), normal(d, mean=0.0, scale=0.3)


def reference_residual(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    approximate: Approximate = "none",
) -> tuple[Tensor, Tensor]:
    """layer_norm_gelu_residual in plain torch."""
    total = x + residual
    return reference(total, weight, bias, eps, approximate), total


def _dispatcher_calls(inputs: tuple[Tensor, ...]) -> tuple[tuple[str, tuple[Any, ...]], ...]:
    x, weight, bias = inputs
    with torch.no_grad():
        _, statistics = _FORWARD(x, weight, bias, 1e-5, "none")
    dy = torch.ones_like(x, memory_format=torch.contiguous_format)
    return (
        ("layer_norm_gelu", (x, weight, bias, 1e-5, "none")),
        ("layer_norm_gelu", (x, weight, None, 1e-3, "tanh")),
        ("layer_norm_gelu_residual", (x, dy, weight, bias, 1e-5, "none")),
        ("layer_norm_gelu_residual", (x, dy, weight, None, 1e-3, "tanh")),
        ("layer_norm_gelu_backward", (dy, x, weight, bias, statistics, "none")),
        ("layer_norm_gelu_backward", (dy, x, weight, None, statistics, "tanh", dy)),
    )


def _flops(shape: Shape) -> int:
    return 30 * math.prod(shape)  # 7 to normalise, about 23 for GELU; what an implementation spends differs


def _bytes(shape: Shape, dtype: torch.dtype) -> int:
    rows, d = math.prod(shape[:-1]), shape[-1]
    return int((2 * rows * d + 2 * d) * dtype.itemsize + 8 * rows)


def _variant(approximate: Approximate) -> Variant:
    return Variant(
        f"approximate={approximate}",
        partial(layer_norm_gelu, approximate=approximate),
        partial(reference, approximate=approximate),
    )


CASE = OpCase(
    slug="layer_norm_gelu",
    variants=(_variant("none"), _variant("tanh")),
    make_inputs=_make_inputs,
    dispatcher_calls=_dispatcher_calls,
    flops=_flops,
    bytes=_bytes,
    test_shapes=(
        TestShape("one row", (1, 64)),
        TestShape("a vector, no row dimension", (40,)),
        TestShape("two elements, the smallest row with a spread", (6, 2)),
        TestShape("odd width, no vector fits", (5, 37)),
        TestShape("three dimensions", (2, 7, 48)),
        TestShape("a warp holds the row exactly", (9, 512)),
        TestShape("a warp holds the row, some lanes idle", (7, 1000)),
        TestShape("more rows than warps of a block", (33, 256)),
        TestShape("a block holds the row exactly", (5, 4096)),
        TestShape("a block holds the row, some threads idle", (3, 5008)),
        TestShape("odd width across a block", (3, 2049)),
        TestShape("longer than registers hold", (2, 20000)),
        TestShape("no rows", (0, 16)),
        TestShape("an empty batch dimension", (3, 0, 16)),
    ),
    bench_shapes=tuple((2**27 // d, d) for d in (512, 1024, 2048, 4096, 8192, 16384)),
    module=LayerNormGelu,
)
