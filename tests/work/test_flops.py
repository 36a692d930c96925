# SPDX-License-Identifier: Apache-2.0
"""FLOPs of products, convolutions, attention: against brute force, and torch's counter where it is right."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional

from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from profiling_lab.work import WorkCounter  # noqa: E402

META = torch.device("meta")


def counted(call: Callable[[], Any]) -> int:
    with WorkCounter() as counter:
        call()
    assert not counter.failures
    return sum(one.work.flops or 0 for one in counter.calls)


def of_torch(call: Callable[[], Any]) -> int:
    with FlopCounterMode(display=False) as counter:
        call()
    return int(counter.get_total_flops())


def empty(*shape: int, **options: Any) -> Any:
    return torch.empty(*shape, device=META, **options)


PRODUCTS: dict[str, Callable[[], Any]] = {
    "mm": lambda: empty(3, 5) @ empty(5, 7),
    "bmm": lambda: empty(2, 3, 5) @ empty(2, 5, 7),
    "broadcast": lambda: empty(4, 2, 3, 5) @ empty(5, 7),
    "addmm": lambda: torch.addmm(empty(7), empty(3, 5), empty(5, 7)),
    "baddbmm": lambda: torch.baddbmm(empty(2, 3, 7), empty(2, 3, 5), empty(2, 5, 7)),
    "linear": lambda: F.linear(empty(4, 3, 5), empty(7, 5), empty(7)),
    "conv2d": lambda: F.conv2d(empty(2, 6, 9, 8), empty(4, 6, 3, 2), empty(4), stride=2, padding=1),
    "conv1d": lambda: F.conv1d(empty(2, 6, 9), empty(4, 6, 3)),
    "conv3d": lambda: F.conv3d(empty(2, 6, 5, 6, 7), empty(4, 6, 3, 3, 3), padding=1),
    "groups": lambda: F.conv2d(empty(2, 6, 9, 8), empty(6, 1, 3, 3), groups=6),
    "transposed": lambda: F.conv_transpose2d(empty(2, 6, 9, 8), empty(6, 4, 3, 3), stride=2),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_and_convolutions_are_those_of_torchs_counter(name: str) -> None:
    assert counted(PRODUCTS[name]) == of_torch(PRODUCTS[name]) > 0


def test_products_that_torchs_counter_leaves_out() -> None:
    assert counted(lambda: empty(3, 5) @ empty(5)) == 2 * 3 * 5
    assert counted(lambda: empty(5) @ empty(5)) == 2 * 5
    assert counted(lambda: torch.addbmm(empty(3, 7), empty(2, 3, 5), empty(2, 5, 7))) == 2 * 2 * 3 * 5 * 7


@pytest.mark.parametrize(
    ("transposed", "groups"), [(False, 1), (False, 2), (True, 1), (True, 2)], ids=lambda v: str(v)
)
def test_each_gradient_of_a_convolution_costs_what_its_forward_does(transposed: bool, groups: int) -> None:
    weight = empty(4, 6 // groups, 3, 3, requires_grad=True)
    if transposed:
        weight = empty(6, 4 // groups, 3, 3, requires_grad=True)
    function: Any = F.conv_transpose2d if transposed else F.conv2d
    for grad in (True, False):
        x = empty(2, 6, 9, 8, requires_grad=grad)
        out = function(x, weight, groups=groups)
        forward = counted(lambda x=x: function(x, weight, groups=groups))
        backward = counted(lambda out=out: out.sum().backward())
        assert backward == (1 + grad) * forward > 0


def brute_force(rows: int, keys: int, causal: bool) -> int:
    return sum(1 for row in range(rows) for key in range(keys) if not causal or key <= row)


@pytest.mark.parametrize("causal", [False, True])
def test_attention_counts_the_pairs_that_are_not_masked(causal: bool) -> None:
    """On the CPU it is the fused operator; torch's counter has no formula for it, and none knows masks."""
    q, k, v = (torch.randn(2, 3, 16, 8, requires_grad=True) for _ in range(3))
    with WorkCounter() as counter:
        F.scaled_dot_product_attention(q, k, v, is_causal=causal).sum().backward()
    forward, backward = (one for one in counter.calls if "attention" in one.name)
    pairs = 2 * 3 * brute_force(16, 16, causal)
    assert forward.work.flops == 2 * pairs * (8 + 8)
    assert backward.work.flops == 2 * pairs * 5 * 8
    assert (forward.work.kind, backward.work.kind) == ("attention", "attention backward")


def call_of(name: str, *args: Any, **kwargs: Any) -> int | None:
    """The FLOPs of an operator that this machine cannot run, from its schema and arguments."""
    from profiling_lab.work.call import Call
    from profiling_lab.work.flops import flops_of

    packet = getattr(torch.ops.aten, name)
    return flops_of(Call.of(packet.default, args, kwargs, args[0]))


@pytest.mark.parametrize("kind", ["flash", "efficient", "cudnn"])
def test_fused_attention_has_heads_before_rows(kind: str) -> None:
    """The layout that was swapped in counters: 3 heads of 16 rows are not 16 heads of 3 rows."""
    q, k = empty(2, 3, 16, 8), empty(2, 3, 20, 8)
    more = () if kind == "flash" else (None, True)
    flops = call_of(f"_scaled_dot_product_{kind}_attention", q, k, k, *more)
    assert flops == 2 * 2 * 3 * 16 * 20 * (8 + 8)


def test_the_functions_below_have_rows_before_heads() -> None:
    q, k = empty(2, 16, 3, 8), empty(2, 20, 3, 8)
    assert call_of("_flash_attention_forward", q, k, k, None, None, 16, 20, 0.0, False, False) == (
        2 * 2 * 3 * 16 * 20 * (8 + 8)
    )
    causal = call_of("_flash_attention_forward", q, k, k, None, None, 16, 20, 0.0, True, False)
    at_the_end = sum(1 for row in range(16) for key in range(20) if key <= row + 4)
    assert causal == 2 * 2 * 3 * at_the_end * (8 + 8)
    top_left = call_of("_efficient_attention_forward", q, k, k, None, None, None, 16, 20, 0.0, 1)
    assert top_left == 2 * 2 * 3 * brute_force(16, 20, True) * (8 + 8)


def test_our_attention_with_a_window_and_grouped_queries() -> None:
    flash_attention = pytest.importorskip("profiling_lab.ops").flash_attention
    q = torch.randn(2, 16, 4, 8, dtype=torch.float32)
    k = torch.randn(2, 16, 2, 8, dtype=torch.float32)
    pairs = sum(1 for row in range(16) for key in range(16) if row - 3 <= key <= row)
    assert counted(lambda: flash_attention(q, k, k, causal=True, window=(3, 0))) == 2 * 2 * 4 * pairs * 16


def test_other_operators_have_no_flops() -> None:
    with WorkCounter() as counter:
        F.gelu(torch.randn(4, 4)).sum()
    assert [one.work.flops for one in counter.calls[-2:]] == [None, None]
    assert all(one.work.math == "" for one in counter.calls)


@pytest.mark.parametrize(
    ("dtype", "precision", "math_name"),
    [
        (torch.bfloat16, "highest", "bfloat16"),
        (torch.float32, "highest", "float32"),
        (torch.float32, "high", "tf32"),
    ],
)
def test_what_products_are_done_in(dtype: Any, precision: str, math_name: str) -> None:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        with WorkCounter() as counter:
            empty(3, 5, dtype=dtype) @ empty(5, 7, dtype=dtype)
    finally:
        torch.set_float32_matmul_precision(before)
    assert [one.work.math for one in counter.calls if one.work.flops] == [math_name]


def test_a_recurrent_layer_multiplies_each_weight_once_per_row() -> None:
    weights = [empty(32, 8), empty(32, 8), empty(32), empty(32)]
    x, state = empty(5, 2, 8), empty(1, 2, 8)
    flops = call_of(
        "_cudnn_rnn", x, weights, 4, None, state, state, 2, 8, 0, 1, False, 0.0, True, False, [], None
    )
    assert flops == 2 * (5 * 2) * 2 * math.prod((32, 8))
