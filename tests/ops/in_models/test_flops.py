# SPDX-License-Identifier: Apache-2.0
"""FlopCounterMode counts the ops as it counts the same mathematics in torch."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from profiling_lab.ops import OPS, flash_attention
from profiling_lab.ops.case import OpCase, Variant
from profiling_lab.ops.flops import FORMULAS

CASES: list[OpCase] = [import_module(f"profiling_lab.ops.{slug}").CASE for slug in OPS]
VARIANTS = [pytest.param(case, v, id=f"{case.slug}-{v.name}") for case in CASES for v in case.variants]


def counted(function: Callable[[], Any]) -> tuple[int, int]:
    """FLOPs of the function, and of the backward of its first result."""
    with FlopCounterMode(display=False) as forward:
        y = function()
    y = y[0] if isinstance(y, tuple) else y
    with FlopCounterMode(display=False) as backward:
        if y.requires_grad:
            y.backward(torch.ones_like(y))
    return forward.get_total_flops(), backward.get_total_flops()


@pytest.mark.parametrize(("case", "variant"), VARIANTS)
def test_as_the_plain_twin(
    case: OpCase, variant: Variant, generator: torch.Generator, leaves: Callable[..., tuple[Tensor, ...]]
) -> None:
    shape = case.small_shape
    inputs = case.make_inputs(shape, torch.float32, torch.device("cpu"), generator)
    ours = counted(lambda: variant.call(*leaves(inputs)))
    twin = counted(lambda: variant.reference(*leaves(inputs)))
    if case.slug in ("attention", "ladder_attention"):  # the twin keeps the scores; SDPA computes them again
        twin = twin[0], twin[1] * 5 // 4
    assert ours == twin
    assert (twin[0] > 0) == (case.slug != "layer_norm_gelu")  # of which torch counts nothing


@pytest.mark.parametrize("heads", [2, 6])
@pytest.mark.parametrize("options", [{}, {"causal": True}, {"window": 3, "softcap": 2.0}], ids=str)
def test_as_torchs_attention(heads: int, options: dict[str, Any]) -> None:
    """With grouped queries too: the query heads count. Masks do not change the number."""
    q = torch.empty(3, 17, heads, 8, device="meta", requires_grad=True)
    k, v = (torch.empty(3, 29, 2, 8, device="meta", requires_grad=True) for _ in range(2))
    # Equal heads: the counter of torch 2.11 knows no others.
    of_torch = [t.repeat_interleave(heads // t.shape[2], 2).transpose(1, 2) for t in (q, k, v)]

    def sdpa() -> tuple[int, int]:
        aten = torch.ops.aten
        with FlopCounterMode(display=False) as forward:
            results = aten._scaled_dot_product_flash_attention(*of_torch)
        with FlopCounterMode(display=False) as backward:
            out, lse, cu_q, cu_k, most_q, most_k, seed, offset, _ = results
            rest = (out, lse, cu_q, cu_k, most_q, most_k, 0.0, False, seed, offset)
            aten._scaled_dot_product_flash_attention_backward(torch.empty_like(out), *of_torch, *rest)
        return forward.get_total_flops(), backward.get_total_flops()

    assert counted(lambda: flash_attention(q, k, v, **options)) == sdpa()


def test_lengths(generator: torch.Generator) -> None:
    """A packed batch counts what its sequences count one by one; rows behind the last offset are free."""
    rows, keys = (5, 0, 9), (7, 3, 9)
    q = torch.randn(20, 4, 8, generator=generator, requires_grad=True)
    k, v = (torch.randn(25, 2, 8, generator=generator, requires_grad=True) for _ in range(2))
    cu_q, cu_k = (torch.tensor([0, *n]).cumsum(0).int() for n in (rows, keys))
    packed = counted(lambda: flash_attention(q, k, v, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, causal=True))
    each = [
        counted(lambda n=n, m=m: flash_attention(q[None, :n], k[None, :m], v[None, :m]))
        for n, m in zip(rows, keys, strict=True)
    ]
    assert packed == tuple(map(sum, zip(*each, strict=True)))
    assert packed[1] == packed[0] * 5 // 2 == 5 * 4 * 8 * (5 * 7 + 9 * 9) * 2 * 1

    def of_meta() -> Any:  # as many pairs as sequences of equal length have
        tensors = (t.detach().to("meta") for t in (q, k, v))
        offsets = {"cu_seqlens_q": cu_q.to("meta"), "cu_seqlens_k": cu_k.to("meta")}
        return flash_attention(*tensors, **offsets)

    assert counted(of_meta)[0] == 4 * 4 * 8 * (20 * 25 // 3)


def test_every_op_has_its_formula() -> None:
    names = {
        name.split("::")[1].split(".")[0]
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("profiling_lab::") and not name.startswith("profiling_lab::test_")
    }
    assert names == set(FORMULAS)


def test_the_counter_is_not_imported(python: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    """Its import takes 0.25 s where Triton is installed. Whoever imports it gets the counts."""
    program = """
import sys
from profiling_lab.ops import flash_attention
import torch
q = torch.zeros(1, 2, 3, 4)
flash_attention(q, q, q)
print("torch.utils.flop_counter" in sys.modules)
from torch.utils.flop_counter import FlopCounterMode
with FlopCounterMode(display=False) as mode:
    flash_attention(q, q, q)
print(mode.get_total_flops())
"""
    assert python(program).stdout.split() == ["False", str(4 * 1 * 2 * 2 * 3 * 4)]
