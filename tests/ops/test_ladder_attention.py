# SPDX-License-Identifier: Apache-2.0
"""The rungs of ladder_attention beyond what every op promises (test_contract.py): lengths, masks, memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from needs import needs_gpu_memory

from profiling_lab.ops import ladder_attention
from profiling_lab.ops.attention import reference
from profiling_lab.ops.ladder_attention import RUNGS, LadderSelfAttention, Rung

LENGTHS = [
    pytest.param(1, 1, id="one-row-one-key"),
    pytest.param(5, 300, id="few-rows-many-keys"),
    pytest.param(200, 3, id="first-rows-see-nothing-under-a-causal-mask"),
    pytest.param(65, 63, id="one-over-one-under-a-tile"),
    pytest.param(128, 192, id="whole-tiles"),
    pytest.param(7, 0, id="no-keys"),
]


def tensors(
    device: torch.device, dtype: torch.dtype, batch: int, rows: int, keys: int, heads: int, dim: int
) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    return [
        torch.randn(batch, n, heads, dim, generator=generator, dtype=torch.float64).to(device, dtype)
        for n in (rows, keys, keys)
    ]


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize(("rows", "keys"), LENGTHS)
@pytest.mark.parametrize("dim", [1, 64, 100, 128])
@pytest.mark.parametrize("rung", RUNGS)
def test_lengths_masks_and_head_dims_against_float64(
    device: torch.device, rung: Rung, dim: int, rows: int, keys: int, causal: bool, within: Any
) -> None:
    inputs = tensors(device, torch.float32, 2, rows, keys, 3, dim)
    ours = ladder_attention(*inputs, causal=causal, rung=rung)
    truth = reference(*(x.double() for x in inputs), causal=causal)
    within(ours, truth, reference(*inputs, causal=causal), 2)
    assert not ours[:, : max(rows - keys, 0) if causal else 0].any(), "rows that see nothing give 0"


@pytest.mark.parametrize("rung", RUNGS)
def test_scale_and_large_scores(device: torch.device, rung: Rung) -> None:
    q, k, v = tensors(device, torch.float32, 1, 70, 130, 2, 64)
    for scale in (0.0, -0.3, 1e4):
        ours = ladder_attention(q, k, v, scale=scale, rung=rung)
        truth = reference(q.double(), k.double(), v.double(), scale=scale)
        torch.testing.assert_close(ours.double(), truth, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("rung", RUNGS)
def test_one_dominant_key_that_comes_last_forgets_the_rest(device: torch.device, rung: Rung) -> None:
    """The online softmax has summed three tiles when the largest score arrives: their weight must go to 0."""
    q, k, v = tensors(device, torch.float32, 1, 64, 200, 1, 32)
    q.fill_(1.0)
    k[:, :-1].zero_()
    k[:, -1].fill_(100.0)
    torch.testing.assert_close(ladder_attention(q, k, v, rung=rung), v[:, -1:].expand_as(q))


@pytest.mark.parametrize("rung", RUNGS)
def test_neighbours_in_memory_are_not_read(device: torch.device, rung: Rung) -> None:
    """A slice of a tensor whose other rows are NaN: a tile that reaches over the edge must not see them."""
    inputs = tensors(device, torch.float32, 1, 70, 90, 2, 64)
    poisoned = []
    for x in inputs:
        whole = torch.full((3, *x.shape[1:]), float("nan"), dtype=x.dtype, device=device)
        whole[1] = x[0]
        poisoned.append(whole[1:2])
    assert torch.equal(ladder_attention(*poisoned, rung=rung), ladder_attention(*inputs, rung=rung))


def test_refusals() -> None:
    q, k, v = tensors(torch.device("cpu"), torch.float32, 1, 5, 6, 2, 8)
    with pytest.raises(ValueError, match=r"rung is 'fast', expected 'naive', 'tiled' or 'flash'"):
        ladder_attention(q, k, v, rung="fast")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"only the rows may differ"):
        ladder_attention(q, k[:, :, :1], v[:, :, :1])
    with pytest.raises(ValueError, match=r"v has shape \[1, 5, 2, 8\] but k has shape \[1, 6, 2, 8\]"):
        ladder_attention(q, k, v[:, :5])
    with pytest.raises(
        ValueError, match=r"q has shape \[5, 2, 8\], expected \(batch, rows, heads, head_dim\)"
    ):
        ladder_attention(q[0], k[0], v[0])


def test_module_runs_every_rung() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 9, 24)
    first = LadderSelfAttention(24, 3, causal=True, rung="naive")
    for rung in RUNGS[1:]:
        other = LadderSelfAttention(24, 3, causal=True, rung=rung)
        other.load_state_dict(first.state_dict())
        torch.testing.assert_close(other(x), first(x))


@pytest.mark.gpu
def test_flash_refuses_heads_that_do_not_fit() -> None:
    inputs = tensors(torch.device("cuda"), torch.float32, 1, 5, 5, 1, 136)
    with pytest.raises(ValueError, match="head_dim is 136, expected at most 128 for the flash rung on CUDA"):
        ladder_attention(*inputs, rung="flash")
    ladder_attention(*inputs, rung="tiled")


@pytest.mark.gpu
def test_only_flash_needs_no_memory_for_scores() -> None:
    inputs = tensors(torch.device("cuda"), torch.bfloat16, 1, 4096, 4096, 1, 64)
    peaks = {}
    for rung in RUNGS:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        ladder_attention(*inputs, rung=rung)
        peaks[rung] = torch.cuda.max_memory_allocated() - before
    scores, out = 4096 * 4096 * 4, inputs[0].nbytes
    assert peaks["flash"] == out
    assert peaks["naive"] >= scores + out and peaks["tiled"] >= scores + out


@pytest.mark.gpu
@pytest.mark.parametrize("rung", RUNGS)
def test_more_than_2_to_the_31_scores(rung: Rung) -> None:
    """The last rows of a problem whose scores no 32-bit index reaches equal the same rows alone."""
    needs_gpu_memory(24)
    rows = 47_000
    q, k, v = tensors(torch.device("cuda"), torch.bfloat16, 1, rows, rows, 1, 16)
    assert rows * rows > 1 << 31
    ours = ladder_attention(q, k, v, causal=True, rung=rung)
    alone = ladder_attention(q[:, -100:].contiguous(), k, v, causal=True, rung=rung)
    torch.testing.assert_close(ours[:, -100:], alone)
