# SPDX-License-Identifier: Apache-2.0
"""Masks of padded keys inside of flash_attention_for_sdpa: lengths where they end the keys, else torch's."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from profiling_lab.ops import _padding
from profiling_lab.ops import attention as _  # noqa: F401  # loads the op
from profiling_lab.ops.attention import flash_attention_for_sdpa

sdpa = F.scaled_dot_product_attention
BATCH, HEADS, ROWS, KEYS, DIM = 3, 4, 5, 9, 8


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The tensors of each call of ours."""
    module = __import__("sys").modules["profiling_lab.ops.attention"]
    real, seen = module.flash_attention, []

    def counted(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
        seen.append((q.shape, k.shape, options))
        return real(q, k, v, **options)

    monkeypatch.setattr(module, "flash_attention", counted)
    return seen


def inputs(generator: torch.Generator, kv_heads: int = HEADS, rows: int = ROWS) -> list[Tensor]:
    """As projections give them: (batch, rows, heads, head_dim), transposed."""
    shapes = ((rows, HEADS), (KEYS, kv_heads), (KEYS, kv_heads))
    return [
        torch.randn(BATCH, *shape, DIM, generator=generator, dtype=torch.float64).transpose(1, 2)
        for shape in shapes
    ]


def behind(*lengths: int) -> Tensor:
    return torch.arange(KEYS) < torch.tensor(lengths)[:, None, None, None]


def results(tensors: list[Tensor], mask: Tensor, **options: Any) -> list[Tensor]:
    leaves = [t.clone().requires_grad_() for t in tensors]
    out = sdpa(*leaves, attn_mask=mask, **options)
    (out * out.sin()).sum().backward()
    return [out, *(t.grad for t in leaves)]


LENGTHS = [
    pytest.param(behind(9, 4, 1), True, id="lengths"),
    pytest.param(behind(9, 0, 7), True, id="a-sequence-of-padding"),
    pytest.param(behind(6, 6, 6), False, id="one-length"),
    pytest.param(behind(9, 9, 9), False, id="no-padding"),
    pytest.param(behind(5), False, id="one-mask-for-all"),
    pytest.param(behind(5)[0, 0], False, id="a-mask-of-two-dimensions"),
    pytest.param(behind(8, 3, 5).expand(BATCH, HEADS, ROWS, KEYS), True, id="expanded"),
]


@pytest.mark.parametrize(("mask", "packed"), LENGTHS)
@pytest.mark.parametrize("kv_heads", [HEADS, 2])
def test_padding_behind_the_keys(
    mask: Tensor, packed: bool, kv_heads: int, calls: list[Any], generator: torch.Generator
) -> None:
    tensors = inputs(generator, kv_heads)
    options = {"scale": 0.6, "enable_gqa": kv_heads != HEADS}
    with flash_attention_for_sdpa():
        found = results(tensors, mask, **options)
    assert len(calls) == 1 and ("cu_seqlens_q" in calls[0][2]) == packed
    if not packed:  # the other keys are not even read
        assert calls[0][1][1] == int(mask.sum(-1).amax())
    for one, expected in zip(found, results(tensors, mask, **options), strict=True):
        torch.testing.assert_close(one, expected)


def changed(mask: Tensor, *at: int) -> Tensor:
    mask = mask.clone()
    mask[at] = ~mask[at]
    return mask


OTHERS = [
    pytest.param(behind(9, 4, 2).flip(3), id="left-padding"),
    pytest.param(changed(behind(9, 4, 2), 0, 0, 0, 3), id="a-hole"),
    pytest.param(changed(behind(9, 4, 2), 1, 0, 0, 8), id="a-key-behind"),
    pytest.param(behind(9, 4, 2).expand(BATCH, 1, ROWS, KEYS).clone(), id="rows"),
    pytest.param(behind(9, 4, 2).expand(BATCH, HEADS, 1, KEYS).clone(), id="heads"),
    pytest.param(behind(9, 4, 2).double(), id="additive"),
    pytest.param(torch.ones(BATCH, 1, 1, 1, dtype=torch.bool), id="one-key"),
]


@pytest.mark.parametrize("mask", OTHERS)
def test_other_masks_are_torchs(mask: Tensor, calls: list[Any], generator: torch.Generator) -> None:
    tensors = inputs(generator)
    with flash_attention_for_sdpa():
        found = sdpa(*tensors, attn_mask=mask)
    assert not calls
    torch.testing.assert_close(found, sdpa(*tensors, attn_mask=mask))


def test_a_mask_with_is_causal_is_torchs(calls: list[Any], generator: torch.Generator) -> None:
    """Some versions of torch refuse it, others take both."""

    def found() -> Tensor | str:
        try:
            return sdpa(*tensors, attn_mask=behind(9, 4, 2), is_causal=True)
        except RuntimeError as error:
            return str(error)

    tensors = inputs(generator, rows=KEYS)
    with flash_attention_for_sdpa():
        ours = found()
    assert not calls
    torch.testing.assert_close(ours, found()) if isinstance(ours, Tensor) else None


def test_what_torch_refuses_it_refuses(calls: list[Any], generator: torch.Generator) -> None:
    tensors = inputs(generator)
    with flash_attention_for_sdpa():
        for mask in (
            behind(9, 4, 2).expand(BATCH, HEADS + 1, 1, KEYS),
            behind(9, 4, 2, 5, 6)[:2],
            behind(9, 4, 2)[..., :5],
        ):
            with pytest.raises(RuntimeError):
                sdpa(*tensors, attn_mask=mask)
    assert not calls


def test_one_query_and_compiled_calls(calls: list[Any], generator: torch.Generator) -> None:
    """No copy of a cache for one query; no value of a mask in a graph."""
    one, more = inputs(generator, rows=1), inputs(generator)
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda *tensors: sdpa(*tensors[:3], attn_mask=tensors[3]), fullgraph=True, backend="aot_eager"
    )
    mask = behind(9, 4, 2)
    with flash_attention_for_sdpa():
        found = [sdpa(*one, attn_mask=mask), compiled(*more, mask)]
    assert not calls
    for out, tensors in zip(found, (one, more), strict=True):
        torch.testing.assert_close(out, sdpa(*tensors, attn_mask=mask))


def test_a_mask_is_read_once_and_again_when_it_changes(
    monkeypatch: pytest.MonkeyPatch, generator: torch.Generator
) -> None:
    """As on a GPU, where reading waits."""
    tensors, read, reads = inputs(generator), _padding._read, []
    monkeypatch.setattr(_padding, "_waits", lambda mask: not mask.is_inference())
    monkeypatch.setattr(_padding, "_read", lambda *args: (reads.append(1), read(*args))[1])
    valid = behind(9, 4, 2)[:, 0, 0].contiguous()

    def check(mask: Tensor, expected: int) -> None:
        with flash_attention_for_sdpa():
            found = sdpa(*tensors, attn_mask=mask)
        torch.testing.assert_close(found, sdpa(*tensors, attn_mask=mask))
        assert len(reads) == expected

    for _layer in range(3):
        check(valid[:, None, None], 1)  # a view of its own in each layer
    valid[1, 4:6] = True
    check(valid[:, None, None], 2)
    valid[1] = valid[1].flip(0)
    check(valid[:, None, None], 3)  # handed back now
    check(valid[:, None, None], 3)
    valid[1] = valid[1].flip(0)
    check(valid[:1, None, None].expand(BATCH, -1, -1, -1), 4)  # other views of the same memory
    check(valid[1:2, None, None].expand(BATCH, -1, -1, -1), 5)
    for length in (3, 7):  # a tensor that may get the memory of one that is gone
        check(behind(length, 9, 9).clone(), 6 if length == 3 else 7)
    with torch.inference_mode():
        mask = behind(9, 4, 2).clone()
        check(mask, 8)
        mask[0, ..., 5:] = False  # no version says so
        check(mask, 9)
    del valid, mask
    assert len(_padding._KNOWN) == 0


def test_each_mask_of_the_cpu_is_read(calls: list[Any], generator: torch.Generator) -> None:
    """It costs nothing there, and NumPy may have written to it."""
    tensors, mask = inputs(generator), behind(9, 4, 2).clone()
    for length in (9, 5):
        mask.numpy()[0, ..., length:] = False
        with flash_attention_for_sdpa():
            found = sdpa(*tensors, attn_mask=mask)
        torch.testing.assert_close(found, sdpa(*tensors, attn_mask=mask))
    assert len(calls) == 2 and not _padding._KNOWN


def test_what_is_said(python_warm: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    program = """
import torch
from torch.nn.functional import scaled_dot_product_attention as sdpa
from profiling_lab.ops import flash_attention_for_sdpa
q = torch.zeros(2, 1, 4, 8)
mask = torch.tensor([[True, True, True, False], [True, False, False, False]])[:, None, None]
with flash_attention_for_sdpa():
    sdpa(q, q, q, attn_mask=mask)
    sdpa(q, q, q, attn_mask=mask.flip(3))
    sdpa(q[:, :, :1], q, q, attn_mask=mask)
"""
    done = python_warm(program, PROFILING_LAB_EXPLAIN="1")
    mark = "profiling_lab: scaled_dot_product_attention: "
    assert [line.removeprefix(mark) for line in done.stderr.splitlines() if line.startswith(mark)] == [
        "a mask of padding, taken as lengths",
        "left to torch: a mask of other keys than the last ones",
        "left to torch: a mask for one query a sequence, which would cost copies of the keys",
    ], done.stderr


@pytest.mark.gpu
def test_the_host_waits_once_for_a_mask() -> None:
    q, k, v = (torch.randn(2, rows, 4, 64, device="cuda").bfloat16().transpose(1, 2) for rows in (70, 90, 90))
    valid = torch.arange(90, device="cuda") < torch.tensor([[90], [41]], device="cuda")
    with flash_attention_for_sdpa():
        sdpa(q, k, v, attn_mask=valid[:, None, None])
        torch.cuda.set_sync_debug_mode("error")
        try:
            found = sdpa(q, k, v, attn_mask=valid[:, None, None])
        finally:
            torch.cuda.set_sync_debug_mode("default")
    torch.testing.assert_close(found, sdpa(q, k, v, attn_mask=valid[:, None, None]), rtol=2e-2, atol=1e-2)
