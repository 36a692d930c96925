# SPDX-License-Identifier: Apache-2.0
"""flash_attention's inputs, and its results against the formulas in float64."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from profiling_lab.ops.attention import flash_attention, reference  # noqa: E402


def tensors(
    device: str,
    dtype: Any,
    batch: int,
    rows: int,
    keys: int,
    heads: int,
    kv_heads: int,
    dim: int,
    seed: int = 0,
) -> list[Any]:
    generator = torch.Generator().manual_seed(seed)
    shapes = [(batch, rows, heads, dim), (batch, keys, kv_heads, dim), (batch, keys, kv_heads, dim)]
    values = [torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in shapes]
    return [value.to(device=device, dtype=dtype).requires_grad_() for value in values]


def finite(lse: Any) -> Any:
    return torch.where(torch.isfinite(lse), lse, torch.zeros_like(lse))


def results(call: Any, inputs: list[Any], **options: Any) -> list[Any]:
    """Output, LSE and the gradients of everything, from a loss that uses both outputs with fixed weights."""
    out, lse = call(*inputs[:3], return_lse=True, **options)
    weight = weight_of(out)
    slope = torch.linspace(1, -1, lse.numel(), device=lse.device).reshape(lse.shape).to(lse.dtype)
    loss = (out * weight).sum() + (finite(lse) * slope).sum()
    return [out, lse, *torch.autograd.grad(loss, inputs)]


def weight_of(out: Any) -> Any:
    """The gradient of `out` in the loss of `results`."""
    return torch.linspace(-1, 1, out.numel(), device=out.device).reshape(out.shape).to(out.dtype)


def rounding_of_dsink(out: Any, lse: Any, dtype: Any, sink: Any) -> float:
    """Five standard deviations: a row adds -P_sink (D - dLSE), and D = sum(dO O) takes the rounded O."""
    if sink is None or dtype == torch.float64:
        return 0.0
    share = torch.exp(sink.double()[:, None] - finite(lse)).nan_to_num(0.0)  # (batch, heads, rows)
    terms = (share.transpose(1, 2)[..., None] * weight_of(out) * out).detach()
    deviation = torch.finfo(dtype).eps / 2 / 3**0.5
    return float(5 * deviation * terms.square().sum((0, 1, 3)).sqrt().max())


ROUNDINGS = {torch.finfo(getattr(torch, name)).eps: count for name, count in
             (("bfloat16", 1), ("float16", 1), ("float32", 64), ("float64", 64))}  # fmt: skip


def check_against_float64(inputs: list[Any], factor: float = 2.0, **options: Any) -> None:
    """Our error is at most `factor` times torch's own in the same dtype, plus roundings.

    Where one key is seen torch has no error at all, and dS = P (dP - D) is a difference of two sums that are
    equal up to their rounding. float64 is its own truth, so there only the roundings count.
    """
    dtype = inputs[0].dtype

    def run(call: Any, to: Any) -> list[Any]:
        copies = [x.detach().to(to).requires_grad_() for x in inputs]
        extra = dict(options)
        if "sink" in options:
            wide = torch.float64 if to == torch.float64 else torch.float32
            extra["sink"] = options["sink"].detach().to(wide).requires_grad_()
            copies.append(extra["sink"])
        return results(call, copies, **extra)

    ours, same, exact = run(flash_attention, dtype), run(reference, dtype), run(reference, torch.float64)
    assert torch.equal(torch.isfinite(ours[1]), torch.isfinite(exact[1])), (
        "rows that see nothing have LSE -inf"
    )
    allowed = {"dsink": rounding_of_dsink(exact[0], exact[1], dtype, options.get("sink"))}
    for name, a, b, c in zip(("out", "lse", "dq", "dk", "dv", "dsink"), ours, same, exact, strict=False):
        if c.numel() == 0:
            assert a.shape == c.shape
            continue
        a, b, c = (finite(x.double()) if name == "lse" else x.double() for x in (a, b, c))
        error, theirs, top = ((x - c).abs().max().item() for x in (a, b, torch.zeros_like(c)))
        eps = torch.finfo(torch.float32 if name in ("lse", "dsink") and dtype != torch.float64 else dtype).eps
        limit = factor * theirs + ROUNDINGS[eps] * eps * (top + 1) + allowed.get(name, 0.0)
        assert error <= limit, f"{name}: error {error:.3e}, torch's own {theirs:.3e}, limit {limit:.3e}"
