# SPDX-License-Identifier: Apache-2.0
"""Floating-point operations that an operator's formula needs, 2 per multiply-add.

Matrix products, convolutions and attention alone: they have a formula, and nothing else comes near the
arithmetic peak of a GPU. None stands for every other operator: not counted, which is not zero.

torch's FlopCounterMode counts every pair of a query and a key. Here a causal mask halves the pairs, because
fused kernels skip the masked ones, so the numbers of causal attention differ from it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from profiling_lab.work.call import Call

Formula = Callable[[Call], int]


def flops_of(call: Call) -> int | None:
    """None: the operator is none of those that are counted."""
    formula = _FORMULAS.get(call.name)
    if formula is None:
        return None
    try:
        return formula(call)
    except (KeyError, IndexError, AttributeError, TypeError):  # a version with another signature
        return None


def _product(*names: str) -> Formula:
    """A product whose first factor has the summed dimension last: 2 k for each element of the result."""

    def count(call: Call) -> int:
        first = call.tensor(*names)
        return int(2 * _result(call).numel() * first.shape[-1])

    return count


def _result(call: Call) -> Any:
    return call.results[0]


def _summed_products(call: Call) -> int:
    first, second = call.tensor("batch1"), call.tensor("batch2")
    return int(2 * first.numel() * second.shape[-1])


def _dot(call: Call) -> int:
    return int(2 * call.tensor("self").numel())


def _convolution(call: Call) -> int:
    return _of_weights(call.tensor("input", "self"), call.tensor("weight"), _result(call), call)


def _convolution_backward(call: Call) -> int:
    once = _of_weights(call.tensor("input"), call.tensor("weight"), call.tensor("grad_output"), call)
    return once * sum(map(bool, call.values["output_mask"][:2]))


def _of_weights(given: Any, weight: Any, made: Any, call: Call) -> int:
    """Each element meets one filter per channel of its group: of the input if transposed, else of the
    output.
    """
    element = given if call.values.get("transposed") else made
    return int(2 * element.numel() * weight.shape[1] * math.prod(weight.shape[2:]))


def _rnn(products: int) -> Formula:
    """cuDNN's: every weight matrix once per element of the batch and of the sequence."""

    def count(call: Call) -> int:
        weights = next(a.tensors for a in call.arguments if a.name == "weight")
        rows = call.tensor("input").numel() // call.tensor("input").shape[-1]
        return int(2 * products * rows * sum(w.numel() for w in weights if w.dim() == 2))

    return count


_HEADS_FIRST = (-3, -2)  # (batch, heads, rows, head_dim): the dimensions of heads and rows
_ROWS_FIRST = (-2, -3)


def _attention(over_keys: int, over_values: int, layout: tuple[int, int]) -> Formula:
    """over_keys, over_values: how many products with the head_dim of q and k, and with that of v."""

    def count(call: Call) -> int:
        heads, rows = layout
        q, k, v = call.tensor("query", "q"), call.tensor("key", "k"), call.tensor("value", "v")
        width = over_keys * q.shape[-1] + over_values * v.shape[-1]
        sequences = call.values.get("cum_seq_q", call.values.get("cu_seqlens_q"))
        if sequences is None:
            pairs = q.shape[0] * _pairs(q.shape[rows], k.shape[rows], *_window(call))
        else:
            # The lengths are on the GPU: they are taken as equal, because reading them would wait for it.
            number = max(sequences.numel() - 1, 1)
            tokens = [x.numel() // (x.shape[-1] * x.shape[heads]) / number for x in (q, k)]
            pairs = number * _pairs(*tokens, *_window(call))
        return int(2 * q.shape[heads] * pairs * width)

    return count


def _window(call: Call) -> tuple[int | None, int | None, bool]:
    """How many keys before and after its own a query sees (None: all), and whether the last query and the
    last key belong together (else the first ones).
    """
    values = call.values
    left = values.get("window_left", values.get("window_size_left"))
    right = values.get("window_right", values.get("window_size_right"))
    left, right = (None if side is None or side < 0 else int(side) for side in (left, right))
    custom = values.get("custom_mask_type", 0)
    if values.get("is_causal") or values.get("causal") or custom:
        right = 0
    at_the_end = custom == 2 or call.name.startswith("profiling_lab::") or "_flash_attention" in call.name
    return left, right, at_the_end


@lru_cache(maxsize=256)
def _pairs(rows: float, keys: float, left: int | None, right: int | None, at_the_end: bool) -> float:
    """How many pairs of a query and a key are not masked."""
    if left is None and right is None:
        return rows * keys
    shift = int(keys) - int(rows) if at_the_end else 0
    total = 0
    for row in range(int(rows)):
        first = 0 if left is None else max(row + shift - left, 0)
        last = keys if right is None else min(row + shift + right + 1, keys)
        total += max(int(last) - first, 0)
    return total


def _heavy(products: int) -> Formula:
    """HeavyLayer multiplies with three square matrices."""

    def count(call: Call) -> int:
        x = call.arguments[0].tensors[0]
        return int(2 * products * x.numel() * x.shape[-1])

    return count


_SDPA = ("flash", "efficient", "cudnn", "fused")
_FORMULAS: dict[str, Formula] = {
    "aten::mm": _product("self"),
    "aten::addmm": _product("mat1"),
    "aten::_addmm_activation": _product("mat1"),
    "aten::bmm": _product("self"),
    "aten::baddbmm": _product("batch1"),
    "aten::addbmm": _summed_products,
    "aten::mv": _product("self"),
    "aten::addmv": _product("mat"),
    "aten::dot": _dot,
    "aten::vdot": _dot,
    "aten::_scaled_mm": _product("self"),
    "aten::_int_mm": _product("self"),
    "aten::_grouped_mm": _product("self"),
    "aten::convolution": _convolution,
    "aten::_convolution": _convolution,
    "aten::cudnn_convolution": _convolution,
    "aten::convolution_overrideable": _convolution,
    "aten::_slow_conv2d_forward": _convolution,
    "aten::convolution_backward": _convolution_backward,
    "aten::_cudnn_rnn": _rnn(1),
    "aten::_cudnn_rnn_backward": _rnn(2),
    "aten::_flash_attention_forward": _attention(1, 1, _ROWS_FIRST),
    "aten::_flash_attention_backward": _attention(3, 2, _ROWS_FIRST),
    "aten::_efficient_attention_forward": _attention(1, 1, _ROWS_FIRST),
    "aten::_efficient_attention_backward": _attention(3, 2, _ROWS_FIRST),
    "profiling_lab::attention_fwd": _attention(1, 1, _ROWS_FIRST),
    "profiling_lab::attention_bwd": _attention(3, 2, _ROWS_FIRST),
    "profiling_lab::ladder_attention": _attention(1, 1, _ROWS_FIRST),
    "profiling_lab::ladder_attention_backward": _attention(3, 2, _ROWS_FIRST),
    "profiling_lab::heavy_layer_slow": _heavy(3),
    "profiling_lab::heavy_layer_fast": _heavy(3),
    "profiling_lab::heavy_layer_fast_keeping": _heavy(3),
    "profiling_lab::heavy_layer_backward": _heavy(6),
    **{
        f"aten::_scaled_dot_product_{kind}_attention{suffix}{end}": _attention(*products, _HEADS_FIRST)
        for kind in _SDPA
        for suffix in ("", "_for_cpu", "_overrideable")
        for end, products in (("", (1, 1)), ("_backward", (3, 2)))
    },
}
COUNTED = frozenset(_FORMULAS)
