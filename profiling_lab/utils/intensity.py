# SPDX-License-Identifier: Apache-2.0
"""Floating-point operations and bytes of common operations, from their shapes.

The bytes are the least that the operation can move: each input is read once, each output written once. Caches
that are too small, and operations that are not fused, move more. What is measured wins: `ncu --set roofline`.

The counts of matmul, linear, conv2d and attention are those of torch.utils.flop_counter, 2 per multiply-add;
that of attention without a mask is also the one in "FlashAttention-2" (Dao 2023, section 4.1), which halves
it for causal. layer_norm counts 10 per element: an estimate, as its result does not depend on it, being far
below any GPU's ridge point.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from profiling_lab.errors import UsageError

Shapes = Mapping[str, Sequence[int]]
Counts = tuple[float, float]  # floating-point operations, elements read and written

_BYTES = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1, "int8": 1,
}  # fmt: skip


class Intensity(float):
    """Floating-point operations per byte, with `flops` and `bytes_moved` that it is the ratio of."""

    flops: float
    bytes_moved: float

    def __new__(cls, flops: float, bytes_moved: float) -> Intensity:
        self = super().__new__(cls, flops / bytes_moved)
        self.flops, self.bytes_moved = flops, bytes_moved
        return self

    def __reduce__(self) -> tuple[type[Intensity], tuple[float, float]]:
        return Intensity, (self.flops, self.bytes_moved)


def estimate_arithmetic_intensity(
    op: str, shapes: Shapes, dtype: object = "float32", **options: int | bool
) -> Intensity:
    """The arithmetic intensity of an operation, in floating-point operations per byte.

    op, with its shapes and options:
    matmul: A (..., M, K), B (..., K, N).
    linear: x (..., in), weight (out, in), optional bias (out,).
    attention: q (batch, heads, rows, head_dim), k and v (batch, their heads, columns, head_dim);
    causal=False; fused, so that the scores are not moved.
    layer_norm (or layernorm): x; optional weight, bias.
    conv2d: x (batch, channels, height, width), weight (out, channels / groups, height, width), optional bias;
    stride=1, padding=0, dilation=1, groups=1.
    elementwise: any names, broadcast against each other; flops_per_element=1.

    dtype: the name of a type, or a torch.dtype. Raises UsageError for an unknown op, type, shape or option.
    """
    if op not in _OPS:
        raise UsageError(f"unknown op {op!r}, expected one of {', '.join(sorted(_OPS))}")
    count, needed, optional, known_options = _OPS[op]
    element_bytes = _BYTES.get(str(dtype).removeprefix("torch."))
    if element_bytes is None:
        raise UsageError(f"unknown dtype {str(dtype)!r}, expected one of {', '.join(_BYTES)}")
    missing = [name for name in needed if name not in shapes]
    unknown = [name for name in shapes if needed and name not in (*needed, *optional)]
    if missing or unknown or not shapes:
        raise UsageError(
            f"{op} expected the shapes {', '.join(needed) or 'of its inputs'}"
            f"{''.join(f', optionally {name}' for name in optional)}; got {', '.join(shapes) or 'none'}"
        )
    if wrong := set(options) - set(known_options):
        raise UsageError(
            f"{op} has no option {', '.join(sorted(wrong))}; it has {', '.join(known_options) or 'none'}"
        )
    sizes = {name: tuple(int(size) for size in shape) for name, shape in shapes.items()}
    if any(size < 1 for shape in sizes.values() for size in shape):
        raise UsageError(f"{op} expected sizes of at least 1, got {sizes}")
    try:
        flops, elements = count(sizes, {**known_options, **options})
    except (ValueError, ZeroDivisionError) as error:
        raise UsageError(f"{op} cannot have the shapes {sizes}: {error}") from None
    return Intensity(flops, elements * element_bytes)


Sizes = dict[str, tuple[int, ...]]
Options = dict[str, int]


def _elements(sizes: Sizes) -> int:
    return sum(math.prod(shape) for shape in sizes.values())


def _broadcast(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The common shape, by the rule of NumPy and torch."""
    rank = max(map(len, shapes))
    columns = zip(*((1,) * (rank - len(shape)) + shape for shape in shapes), strict=True)
    result = []
    for column in columns:
        found = set(column) - {1}
        if len(found) > 1:
            raise ValueError(f"{' and '.join(map(str, sorted(found)))} do not broadcast")
        result.append(found.pop() if found else 1)
    return tuple(result)


def _same(what: str, first: int, second: int) -> None:
    if first != second:
        raise ValueError(f"{what} is {first} in one and {second} in the other")


def _matmul(sizes: Sizes, options: Options) -> Counts:
    *batch_a, m, k = sizes["A"]
    *batch_b, k_b, n = sizes["B"]
    _same("K", k, k_b)
    batch = math.prod(_broadcast(tuple(batch_a), tuple(batch_b)))
    return 2 * batch * m * n * k, _elements(sizes) + batch * m * n


def _linear(sizes: Sizes, options: Options) -> Counts:
    *rows, inputs = sizes["x"]
    outputs, inputs_w = sizes["weight"]
    _same("the number of inputs", inputs, inputs_w)
    out = math.prod(rows) * outputs
    # torch's counter leaves out the bias, one addition per output.
    return 2 * out * inputs + (out if "bias" in sizes else 0), _elements(sizes) + out


def _attention(sizes: Sizes, options: Options) -> Counts:
    batch, heads, rows, head_dim = sizes["q"]
    batch_k, _, columns, head_dim_k = sizes["k"]
    *_, columns_v, head_dim_v = sizes["v"]
    _same("head_dim of q and k", head_dim, head_dim_k)
    _same("the batch", batch, batch_k)
    _same("the number of columns", columns, columns_v)
    flops = 2 * batch * heads * rows * columns * (head_dim + head_dim_v)
    out = batch * heads * rows * head_dim_v
    return (flops / 2 if options["causal"] else flops), _elements(sizes) + out


def _layer_norm(sizes: Sizes, options: Options) -> Counts:
    out = math.prod(sizes["x"])
    return 10 * out, _elements(sizes) + out


def _conv2d(sizes: Sizes, options: Options) -> Counts:
    batch, channels, height, width = sizes["x"]
    filters, per_group, kernel_h, kernel_w = sizes["weight"]
    _same("the number of channels", channels, per_group * options["groups"])

    def outputs(size: int, kernel: int) -> int:
        reach = options["dilation"] * (kernel - 1) + 1
        count = (size + 2 * options["padding"] - reach) // options["stride"] + 1
        if count < 1:
            raise ValueError(f"a kernel of {kernel} does not fit into {size}")
        return count

    out = batch * filters * outputs(height, kernel_h) * outputs(width, kernel_w)
    flops = 2 * out * per_group * kernel_h * kernel_w + (out if "bias" in sizes else 0)
    return flops, _elements(sizes) + out


def _elementwise(sizes: Sizes, options: Options) -> Counts:
    out = math.prod(_broadcast(*sizes.values()))
    return options["flops_per_element"] * out, _elements(sizes) + out


_Count = Callable[[Sizes, Options], Counts]
_OPS: dict[str, tuple[_Count, tuple[str, ...], tuple[str, ...], Options]] = {
    "matmul": (_matmul, ("A", "B"), (), {}),
    "linear": (_linear, ("x", "weight"), ("bias",), {}),
    "attention": (_attention, ("q", "k", "v"), (), {"causal": False}),
    "layer_norm": (_layer_norm, ("x",), ("weight", "bias"), {}),
    "layernorm": (_layer_norm, ("x",), ("weight", "bias"), {}),
    "conv2d": (_conv2d, ("x", "weight"), ("bias",), {"stride": 1, "padding": 0, "dilation": 1, "groups": 1}),
    "elementwise": (_elementwise, (), (), {"flops_per_element": 1}),
}
