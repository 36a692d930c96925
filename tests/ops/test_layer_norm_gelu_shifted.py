# SPDX-License-Identifier: Apache-2.0
"""Rows of layer_norm_gelu that are longer than packed ones and have no whole 16-byte vectors, or whole
ones that no block or cluster divides evenly: around the widths at which the kernels change.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from profiling_lab.ops import layer_norm_gelu
from profiling_lab.ops.layer_norm_gelu import CASE, reference

pytestmark = pytest.mark.gpu

AROUND = [d + k for d in (2048, 4096, 8192, 16384, 65536) for k in (-1, 1)]
OTHERS = [
    1033,
    2050,
    3001,
    8200,
    12289,
    16392,
    50257,
    98304,
    131071,
    131072,
]  # odd, even, prime, whole vectors
NAMES = ("y", "dx", "dweight", "dbias")


def run(function: Any, inputs: tuple[Tensor, ...], dy: Tensor) -> list[Tensor]:
    leaves = [t.detach().requires_grad_() for t in inputs]
    y = function(*leaves)
    return [y.detach(), *torch.autograd.grad(y, leaves, dy.to(y.dtype))]


def rows_of(d: int) -> tuple[int, ...]:
    """One; as many as start at different distances from 16 bytes, and one; more than are on a GPU at once."""
    return (1, 9, max(37, (1 << 23) // d + 5))


@pytest.mark.parametrize("d", AROUND + OTHERS)
@pytest.mark.parametrize("dtype_name", ["bfloat16", "float32", "float16"])
def test_shifted_rows(generator: torch.Generator, dtype_name: str, d: int, within: Any, poison: Any) -> None:
    dtype, device = getattr(torch, dtype_name), torch.device("cuda")
    for rows in rows_of(d):
        x, weight, bias = CASE.make_inputs((rows, d), dtype, device, generator)
        dy = torch.randn(rows, d, generator=generator).to(device, dtype)
        truth = run(reference, tuple(t.double() for t in (x, weight, bias)), dy)
        eager = run(reference, (x, weight, bias), dy)
        poison(x)
        ours = run(layer_norm_gelu, (x, weight, bias), dy)
        for k, what in enumerate(NAMES):
            within(ours[k], truth[k], eager[k], 2 if k == 0 else 3, f"{what}, {rows} rows")


@pytest.mark.parametrize("offset", [1, 4, 8])
@pytest.mark.parametrize("d", [2049, 8200, 16385])
def test_a_row_next_to_nan_and_infinity(generator: torch.Generator, d: int, offset: int, within: Any) -> None:
    """x and dy are rows in the middle of tensors that are NaN elsewhere; 8 elements of bf16 are 16 bytes."""
    device, dtype, rows = torch.device("cuda"), torch.bfloat16, 17
    x, weight, bias = CASE.make_inputs((rows, d), dtype, device, generator)
    dy = torch.randn(rows, d, generator=generator).to(device, dtype)
    truth = run(reference, tuple(t.double() for t in (x, weight, bias)), dy)
    eager = run(reference, (x, weight, bias), dy)

    def amid_nan(t: Tensor) -> Tensor:
        whole = torch.full((offset + t.numel() + 64,), float("nan"), device=device, dtype=dtype)
        return whole[offset : offset + t.numel()].view(t.shape).copy_(t)

    ours = run(layer_norm_gelu, (amid_nan(x), weight, bias), amid_nan(dy))
    for k, what in enumerate(NAMES):
        within(ours[k], truth[k], eager[k], 2 if k == 0 else 3, what)


@pytest.mark.parametrize("d", [2049, 8200, 65537])
def test_a_bad_row_spoils_no_other(generator: torch.Generator, d: int) -> None:
    """A vector that two rows share has elements of both: the neighbours of a row of NaN keep their bits."""
    device, dtype, rows, bad = torch.device("cuda"), torch.bfloat16, 33, 16
    x, weight, bias = CASE.make_inputs((rows, d), dtype, device, generator)
    dy = torch.randn(rows, d, generator=generator).to(device, dtype)
    good = run(layer_norm_gelu, (x, weight, bias), dy)
    x[bad] = float("nan")
    others = torch.arange(rows, device=device) != bad
    for before, after in zip(good[:2], run(layer_norm_gelu, (x, weight, bias), dy)[:2], strict=True):
        assert torch.equal(before[others], after[others])
        assert after[bad].isnan().all()


@pytest.mark.parametrize("d", [2049, 16385, 131071])
def test_weight_gradients_have_the_same_bits_in_every_run(generator: torch.Generator, d: int) -> None:
    device, dtype = torch.device("cuda"), torch.bfloat16
    rows = rows_of(d)[-1]
    inputs = CASE.make_inputs((rows, d), dtype, device, generator)
    dy = torch.randn(rows, d, generator=generator).to(device, dtype)
    first = run(layer_norm_gelu, inputs, dy)
    for _ in range(10):
        for a, b in zip(first, run(layer_norm_gelu, inputs, dy), strict=True):
            assert torch.equal(a, b)
