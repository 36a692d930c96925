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
from torch.overrides import handle_torch_function

from profiling_lab.ops import _registration as registration
from profiling_lab.ops._autograd import pullback
from profiling_lab.ops.case import OpCase, Shape, TestShape, Variant, drawing

__all__ = ["LayerNormGelu", "layer_norm_gelu", "layer_norm_gelu_residual"]

Approximate = Literal["none", "tanh"]
_APPROXIMATE = get_args(Approximate)


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

    Differentiable to any order, in both modes, and under torch.func; the gradients of weight and bias have
    the same bits in every run. Under autocast weight and bias are cast to x's dtype and x stays as it is.
    Raises ValueError for shapes, dtypes, devices or options that do not fit together, RuntimeError for a
    CUDA tensor where profiling_lab was built without CUDA kernels.
    """
    way = _OP.way(x, weight, bias)
    if way is None:
        tensors = (x, weight, bias)
        return cast(Tensor, handle_torch_function(layer_norm_gelu, tensors, *tensors, eps, approximate))
    if isinstance(eps, Tensor):
        registration.check_constant("layer_norm_gelu", "eps", eps)
    try:
        return cast(Tensor, way(x, weight, bias, eps, approximate)[0])
    except Exception as error:
        _OP.explain(error, x, weight, bias)
        raise


def layer_norm_gelu_residual(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    approximate: Approximate = "none",
) -> tuple[Tensor, Tensor]:
    """Return y = gelu(layer_norm(s) * weight + bias) and s = x + residual, reading memory once.

    residual has the shape, dtype and device of x; everything else as in layer_norm_gelu. s is rounded to the
    dtype before it is normalised, as x + residual in plain torch is, and carries on the residual stream. Both
    results are contiguous. The gradient that reaches s from elsewhere is added in the backward's only pass; x
    and residual get the same gradient.
    """
    way = _RESIDUAL.way(x, residual, weight, bias)
    if way is None:
        tensors = (x, residual, weight, bias)
        found = handle_torch_function(layer_norm_gelu_residual, tensors, *tensors, eps, approximate)
        return cast(tuple[Tensor, Tensor], found)
    if isinstance(eps, Tensor):
        registration.check_constant("layer_norm_gelu", "eps", eps)
    try:
        return cast(tuple[Tensor, Tensor], way(x, residual, weight, bias, eps, approximate)[:2])
    except Exception as error:
        _RESIDUAL.explain(error, x, residual, weight, bias)
        raise


def _check(x: Tensor, weight: Tensor, bias: Tensor | None, approximate: str) -> None:
    """The checks of layer_norm_gelu.cpp, in its words, for the paths that never reach it."""
    if approximate not in _APPROXIMATE:
        raise ValueError(f"layer_norm_gelu: approximate is '{approximate}', expected 'none' or 'tanh'")
    if x.dim() == 0:
        raise ValueError("layer_norm_gelu: x has no dimensions, expected at least one")
    d = x.shape[-1]
    if d == 0:
        raise ValueError("layer_norm_gelu: x has last dimension 0, and an empty row has no mean")
    registration.check_dtype("layer_norm_gelu", x)
    for name, vector in (("weight", weight), ("bias", bias)):
        if vector is None:
            continue
        registration.check_alike("layer_norm_gelu", **{"x": x, name: vector})
        if vector.dim() != 1:
            shape = list(vector.shape)
            raise ValueError(
                f"layer_norm_gelu: {name} has shape {shape}, expected one dimension of {d} elements"
            )
        if vector.shape[0] != d:
            raise ValueError(
                f"layer_norm_gelu: {name} has {vector.shape[0]} elements but x has last dimension {d}"
            )


# The ops


def _in_torch(
    x: Tensor, weight: Tensor, bias: Tensor | None, eps: float | Tensor, approximate: str
) -> tuple[Tensor, Tensor]:
    wide = registration.sums_of(x.dtype)
    mean = x.to(wide).mean(-1, keepdim=True)
    centred = x.to(wide) - mean
    rstd = torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps)
    z = centred * rstd * weight.to(wide)
    z = z if bias is None else z + bias.to(wide)
    y = F.gelu(z, approximate=approximate).to(x.dtype)
    return y, torch.stack((mean.squeeze(-1), rstd.squeeze(-1)))


def _residual_in_torch(
    x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor | None, eps: float, approximate: str
) -> tuple[Tensor, Tensor, Tensor]:
    total = x + residual
    y, statistics = _in_torch(total, weight, bias, eps, approximate)
    return y, total, statistics


def _backward_in_torch(
    dy: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    statistics: Tensor,
    approximate: str,
    dsum: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    wide = x.detach().to(statistics.dtype)
    # Of eps only rstd = 1 / sqrt(variance + eps) is known here; it is a constant, whatever x does.
    eps = statistics[1].detach()[..., None] ** -2 - wide.var(-1, correction=0, keepdim=True)

    def forward(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return _in_torch(x, weight, bias, eps, approximate)[0]

    inputs = (x, weight, torch.zeros_like(weight) if bias is None else bias)
    dx, dweight, dbias = pullback(forward, inputs, dy)
    return dx if dsum is None else dx + dsum, dweight, dbias


def _statistics(x: Tensor) -> Tensor:
    return x.new_empty((2, *x.shape[:-1]), dtype=registration.sums_of(x.dtype))


def _forward_fake(
    x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, approximate: str
) -> tuple[Tensor, Tensor]:
    _check(x, weight, bias, approximate)
    return x.new_empty(x.shape), _statistics(x)


def _residual_fake(
    x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor | None, eps: float, approximate: str
) -> tuple[Tensor, Tensor, Tensor]:
    _check(x, weight, bias, approximate)
    registration.check_alike("layer_norm_gelu", x=x, residual=residual)
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


def _gradients(
    call: Any, saved: tuple[Tensor, ...], options: tuple[float, str], grads: tuple[Tensor]
) -> tuple[Tensor | None, ...]:
    x, weight, bias, statistics = saved
    dx, dweight, dbias = call(grads[0], x, weight, bias, statistics, options[1], None)
    return dx, dweight, None if bias is None else dbias


def _residual_gradients(
    call: Any, saved: tuple[Tensor, ...], options: tuple[float, str], grads: tuple[Tensor | None, ...]
) -> tuple[Tensor | None, ...]:
    (total, weight, bias, statistics), (dy, dsum) = saved, grads
    if dy is None:  # only the sum was used
        return dsum, dsum, None, None
    dx, dweight, dbias = call(dy, total, weight, bias, statistics, options[1], dsum)
    return dx, dx, dweight, None if bias is None else dbias


def _cast(dtype: torch.dtype, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The op computes in fp32 whatever it reads, so x need not be cast; the other tensors follow it."""
    x, *others = args
    return x, *(a.to(x.dtype) if isinstance(a, Tensor) else a for a in others)


_BACKWARD = registration.BackwardOp(
    name="layer_norm_gelu_backward",
    slug="layer_norm_gelu",
    fake=_backward_fake,
    in_torch=_backward_in_torch,
    differentiable="dy x weight bias dsum",
)
_OP = registration.Op(
    name="layer_norm_gelu",
    slug="layer_norm_gelu",
    fake=_forward_fake,
    in_torch=_in_torch,
    saved="x weight bias statistics",  # two numbers a row; z is computed again: cheaper than reading it
    backward_op=_BACKWARD,
    backward=_gradients,
    cast=_cast,
    vmap=registration.more_rows((0, 1)),
)
_RESIDUAL = registration.Op(
    name="layer_norm_gelu_residual",
    slug="layer_norm_gelu",
    fake=_residual_fake,
    in_torch=_residual_in_torch,
    saved="sum weight bias statistics",
    backward_op=_BACKWARD,
    backward=_residual_gradients,
    results=2,
    cast=_cast,
)


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
    d, draw = shape[-1], drawing(dtype, device, generator)
    return draw(*shape, scale=2.0, mean=0.5), draw(d, scale=0.3, mean=1.0), draw(d, scale=0.3)


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
        _, statistics = _OP.way(x, weight, bias)(x, weight, bias, 1e-5, "none")
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
