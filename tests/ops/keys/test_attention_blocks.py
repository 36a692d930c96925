# SPDX-License-Identifier: Apache-2.0
"""flash_attention_with_block_mask: FlexAttention's BlockMask, blocks seen whole, in part and not at all."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.nn.attention.flex_attention import BlockMask, create_block_mask, create_mask  # noqa: E402

from profiling_lab.ops import flash_attention_with_block_mask, prepare_block_mask  # noqa: E402
from profiling_lab.ops._attention_in_torch import _attention  # noqa: E402

CPU, CUDA = pytest.param("cpu", id="cpu"), pytest.param("cuda", id="cuda", marks=pytest.mark.gpu)
Mod = Callable[..., Any]


def causal(b: Any, h: Any, i: Any, j: Any) -> Any:
    return j <= i


def window(b: Any, h: Any, i: Any, j: Any) -> Any:
    return (j <= i) & (i - j < 150)


def prefix(b: Any, h: Any, i: Any, j: Any) -> Any:
    return (j <= i) | (j < 140)


def holes(b: Any, h: Any, i: Any, j: Any) -> Any:
    return ((i // 100 + j // 70) % 3 != 0) & ((i * 7 + j * 5) % 11 != 0)


def by_head(b: Any, h: Any, i: Any, j: Any) -> Any:
    return (j <= i + 40 * h) & (j >= i - 90 * (b + 1))


def nothing_for_some(b: Any, h: Any, i: Any, j: Any) -> Any:
    return (j <= i) & (i % 200 >= 130)


def documents(device: str, rows: int) -> Mod:
    of = torch.tensor([0] * 90 + [1] * 200 + [2] * (rows - 290), device=device)

    def same_document(b: Any, h: Any, i: Any, j: Any) -> Any:
        return (of[i] == of[j]) & (j <= i)

    return same_document


# mask_mod, batch and heads of the mask, rows, keys, BLOCK_SIZE, heads, kv_heads, head_dim
CASES = [
    pytest.param((causal, None, None, 384, 384, 128, 2, 2, 64), id="causal"),
    pytest.param((window, None, None, 500, 500, 128, 4, 2, 128), id="window-odd-length"),
    pytest.param((prefix, None, None, 300, 333, 128, 2, 1, 40), id="prefix"),
    pytest.param((holes, None, None, 260, 390, 64, 2, 2, 64), id="holes-small-blocks"),
    pytest.param((by_head, 2, 3, 400, 400, 128, 3, 1, 128), id="by-batch-and-head"),
    pytest.param((nothing_for_some, None, None, 450, 450, (256, 128), 2, 2, 96), id="rows-that-see-nothing"),
    pytest.param((documents, None, None, 400, 400, (128, 256), 2, 2, 64), id="documents"),
    pytest.param((window, None, None, 200, 200, (96, 32), 1, 1, 256), id="blocks-of-other-sizes"),
]


def inputs(device: str, case: tuple[Any, ...]) -> tuple[list[Any], Any, Any]:
    mod, batches, mask_heads, rows, keys, size, heads, kv_heads, dim = case
    mod = documents(device, rows) if mod is documents else mod
    dtype, batch = torch.float64 if device == "cpu" else torch.bfloat16, batches or 2
    draw = torch.Generator().manual_seed(3)
    shapes = ((rows, heads), (keys, kv_heads), (keys, kv_heads))
    tensors = [
        torch.randn(batch, n, h, dim, generator=draw, dtype=torch.float64).to(device, dtype).requires_grad_()
        for n, h in shapes
    ]
    mask = create_block_mask(mod, batches, mask_heads, rows, keys, device=device, BLOCK_SIZE=size)
    seen = create_mask(mod, batches or 1, mask_heads or 1, rows, keys, device=device)
    return tensors, mask, seen


def exact(tensors: list[Any], seen: Any, sink: Any, softcap: float, dout: Any, dlse: Any) -> list[Any]:
    """out, lse and the gradients in float64."""
    own = [x.detach().double().requires_grad_() for x in tensors]
    own_sink = None if sink is None else sink.detach().double().requires_grad_()
    out, lse = _attention(*own, own_sink, seen, tensors[0].shape[-1] ** -0.5, softcap)
    wanted = own if sink is None else [*own, own_sink]
    finite = lse.masked_fill(lse == -math.inf, 0)
    grads = torch.autograd.grad((out, finite), wanted, (dout.double(), dlse.double()))
    return [out, lse, *grads]


@pytest.mark.parametrize("device", [CPU, CUDA])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("with_sink", [False, True], ids=["plain", "sink-and-softcap"])
def test_values_and_gradients(device: str, case: tuple[Any, ...], with_sink: bool) -> None:
    tensors, mask, seen = inputs(device, case)
    softcap, sink = (
        (4.0, torch.linspace(-1, 2, tensors[0].shape[2], device=device)) if with_sink else (0.0, None)
    )
    if sink is not None:
        sink = sink.to(torch.float64 if device == "cpu" else torch.float32).requires_grad_()
    out, lse = flash_attention_with_block_mask(*tensors, mask, sink=sink, softcap=softcap, return_lse=True)
    draw = torch.Generator().manual_seed(5)
    dout, dlse = (torch.randn(x.shape, generator=draw).to(x) for x in (out, lse))
    wanted = tensors if sink is None else [*tensors, sink]
    grads = torch.autograd.grad((out, lse), wanted, (dout, dlse))
    truth = exact(tensors, seen, sink, softcap, dout, dlse)
    for ours, expected in zip((out, lse, *grads), truth, strict=True):
        if device == "cpu":
            torch.testing.assert_close(ours, expected, rtol=1e-8, atol=1e-8)
        else:
            scale = expected[expected.isfinite()].abs().max().clamp(min=1)
            torch.testing.assert_close(ours.double() / scale, expected / scale, rtol=2e-2, atol=1e-2)


@pytest.mark.parametrize("device", [CPU, CUDA])
def test_lists_count_whatever_mask_mod_says(device: str) -> None:
    """As in FlexAttention: full blocks are seen whole, and blocks that no list names are not seen."""
    full = torch.tensor([[[1, 0, 1]]], dtype=torch.int32, device=device)
    part = torch.tensor([[[1, 1, 0]]], dtype=torch.int32, device=device)
    columns = torch.tensor([[[[1, 0, 2], [2, 0, 1], [0, 1, 2]]]], dtype=torch.int32, device=device)
    full_columns = torch.tensor([[[[2, 0, 1], [0, 1, 2], [1, 0, 2]]]], dtype=torch.int32, device=device)
    mask = BlockMask.from_kv_blocks(part, columns, full, full_columns, BLOCK_SIZE=128, mask_mod=causal)
    seen = torch.zeros(384, 384, dtype=torch.bool, device=device)
    lower = torch.ones(384, 384, device=device).tril().bool()
    seen[:128, 256:] = True
    seen[:128, 128:256] = lower[:128, 128:256]
    seen[128:256, 256:] = lower[128:256, 256:]
    seen[256:, 128:256] = True
    dtype = torch.float64 if device == "cpu" else torch.bfloat16
    q, k, v = (torch.randn(1, 384, 2, 64, device=device, dtype=dtype) for _ in "qkv")
    out, lse = flash_attention_with_block_mask(q, k, v, mask, return_lse=True)
    expected, expected_lse = _attention(
        q.double(), k.double(), v.double(), None, seen[None, None], 0.125, 0.0
    )
    near = {"rtol": 1e-8, "atol": 1e-8} if device == "cpu" else {"rtol": 2e-2, "atol": 1e-2}
    torch.testing.assert_close(out.double(), expected, **near)
    torch.testing.assert_close(lse.double(), expected_lse, rtol=1e-4, atol=1e-4)


def test_what_is_prepared_stays_as_it_was_read() -> None:
    """And a BlockMask itself is read in each call: nothing is remembered that could be wrong."""
    limit = torch.tensor(100)

    def until(b: Any, h: Any, i: Any, j: Any) -> Any:
        return j < limit

    q, k, v = (torch.randn(1, 128, 1, 8, dtype=torch.float64) for _ in "qkv")
    mask = create_block_mask(until, None, None, 128, 128, device="cpu")
    prepared = prepare_block_mask(mask)
    before = flash_attention_with_block_mask(q, k, v, mask)
    torch.testing.assert_close(flash_attention_with_block_mask(q, k, v, prepared), before, rtol=0, atol=0)
    limit.fill_(50)
    torch.testing.assert_close(flash_attention_with_block_mask(q, k, v, prepared), before, rtol=0, atol=0)
    now = flash_attention_with_block_mask(q, k, v, mask)
    torch.testing.assert_close(now, flash_attention_with_block_mask(q, k, v, prepare_block_mask(mask)))
    assert not torch.allclose(now, before)


def test_blocks_that_mask_mod_leaves_empty_are_not_visited() -> None:
    """FlexAttention's lists may be coarser than the tables: 256 rows that see half of a block."""
    mask = create_block_mask(causal, None, None, 512, 512, device="cpu", BLOCK_SIZE=256)
    tables = prepare_block_mask(mask)
    assert tables.parts.shape == (1, 1, 8, 4)
    seen = tables.parts[0, 0] != -2
    i, j = torch.arange(8)[:, None] * 64 + 63, torch.arange(4)[None] * 128
    assert torch.equal(seen, j <= i)
    counts, blocks = tables.lists(128)
    assert counts.tolist() == [[[1, 2, 3, 4]]]
    assert blocks[0, 0, 3, :, 0].tolist() == [0, 1, 2, 3]
    assert blocks[0, 0, 1, 0].tolist()[:3] == [0, -1, -1]


BAD = [
    ({"block_mask": causal}, r"block_mask is a function, expected the BlockMask of"),
    ({"rows": 100}, r"block_mask is for 128 rows and 128 keys, but q has 100 rows and k 128 keys"),
    ({"heads": 3}, r"block_mask has heads 2, expected 1 or 3"),
    ({"softcap": -1.0}, r"softcap is -1, expected 0"),
    ({"sink": torch.zeros(5)}, r"sink has shape \[5\] but q has 2 heads"),
    ({"kv_heads": 0}, r"q has 2 heads, not a multiple of the 0 heads of k"),
]


@pytest.mark.parametrize(("change", "sentence"), BAD)
def test_bad_input_is_one_sentence(change: dict[str, Any], sentence: str) -> None:
    mask = create_block_mask(causal, None, 2, 128, 128, device="cpu")
    q = torch.zeros(1, change.pop("rows", 128), change.pop("heads", 2), 8)
    k = torch.zeros(1, 128, change.pop("kv_heads", 1), 8)
    options = {"block_mask": mask} | change
    with pytest.raises(ValueError, match=f"^flash_attention_with_block_mask: {sentence}"):
        flash_attention_with_block_mask(q, k, k, **options)


def test_empty_axes() -> None:
    mask = create_block_mask(causal, None, None, 128, 128, device="cpu")
    q = torch.zeros(0, 128, 2, 8, requires_grad=True)
    out = flash_attention_with_block_mask(q, q, q, mask)
    assert out.shape == q.shape
    out.sum().backward()
    assert q.grad.shape == q.shape


def test_masks_without_blocks_that_are_seen_in_part() -> None:
    q = torch.randn(1, 256, 1, 8, dtype=torch.float64)
    for mod, expected in ((lambda b, h, i, j: j >= 0, True), (lambda b, h, i, j: j < 0, False)):
        mask = create_block_mask(mod, None, None, 256, 256, device="cpu")
        out, lse = flash_attention_with_block_mask(q, q, q, mask, return_lse=True)
        exactly, exact_lse = _attention(q, q, q, None, torch.full((256, 256), expected), 8**-0.5, 0.0)
        torch.testing.assert_close(out, exactly)
        torch.testing.assert_close(lse, exact_lse)


@pytest.mark.parametrize("device", [CPU, CUDA])
def test_autocast(device: str) -> None:
    q = torch.randn(1, 128, 1, 8, device=device, requires_grad=True)
    mask = create_block_mask(causal, None, None, 128, 128, device=device)
    with torch.autocast(device, torch.bfloat16):
        out = flash_attention_with_block_mask(q, q, q, mask)
    assert out.dtype == torch.bfloat16
    out.sum().backward()
    assert q.grad.dtype == torch.float32


@pytest.mark.gpu
def test_opcheck() -> None:
    (q, k, v), mask, _ = inputs("cuda", (causal, None, None, 260, 390, 128, 2, 2, 64))
    tables = prepare_block_mask(mask)
    torch.library.opcheck(
        torch.ops.profiling_lab.attention_fwd_blocks.default,
        (q.detach(), k.detach(), v.detach(), None, *tables.lists(192), tables.bits, 0.125, 0.0),
        test_utils=("test_schema", "test_faketensor"),
    )


def test_second_derivatives() -> None:
    case = (window, None, None, 140, 140, 128, 2, 1, 8)
    tensors, mask, seen = inputs("cpu", case)

    def penalty(attend: Callable[..., Any], own: list[Any]) -> tuple[Any, ...]:
        out, lse = attend(*own)
        grads = torch.autograd.grad((out.sin().sum() + lse.sum()), own, create_graph=True)
        total: tuple[Any, ...] = torch.autograd.grad(sum((g**2).sum() for g in grads), own)
        return total

    ours = penalty(
        lambda *x: flash_attention_with_block_mask(*x, mask, softcap=3.0, return_lse=True), tensors
    )
    exactly = penalty(lambda *x: _attention(*x, None, seen, 8**-0.5, 3.0), tensors)
    for one, expected in zip(ours, exactly, strict=True):
        torch.testing.assert_close(one, expected)


def test_forward_mode_is_refused() -> None:
    mask = prepare_block_mask(create_block_mask(causal, None, None, 128, 128, device="cpu"))
    q = torch.randn(1, 128, 1, 8)
    with pytest.raises(RuntimeError, match="jvp"), torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(q, torch.ones_like(q))
        flash_attention_with_block_mask(dual, q, q, mask)


@pytest.mark.gpu
@pytest.mark.parametrize("dim", [64, 128, 256])
def test_no_slower_than_the_blocks_that_are_left(dim: int) -> None:
    """A tenth of the blocks takes far less than all of them: blocks that are not listed are not visited."""
    from profiling_lab.measure import compare

    rows = 8192
    q, k, v = (torch.randn(1, rows, 16, dim, device="cuda", dtype=torch.bfloat16) for _ in "qkv")
    few = prepare_block_mask(create_block_mask(window, None, None, rows, rows, device="cuda"))
    every = prepare_block_mask(
        create_block_mask(lambda b, h, i, j: j >= 0, None, None, rows, rows, device="cuda")
    )
    calls = {"few": few, "every": every}
    timings = compare(
        {name: lambda m=m: flash_attention_with_block_mask(q, k, v, m) for name, m in calls.items()}
    )
    assert timings["few"].median_ns < 0.3 * timings["every"].median_ns
