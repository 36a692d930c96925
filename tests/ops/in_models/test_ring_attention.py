# SPDX-License-Identifier: Apache-2.0
"""Attention whose keys are in parts: merge_attention in one process, ring_attention in two and four."""

from __future__ import annotations

import math
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from profiling_lab.ops import flash_attention, merge_attention, ring_attention
from profiling_lab.ops._attention_in_torch import reference

Python = Callable[..., subprocess.CompletedProcess[str]]


def drawn(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("parts", [1, 2, 3])
def test_parts_merge_to_the_whole(parts: int, generator: torch.Generator) -> None:
    """With the gradients through both results. The sink belongs to one part."""
    q, k, v = (drawn(generator, 2, rows, heads, 8) for rows, heads in ((5, 4), (9, 2), (9, 2)))
    sink = drawn(generator, 4)
    weights = drawn(generator, 2, 5, 4, 8), drawn(generator, 2, 4, 5)

    def gradients(attend: Callable[..., tuple[Tensor, Tensor]]) -> list[Tensor]:
        leaves = [t.clone().requires_grad_() for t in (q, k, v, sink)]
        out, lse = attend(*leaves)
        ((out * weights[0]).sum() + (lse * weights[1]).sum()).backward()
        return [out, lse, *(t.grad for t in leaves)]

    def in_parts(q: Tensor, k: Tensor, v: Tensor, sink: Tensor) -> tuple[Tensor, Tensor]:
        pieces = zip(k.tensor_split(parts, 1), v.tensor_split(parts, 1), strict=True)
        found = [
            flash_attention(q, *piece, sink=None if i else sink, return_lse=True)
            for i, piece in enumerate(pieces)
        ]
        return merge_attention([out for out, _ in found], [lse for _, lse in found])

    whole = gradients(lambda *inputs: reference(*inputs[:3], sink=inputs[3], return_lse=True))
    for found, expected in zip(gradients(in_parts), whole, strict=True):
        torch.testing.assert_close(found, expected)


def test_a_row_that_sees_nothing(generator: torch.Generator) -> None:
    outs = [drawn(generator, 1, 3, 2, 4).requires_grad_() for _ in range(2)]
    lses = [drawn(generator, 1, 2, 3) for _ in range(2)]
    lses[0][..., 0] = lses[1][..., 0] = -math.inf  # in no part
    lses[0][..., 1] = -math.inf  # in one part
    lses = [lse.requires_grad_() for lse in lses]
    out, lse = merge_attention(outs, lses)
    assert bool((out[:, 0] == 0).all()) and bool((lse[..., 0] == -math.inf).all())
    torch.testing.assert_close(out[:, 1], outs[1][:, 1])
    torch.testing.assert_close(lse[..., 1], lses[1][..., 1])
    (out.sum() + lse[..., 1:].sum()).backward()
    assert all(bool(t.grad.isfinite().all()) for t in outs + lses)


def test_without_batch_in_another_dtype_and_twice_differentiable(generator: torch.Generator) -> None:
    outs = [drawn(generator, 3, 2, 4).requires_grad_() for _ in range(2)]
    lses = [drawn(generator, 2, 3).requires_grad_() for _ in range(2)]

    def merged(*tensors: Tensor) -> tuple[Tensor, Tensor]:
        return merge_attention(list(tensors[:2]), list(tensors[2:]))

    assert torch.autograd.gradcheck(merged, (*outs, *lses))
    assert torch.autograd.gradgradcheck(merged, (*outs, *lses))
    half = [out.detach().bfloat16() for out in outs]
    out, lse = merge_attention(half, [lse.detach().float() for lse in lses])
    assert out.dtype == torch.bfloat16 and lse.dtype == torch.float32
    torch.testing.assert_close(out.double(), merged(*outs, *lses)[0], rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda x, lse: merge_attention([], []), "0 outs and 0 lses, expected as many, one or more"),
        (lambda x, lse: merge_attention([x, x], [lse]), "2 outs and 1 lses"),
        (lambda x, lse: merge_attention([x], [lse.mT]), r"an lse has shape \[1, 3, 2\] and its out"),
        (lambda x, lse: ring_attention(x, x[:, 1:], x), r"q has shape \[1, 3, 2, 4\] and k \[1, 2, 2, 4\]"),
        (lambda x, lse: ring_attention(x[0], x[0], x[0]), r"q has shape \[3, 2, 4\]"),
    ],
)
def test_bad_input_is_one_sentence(call: Callable[..., Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=f"^(merge|ring)_attention: {sentence}"):
        call(torch.zeros(1, 3, 2, 4), torch.zeros(1, 2, 3))


available = pytest.mark.skipif(not torch.distributed.is_available(), reason="torch.distributed is not built")


@available
@pytest.mark.parametrize("processes", [2, 4])
def test_a_sequence_over_processes(processes: int, python_warm: Python) -> None:
    done = python_warm(Path(__file__).with_name("ring_workers.py"), str(processes))
    assert done.returncode == 0, done.stderr
    what = ["full", "causal", "grouped queries, scale, softcap", "bfloat16", "a group of some"]
    assert [line for line in done.stdout.splitlines() if line.startswith("proven")] == [
        f"proven {one}" for one in what
    ]


@available
def test_one_process_autocast_and_what_is_said(python_warm: Python) -> None:
    program = """
import torch
from torch import distributed
from profiling_lab.ops import flash_attention, ring_attention
distributed.init_process_group('gloo', store=distributed.HashStore(), rank=0, world_size=1)
q = torch.randn(1, 6, 2, 8, requires_grad=True)
with torch.autocast("cpu"):
    out = ring_attention(q, q, q, causal=True)
    expected = flash_attention(q, q, q, causal=True)
assert out.dtype == torch.bfloat16
torch.testing.assert_close(out, expected)
out.float().square().sum().backward()
found, q.grad = q.grad, None
expected.float().square().sum().backward()
torch.testing.assert_close(found, q.grad, rtol=2e-2, atol=2e-2)
distributed.destroy_process_group()
"""
    done = python_warm(program, PROFILING_LAB_EXPLAIN="1")
    assert done.returncode == 0, done.stderr
    assert "profiling_lab: ring_attention: flash_attention of each part, over 1 processes" in done.stderr
