# SPDX-License-Identifier: Apache-2.0
"""flash_attention over many lengths, each with another head_dim, grouping, mask and dtype.

Lengths lie around every tile edge of every kernel. In a process with PROFILING_LAB_ATTENTION_PATH=sm80 the
same tests hold for the portable path.
"""

from __future__ import annotations

import itertools
import math
from itertools import product
from typing import Any

import pytest
import torch

from profiling_lab.ops.attention import flash_attention, reference

LENGTHS = [
    (1, 1), (1, 4096), (4096, 1), (64, 128), (128, 192), (256, 256), (239, 1), (799, 3), (113, 203),
    (113, 128), (128, 217), (113, 211), (108, 256), (256, 512), (384, 256), (640, 128), (512, 256),
    (1024, 1024), (1023, 1024), (1024, 1023), (80, 80), (81, 79), (160, 161), (2100, 2100), (64, 2049),
    *product((63, 64, 65), (79, 80, 81)), *product((127, 128, 129), (127, 128, 129)),
    *product((191, 192, 193), (191, 192, 193)), *product((255, 257), (255, 257)),
    (4096, 4096), (4224, 4224),
]  # fmt: skip
DIMS = (64, 128, 256, 40, 72, 80, 96, 112, 192)
PAIRS = (
    (192, 192), (192, 128), (184, 184), (160, 160), (136, 136), (160, 104), (136, 8), (96, 96), (88, 80),
    (80, 80), (64, 48), (128, 64), (256, 128), (64, 128), (128, 192), (72, 256),
)  # fmt: skip
"""Head dims of q and k, and of v."""
HEADS = ((2, 2), (4, 1), (8, 2), (7, 7), (3, 1))
MASKS: tuple[dict[str, Any], ...] = (
    {},
    {"causal": True},
    {"window": (50, 7)},
    {"window": (0, 0)},
    {"window": (130, -1)},
    {"causal": True, "window": (90, 0)},
    {"softcap": 3.0},
    {"causal": True, "softcap": 2.0},
)
DTYPES = (torch.bfloat16, torch.float16)
CPU, CUDA = pytest.param("cpu", id="cpu"), pytest.param("cuda", id="cuda", marks=pytest.mark.gpu)


def finite(lse: torch.Tensor) -> torch.Tensor:
    return torch.where(torch.isfinite(lse), lse, torch.zeros_like(lse))


def everything(call: Any, inputs: list[torch.Tensor], **options: Any) -> list[torch.Tensor]:
    """Output, LSE and gradients, from a loss that uses output and LSE."""
    leaves = [x.detach().requires_grad_() for x in inputs]
    out, lse = call(*leaves, return_lse=True, **options)
    weight = torch.linspace(-1, 1, out.numel(), device=out.device).reshape(out.shape).to(out.dtype)
    loss = (out * weight).sum() + finite(lse).sum().to(out.dtype) / 8
    return [out.detach(), finite(lse.detach()), *torch.autograd.grad(loss, leaves)]


def among_nans(x: torch.Tensor) -> torch.Tensor:
    """The same values in a larger tensor, with NaN behind each row and behind the last one."""
    batch, rows, heads, dim = x.shape
    large = x.new_full((batch, rows + 3, heads, dim + 8), math.nan)
    large[:, :rows, :, :dim] = x
    return large[:, :rows, :, :dim]


def check(device: str, number: int, rows: int, keys: int, dim: int, dim_v: int | None = None) -> None:
    heads, kv_heads = HEADS[number % len(HEADS)]
    options = MASKS[number % len(MASKS)]
    dtype = torch.float32 if device == "cpu" else DTYPES[number % 2]
    generator = torch.Generator().manual_seed(number)
    batch = 1 if rows * keys > 8_000_000 else 2  # the scores in float64 would take 10 GB
    shapes = [(batch, rows, heads, dim), (batch, keys, kv_heads, dim), (batch, keys, kv_heads, dim_v or dim)]
    inputs = [torch.randn(s, generator=generator).to(device, dtype) for s in shapes]
    if dim_v is not None:
        inputs = [among_nans(x) for x in inputs]
    ours = everything(flash_attention, inputs, deterministic=number % 3 == 0, **options)
    same = everything(reference, inputs, **options)
    exact = everything(reference, [x.double() for x in inputs], **options)
    for name, a, b, c in zip(("out", "lse", "dq", "dk", "dv"), ours, same, exact, strict=True):
        top = c.abs().max().item()
        eps = torch.finfo(torch.float32 if name == "lse" else dtype).eps
        error, theirs = ((x.double() - c).abs().max().item() for x in (a, b))
        limit = 2 * theirs + (1 if eps > 1e-4 else 64) * eps * (top + 1)  # see test_attention.py
        assert error <= limit, f"{name}: error {error:.3e}, torch's own {theirs:.3e}, limit {limit:.3e}"


@pytest.mark.gpu
@pytest.mark.parametrize(("number", "lengths"), list(enumerate(LENGTHS)), ids=str)
def test_lengths_on_the_gpu(number: int, lengths: tuple[int, int]) -> None:
    for i in range(3):
        check("cuda", number + 7 * i, *lengths, DIMS[(number + 3 * i) % len(DIMS)])


AROUND = (1, 5, 63, 64, 65, 79, 81, 95, 97, 111, 113, 127, 128, 129, 191, 193, 224, 257, 300, 513)
LONG = ((1153, 1409), (2049, 1025), (1027, 1250), (1400, 1400))  # kernels for more than 1024 rows or keys


@pytest.mark.gpu
@pytest.mark.parametrize(("dim", "dim_v"), PAIRS)
def test_head_dims_on_the_gpu(dim: int, dim_v: int) -> None:
    """Each with lengths around the edges of its tiles, and every mask."""
    pairs = [
        (AROUND[i % len(AROUND)], AROUND[(7 * i + dim // 8) % len(AROUND)]) for i in range(2 * len(AROUND))
    ]
    for number, (rows, keys) in enumerate([*pairs, *LONG, *LONG]):
        check("cuda", number, rows, keys, dim, dim_v)


@pytest.mark.parametrize(("dim", "dim_v"), [*PAIRS, (33, 5), (5, 33), (32, 64), (1, 1)])
@pytest.mark.parametrize("mask", range(len(MASKS)))
def test_head_dims_on_the_cpu(dim: int, dim_v: int, mask: int) -> None:
    check("cpu", mask, 70, 131, dim, dim_v)


@pytest.mark.parametrize(("dim", "dim_v"), [(192, 192), (192, 128), (160, 160), (96, 96), (80, 80), (48, 64)])
@pytest.mark.parametrize(
    ("device", "lengths"),
    [
        pytest.param("cpu", (5, 0, 130, 257, 1, 96, 224), id="cpu"),
        pytest.param("cuda", (5, 0, 130, 257, 1, 96, 224), id="cuda-short", marks=pytest.mark.gpu),
        pytest.param("cuda", (2100, 1301, 900), id="cuda-long", marks=pytest.mark.gpu),
    ],
)
def test_packed_values_of_their_own_head_dim(
    device: str, lengths: tuple[int, ...], dim: int, dim_v: int
) -> None:
    """Sequences in one call equal calls of their own; NaN behind the last one changes nothing."""
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    ends = [0, *itertools.accumulate(lengths)]
    cu = torch.tensor(ends, dtype=torch.int32, device=device)
    generator = torch.Generator().manual_seed(4)
    shapes = [(4, dim), (2, dim), (2, dim_v), (4, dim_v)]
    q, k, v, dout = (
        torch.cat([torch.randn(ends[-1], *s, generator=generator), torch.full((9, *s), math.nan)])
        for s in shapes
    )
    leaves = [x.to(device, dtype).requires_grad_() for x in (q, k, v)]
    dout = dout.to(device, dtype)
    options = {"causal": True, "return_lse": True, "deterministic": True}
    out, lse = flash_attention(*leaves, cu_seqlens_q=cu, cu_seqlens_k=cu, **options)
    packed = [out, *torch.autograd.grad(out, leaves, dout)]
    assert out.shape == (ends[-1] + 9, 4, dim_v) and bool((lse[:, ends[-1] :] == -math.inf).all())
    assert not any(x[ends[-1] :].any() for x in packed)
    packed.append(lse.T)
    for begin, end in itertools.pairwise(ends):
        if begin == end:
            continue
        parts = [x[None, begin:end].detach().requires_grad_() for x in leaves]
        one, one_lse = flash_attention(*parts, **options)
        alone = [
            one[0],
            *(g[0] for g in torch.autograd.grad(one, parts, dout[None, begin:end])),
            one_lse[0].T,
        ]
        for a, b in zip(packed, alone, strict=True):
            torch.testing.assert_close(a[begin:end], b, rtol=2e-2, atol=2e-2)


SHORT = [(i, lengths) for i, lengths in enumerate(LENGTHS) if math.prod(lengths) <= 20_000]


@pytest.mark.parametrize(("number", "lengths"), SHORT, ids=str)
def test_lengths_on_the_cpu(number: int, lengths: tuple[int, int]) -> None:
    check("cpu", number, *lengths, DIMS[number % len(DIMS)])


@pytest.mark.parametrize("device", [CPU, CUDA])
@pytest.mark.parametrize("dim", [64, 128, 256])
def test_huge_and_tiny_scores(device: str, dim: int) -> None:
    """Scores of 1e5 and 1e9 pick one key; tiny ones give the mean of the values.

    Beyond some 1e9 an fp32 cannot tell neighbouring scores apart by less than the exponent's whole range.
    """
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    generator = torch.Generator().manual_seed(2)
    q, k, v = (torch.randn(1, 150, 2, dim, generator=generator).to(device, dtype) for _ in range(3))
    near = {"rtol": 2e-2, "atol": 1e-2}
    for magnitude in (1e2, -1e2, 1e4):
        inputs = [q * magnitude, k * abs(magnitude), v]
        out, _, _, _, dv = everything(flash_attention, inputs)
        exact = everything(reference, [x.double() for x in inputs])
        torch.testing.assert_close(out.double(), exact[0], **near)
        if abs(magnitude) < 1e4:
            torch.testing.assert_close(dv.double(), exact[4], rtol=5e-2, atol=5e-2)
    tiny = flash_attention(q * 1e-30, k, v)
    torch.testing.assert_close(tiny.double(), v.double().mean(1, keepdim=True).expand_as(v), **near)


def test_offsets_of_another_type_or_shape_are_refused() -> None:
    q = torch.zeros(10, 2, 8)
    cu = torch.tensor([0, 10])
    with pytest.raises(ValueError, match="cu_seqlens_q has dtype int64, expected int32"):
        flash_attention(q, q, q, cu_seqlens_q=cu, cu_seqlens_k=cu)
    short = torch.tensor([0], dtype=torch.int32)
    good = cu.to(torch.int32)
    with pytest.raises(ValueError, match="cu_seqlens_q has 2 offsets but cu_seqlens_k has 1"):
        flash_attention(q, q, q, cu_seqlens_q=good, cu_seqlens_k=short)
    with pytest.raises(ValueError, match="not a contiguous vector of batch \\+ 1 offsets"):
        flash_attention(q, q, q, cu_seqlens_q=good[None], cu_seqlens_k=good[None])


@pytest.mark.gpu
def test_offsets_on_the_host_are_refused_on_the_gpu() -> None:
    q = torch.zeros(10, 2, 8, device="cuda", dtype=torch.bfloat16)
    cu = torch.tensor([0, 10], dtype=torch.int32)
    with pytest.raises(ValueError, match="cu_seqlens_q is on cpu but q is on cuda:0"):
        flash_attention(q, q, q, cu_seqlens_q=cu, cu_seqlens_k=cu)


@pytest.mark.parametrize("rows", [0, 5])
@pytest.mark.parametrize("sequences", [0, 3])
@pytest.mark.parametrize("device", [CPU, CUDA])
def test_a_packed_batch_of_nothing(device: str, sequences: int, rows: int) -> None:
    """No sequences, or empty ones alone, and rows that belong to none: zeros, not what memory held before."""
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    cu = torch.zeros(sequences + 1, dtype=torch.int32, device=device)
    q, k, v = (torch.full((rows, 2, 64), math.nan, device=device, dtype=dtype) for _ in range(3))
    leaves = [x.requires_grad_() for x in (q, k, v)]
    out, lse = flash_attention(*leaves, cu_seqlens_q=cu, cu_seqlens_k=cu, causal=True, return_lse=True)
    assert out.shape == q.shape and not out.any() and bool((lse == -math.inf).all())
    for gradient in torch.autograd.grad(out, leaves, torch.full_like(out, math.nan)):
        assert gradient.shape == q.shape and not gradient.any()
