# SPDX-License-Identifier: Apache-2.0
"""estimate_arithmetic_intensity against torch's own counter, and by hand."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from profiling_lab.errors import UsageError
from profiling_lab.utils import estimate_arithmetic_intensity as estimate

F = torch.nn.functional


def test_the_two_calls_of_the_chapter() -> None:
    m, k, n = 64, 32, 16
    matmul = estimate("matmul", {"A": (m, k), "B": (k, n)})
    assert matmul == 2 * m * n * k / ((m * k + k * n + m * n) * 4)
    assert estimate("layernorm", {"x": (8, 512)}) == 10 / (2 * 4)
    assert estimate("layernorm", {"x": (8, 512)}) == estimate("layer_norm", {"x": (8, 512)})


@pytest.mark.parametrize(
    ("op", "shapes", "options", "run"),
    [
        ("matmul", {"A": (5, 3, 4), "B": (5, 4, 7)}, {}, lambda A, B: A @ B),
        ("linear", {"x": (2, 3, 8), "weight": (5, 8)}, {}, lambda x, weight: F.linear(x, weight)),
        (
            "attention",
            {"q": (2, 3, 16, 8), "k": (2, 3, 32, 8), "v": (2, 3, 32, 8)},
            {},
            lambda q, k, v: F.scaled_dot_product_attention(q, k, v),
        ),
        (
            "conv2d",
            {"x": (2, 6, 11, 9), "weight": (4, 3, 3, 2)},
            {"stride": 2, "padding": 1, "groups": 2},
            lambda x, weight: F.conv2d(x, weight, stride=2, padding=1, groups=2),
        ),
        (
            "conv2d",
            {"x": (1, 2, 12, 12), "weight": (4, 2, 3, 3)},
            {"dilation": 3},
            lambda x, weight: F.conv2d(x, weight, dilation=3),
        ),
    ],
)
def test_counts_are_those_of_torch(
    op: str, shapes: dict[str, Any], options: dict[str, int], run: Any
) -> None:
    tensors = {name: torch.zeros(shape) for name, shape in shapes.items()}
    # SDPA's fused kernel on the CPU is one that the counter does not know.
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        out = run(**tensors)
    found = estimate(op, shapes, **options)
    assert found.flops == counter.get_total_flops()
    moved = [*tensors.values(), out]
    assert found.bytes_moved == sum(tensor.numel() for tensor in moved) * 4
    assert found == found.flops / found.bytes_moved


def test_dtypes_change_the_bytes_alone() -> None:
    shapes = {"A": (8, 8), "B": (8, 8)}
    single, half = estimate("matmul", shapes), estimate("matmul", shapes, torch.bfloat16)
    assert half == 2 * single and half.flops == single.flops
    assert estimate("matmul", shapes, "float16") == half


def test_bias_causal_broadcast_and_cost_per_element() -> None:
    linear = {"x": (3, 4), "weight": (5, 4)}
    with_bias = estimate("linear", linear | {"bias": (5,)})
    assert with_bias.flops == estimate("linear", linear).flops + 15
    assert with_bias.bytes_moved == estimate("linear", linear).bytes_moved + 5 * 4
    attention = {name: (1, 2, 16, 8) for name in "qkv"}
    assert estimate("attention", attention, causal=True) == estimate("attention", attention) / 2
    gelu = estimate("elementwise", {"x": (4, 1), "y": (5,)}, flops_per_element=8)
    assert (gelu.flops, gelu.bytes_moved) == (8 * 20, (4 + 5 + 20) * 4)


def test_shared_key_heads_are_moved_once() -> None:
    shapes = {"q": (1, 8, 16, 4), "k": (1, 2, 16, 4), "v": (1, 2, 16, 4)}
    assert estimate("attention", shapes).bytes_moved == (2 * 8 + 2 * 2) * 16 * 4 * 4


def test_it_is_a_number_that_can_be_copied() -> None:
    found = estimate("elementwise", {"x": (4,)})
    for twin in (copy.deepcopy(found), pickle.loads(pickle.dumps(found))):
        assert twin == found and twin.flops == 4


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (("fft", {"x": (4,)}), {}, "unknown op 'fft', expected one of attention, conv2d"),
        (("matmul", {"A": (4, 4)}), {}, "matmul expected the shapes A, B; got A"),
        (("matmul", {"A": (4, 3), "B": (4, 3)}), {}, "K is 3 in one and 4 in the other"),
        (("matmul", {"A": (2, 4, 3), "B": (5, 3, 3)}), {}, "2 and 5 do not broadcast"),
        (("matmul", {"A": (4,), "B": (4, 3)}), {}, "cannot have the shapes"),
        (
            ("linear", {"x": (4,), "weight": (4, 4), "biass": (4,)}),
            {},
            "optionally bias; got x, weight, biass",
        ),
        (("layer_norm", {"x": (0, 4)}), {}, "sizes of at least 1"),
        (("layer_norm", {"x": (4,)}, "float31"), {}, "unknown dtype 'float31', expected one of float64"),
        (("layer_norm", {"x": (4,)}), {"causal": True}, "no option causal; it has none"),
        (("elementwise", {}), {}, "expected the shapes of its inputs; got none"),
        (("conv2d", {"x": (1, 3, 4, 4), "weight": (1, 2, 3, 3)}), {}, "number of channels is 3 in one and 2"),
        (("conv2d", {"x": (1, 1, 2, 2), "weight": (1, 1, 3, 3)}), {}, "a kernel of 3 does not fit into 2"),
        (("conv2d", {"x": (1, 1, 2, 2), "weight": (1, 1, 1, 1)}), {"stride": 0}, "cannot have"),
    ],
)
def test_what_cannot_be_counted_is_refused(arguments: Any, options: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        estimate(*arguments, **options)
