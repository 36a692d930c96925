# SPDX-License-Identifier: Apache-2.0
"""layer_norm_gelu of so few rows that on Hopper one kernel makes all gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from profiling_lab.ops.layer_norm_gelu import CASE, layer_norm_gelu, layer_norm_gelu_residual, reference


def with_gradients(function: Any, inputs: tuple[Tensor, ...], *gradients: Tensor) -> list[Tensor]:
    """The outputs, then the gradients of all inputs."""
    leaves = [t.detach().clone().requires_grad_() for t in inputs]
    outputs = function(*leaves)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    given = [g.to(o.dtype) for g, o in zip(gradients, outputs, strict=True)]
    return [*(o.detach() for o in outputs), *torch.autograd.grad(outputs, leaves, given)]


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("dtype_name", ["float32", "bfloat16", "float16"])
def test_few_rows(
    device: torch.device, generator: torch.Generator, dtype_name: str, rows: int, within: Any
) -> None:
    """On Hopper one backward kernel, whose blocks add up the gradients of weight and bias together: with a
    residual and without, the same bits whenever it runs.
    """
    dtype = getattr(torch, dtype_name)
    for d in (256, 512, 768, 4096, 8192):
        x, weight, bias = CASE.make_inputs((rows, d), dtype, device, generator)
        residual, dy, dsum = (torch.randn(rows, d, generator=generator).to(device, dtype) for _ in range(3))
        got = with_gradients(layer_norm_gelu_residual, (x, residual, weight, bias), dy, dsum)
        total = x + residual
        truth = with_gradients(reference, tuple(t.double() for t in (total, weight, bias)), dy)
        eager = with_gradients(reference, (total, weight, bias), dy)
        plain = with_gradients(layer_norm_gelu, (total, weight, bias), dy)
        for k, what in enumerate(("y", "dx", "dweight", "dbias")):
            within(plain[k], truth[k], eager[k], 2 if k == 0 else 3, f"{what}, d = {d}")
        within(got[2], truth[1] + dsum.double(), eager[1] + dsum, 3, f"dx, residual, d = {d}")
        for k, what in ((2, "dweight"), (3, "dbias")):
            within(got[k + 2], truth[k], eager[k], 3, f"{what}, residual, d = {d}")
        for _ in range(5):
            again = with_gradients(layer_norm_gelu, (total, weight, bias), dy)
            assert all(torch.equal(a, b) for a, b in zip(plain, again, strict=True)), f"bits, d = {d}"
