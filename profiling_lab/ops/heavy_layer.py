# SPDX-License-Identifier: Apache-2.0
"""heavy_layer: Y = tanh(X W1 W2 W3 + b), three times: slow on purpose, as a loop of small ops, and fast.

With Z = X W1 W2 W3 + b and G = dY (1 - Y^2), row by row of X:
    dX = G (W1 W2 W3)^T   dW1 = X^T G (W2 W3)^T   dW2 = (X W1)^T G W3^T   dW3 = (X W1 W2)^T G   db = sum of G
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor, nn
from torch.overrides import handle_torch_function

from profiling_lab.ops import _registration as registration
from profiling_lab.ops._autograd import pullback
from profiling_lab.ops.case import OpCase, Shape, TestShape, Variant, drawing

__all__ = ["HeavyLayer", "heavy_layer"]

Implementation = Literal["slow", "loop", "fast"]
_IMPLEMENTATIONS = get_args(Implementation)


def heavy_layer(
    x: Tensor, w1: Tensor, w2: Tensor, w3: Tensor, b: Tensor, *, implementation: Implementation = "fast"
) -> Tensor:
    """Return tanh(x @ w1 @ w2 @ w3 + b).

    x is (..., d), w1, w2 and w3 are (d, d), b is (d,); one dtype and one device for all: float32, bfloat16 or
    float16, on the CPU also float64. The result is contiguous and has x's shape.

    implementation:
      "fast"  multiplies the matrices together first where that saves work, then needs one product
      "slow"  is one CUDA kernel with planted defects (csrc/ops/heavy_layer/README.md), d at most 6144 there;
              its gradients are those of "fast"
      "loop"  runs plain torch ops, once per position of the last but one dimension; float64 also on CUDA

    Differentiable to any order, in both modes, and under torch.func; for its gradients "fast" keeps two
    products, of at most (d, d).
    Under autocast all inputs are cast, as for matrix multiplications.
    Raises ValueError for shapes, dtypes or devices that do not fit together; RuntimeError for a CUDA tensor
    where profiling_lab was built without CUDA kernels.
    """
    if implementation == "loop":
        _check(x, w1, w2, w3, b, any_device_has_float64=True)
        return _loop(x, w1, w2, w3, b)
    if implementation not in _IMPLEMENTATIONS:
        raise ValueError(
            f"heavy_layer: implementation is {implementation!r}, expected one of {_IMPLEMENTATIONS}"
        )
    op = _FAST if implementation == "fast" else _SLOW
    way = op.way(x, w1, w2, w3, b)
    if way is None:
        tensors = (x, w1, w2, w3, b)
        options = {"implementation": implementation}
        return cast(Tensor, handle_torch_function(heavy_layer, tensors, *tensors, **options))
    try:
        if op is _SLOW:
            return cast(Tensor, way(x, w1, w2, w3, b))
        return cast(Tensor, way(x, w1, w2, w3, b, x.dtype is torch.float32 and _tf32_is_allowed()))
    except Exception as error:
        op.explain(error, x, w1, w2, w3, b)
        raise


def _tf32_is_allowed() -> bool:
    """What torch's own products of float32 matrices may do on the GPU; the op asks for its own one."""
    if torch.compiler.is_compiling():  # Dynamo knows this question, and not the other
        return cast(bool, torch._C._get_cublas_allow_tf32())
    return bool(torch.backends.cuda.matmul.fp32_precision == "tf32")  # never fails, however it was set


def _loop(x: Tensor, w1: Tensor, w2: Tensor, w3: Tensor, b: Tensor) -> Tensor:
    """One position at a time: no kernel is slow, and yet the launches of all of them take the time."""
    if x.dim() == 1 or x.shape[-2] == 0:
        return reference(x, w1, w2, w3, b)
    outputs = []
    for position in range(x.shape[-2]):
        h = x[..., position, :]
        h = torch.matmul(h, w1)
        h = torch.matmul(h, w2)
        h = torch.matmul(h, w3)
        h = h + b
        outputs.append(torch.tanh(h))
    return torch.stack(outputs, dim=-2)


def _check(
    x: Tensor, w1: Tensor, w2: Tensor, w3: Tensor, b: Tensor, any_device_has_float64: bool = False
) -> None:
    """The checks of heavy_layer.cpp, in its words, for the paths that never reach it."""
    registration.check_alike("heavy_layer", x=x, w1=w1, w2=w2, w3=w3, b=b)
    if x.dim() == 0:
        raise ValueError("heavy_layer: x has no dimensions, expected at least one")
    if not (any_device_has_float64 and x.dtype is torch.float64):
        registration.check_dtype("heavy_layer", x)
    d = x.shape[-1]
    for name, shape in (("w1", w1.shape), ("w2", w2.shape), ("w3", w3.shape)):
        if len(shape) != 2 or shape[0] != d or shape[1] != d:
            raise ValueError(f"heavy_layer: {name} has shape {list(shape)} but x has last dimension {d}")
    if b.dim() != 1 or b.shape[0] != d:
        raise ValueError(f"heavy_layer: b has shape {list(b.shape)} but x has last dimension {d}")


# The ops


def _forward_in_torch(
    x: Tensor, w1: Tensor, w2: Tensor, w3: Tensor, b: Tensor, allow_tf32: bool = False
) -> Tensor:
    wide = registration.sums_of(x.dtype)
    return reference(*(t.to(wide) for t in (x, w1, w2, w3, b))).to(x.dtype)


def _in_parts(x: Tensor, w1: Tensor, w2: Tensor, w3: Tensor, b: Tensor, allow_tf32: bool = False) -> Tensor:
    """Of sharded weights: what is sharded over columns of one and rows of the next is summed in between."""
    _check(x, w1, w2, w3, b)
    return reference(x, w1, w2, w3, b)


def _keeping_in_torch(*args: Any) -> tuple[Tensor, Tensor, Tensor]:
    return _forward_in_torch(*args), args[1].new_empty(0), args[1].new_empty(0)  # made again where needed


def _backward_in_torch(
    dy: Tensor, x: Tensor, w1: Tensor, w2: Tensor, w3: Tensor, b: Tensor, *_: Any
) -> tuple[Tensor, ...]:
    return pullback(_forward_in_torch, (x, w1, w2, w3, b), dy)


def _forward_fake(
    x: Tensor, w1: Tensor, w2: Tensor, w3: Tensor, b: Tensor, allow_tf32: bool = False
) -> Tensor:
    _check(x, w1, w2, w3, b)
    return x.new_empty(x.shape)


def _backward_fake(
    dy: Tensor,
    x: Tensor,
    w1: Tensor,
    w2: Tensor,
    w3: Tensor,
    b: Tensor,
    y: Tensor,
    allow_tf32: bool = False,
    kept1: Tensor | None = None,
    kept2: Tensor | None = None,
) -> tuple[Tensor, ...]:
    return tuple(tensor.new_empty(tensor.shape) for tensor in (x, w1, w2, w3, b))


def _keeping_fake(
    x: Tensor, w1: Tensor, w2: Tensor, w3: Tensor, b: Tensor, allow_tf32: bool = False
) -> tuple[Tensor, ...]:
    y, d = _forward_fake(x, w1, w2, w3, b), w1.shape[0]
    if y.numel() == 0:
        return y, w1.new_empty(0), w1.new_empty(0)
    if y.numel() <= d * d:  # no more rows than columns: X W1 and X W1 W2
        return y, *(y.new_empty((y.numel() // d, d)) for _ in range(2))
    keeps_m = not (allow_tf32 and w1.is_cuda and w1.dtype is torch.float32)
    m = w1.new_empty(w1.shape if keeps_m else (0,))  # may lie as its transpose
    return y, w1.new_empty(w1.shape), m


def _gradients(
    call: Any, saved: tuple[Tensor, ...], options: tuple[bool, ...], grads: tuple[Tensor]
) -> tuple[Tensor | None, ...]:
    """`saved` are the inputs, y, whose slope follows from it, and maybe what the forward kept."""
    return cast(tuple[Tensor, ...], call(*grads, *saved[:6], *(options or (False,)), *saved[6:]))


# A plain call keeps two products for its backward, W2 W3 and W1 W2 W3 or, of the chain, X W1 and X W1 W2;
# under torch.compile the backward makes them again.
_op = partial(
    registration.Op,
    slug="heavy_layer",
    backward_op=registration.BackwardOp(
        name="heavy_layer_backward",
        slug="heavy_layer",
        fake=_backward_fake,
        in_torch=_backward_in_torch,
        differentiable="dy x w1 w2 w3 b",
        calls_torch=True,
    ),
    backward=_gradients,
    calls_torch=True,
)
_KEEPING = _op(
    name="heavy_layer_fast_keeping",
    fake=_keeping_fake,
    in_torch=_keeping_in_torch,
    saved="x w1 w2 w3 b y kept1 kept2",
)
_FAST = _op(
    name="heavy_layer_fast",
    fake=_forward_fake,
    in_torch=_forward_in_torch,
    saved="x w1 w2 w3 b result",
    vmap=registration.more_rows(0),
    keeping=_KEEPING,
    in_parts=_in_parts,
)
_SLOW = _op(
    name="heavy_layer_slow",
    fake=_forward_fake,
    in_torch=_forward_in_torch,
    saved="x w1 w2 w3 b result",
    vmap=registration.more_rows(0),
    in_parts=_in_parts,
)


class HeavyLayer(nn.Module):  # type: ignore[misc]  # torch is untyped here
    """heavy_layer with its own weights: applies to (..., d_model).

    Weights start normal with standard deviation 1 / sqrt(d_model), so that three products keep the size of x;
    the bias starts at zero.
    """

    def __init__(
        self,
        d_model: int,
        implementation: Implementation = "fast",
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if implementation not in _IMPLEMENTATIONS:
            raise ValueError(
                f"HeavyLayer: implementation is {implementation!r}, expected one of {_IMPLEMENTATIONS}"
            )
        self.d_model = d_model
        self.implementation: Implementation = implementation
        self.w1 = nn.Parameter(torch.empty(d_model, d_model, device=device, dtype=dtype))
        self.w2 = nn.Parameter(torch.empty(d_model, d_model, device=device, dtype=dtype))
        self.w3 = nn.Parameter(torch.empty(d_model, d_model, device=device, dtype=dtype))
        self.b = nn.Parameter(torch.empty(d_model, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new weights and set the bias to zero."""
        for weight in (self.w1, self.w2, self.w3):
            nn.init.normal_(weight, std=1 / math.sqrt(max(self.d_model, 1)))
        nn.init.zeros_(self.b)

    def forward(self, x: Tensor) -> Tensor:
        return heavy_layer(x, self.w1, self.w2, self.w3, self.b, implementation=self.implementation)

    def extra_repr(self) -> str:
        return f"d_model={self.d_model}, implementation={self.implementation!r}"


def reference(x: Tensor, w1: Tensor, w2: Tensor, w3: Tensor, b: Tensor) -> Tensor:
    """heavy_layer in plain torch, as the formula is written."""
    return torch.tanh(x @ w1 @ w2 @ w3 + b)


# The case


def _make_inputs(
    shape: Shape, dtype: torch.dtype, device: torch.device, generator: torch.Generator
) -> tuple[Tensor, ...]:
    d, draw = shape[-1], drawing(dtype, device, generator)
    weights = [draw(d, d, scale=1 / math.sqrt(max(d, 1))) for _ in range(3)]
    return (draw(*shape), *weights, draw(d, scale=0.5))


def _dispatcher_calls(inputs: tuple[Tensor, ...]) -> tuple[tuple[str, tuple[Any, ...]], ...]:
    with torch.no_grad():
        y = reference(*inputs).contiguous()
    return (
        ("heavy_layer_slow", inputs),
        ("heavy_layer_fast", (*inputs, False)),
        ("heavy_layer_fast_keeping", (*inputs, False)),
        ("heavy_layer_backward", (torch.ones_like(y), *inputs, y, False)),
    )


def _flops(shape: Shape) -> int:
    rows, d = math.prod(shape[:-1]), shape[-1]
    return (
        2 * d * d * min(3 * rows, 2 * d + rows)
    )  # as three products, or as one with W1 W2 W3 multiplied first


def _bytes(shape: Shape, dtype: torch.dtype) -> int:
    rows, d = math.prod(shape[:-1]), shape[-1]
    return (2 * rows * d + 3 * d * d + d) * int(dtype.itemsize)


def _variant(implementation: Implementation) -> Variant:
    def call(*inputs: Tensor) -> Tensor:
        return heavy_layer(*inputs, implementation=implementation)

    return Variant(implementation, call, reference, custom=implementation != "loop")


CASE = OpCase(
    slug="heavy_layer",
    variants=(_variant("slow"), _variant("loop"), _variant("fast")),
    make_inputs=_make_inputs,
    dispatcher_calls=_dispatcher_calls,
    flops=_flops,
    bytes=_bytes,
    test_shapes=(
        TestShape("one row", (1, 16)),
        TestShape("a vector, no row dimension", (24,)),
        TestShape("one element", (1, 1)),
        TestShape("odd width, no vector fits", (5, 37)),
        TestShape("three dimensions", (2, 7, 48)),
        TestShape("fewer rows than columns, chain not folded", (9, 64)),
        TestShape("more rows than columns, matrices folded", (150, 32)),
        TestShape("rows not a multiple of a chunk", (65, 40)),
        TestShape("wider than a block of threads", (3, 300)),
        TestShape("no rows", (0, 16)),
        TestShape("an empty batch dimension", (3, 0, 16)),
        TestShape("no columns", (4, 0)),
    ),
    bench_shapes=((32, 128, 512), (8, 1024, 1024)),
    module=HeavyLayer,
)
