# SPDX-License-Identifier: Apache-2.0
"""Everybody's attention under one signature, for benchmark_attention.py and profile_kernels.py.

A provider is a function of q, k, v as (batch, rows, heads, head_dim) and causal; k and v may have fewer
heads. One that cannot be used is a sentence that says why.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache, partial
from importlib import import_module
from importlib.metadata import version
from typing import Any

import torch
from attention_cases import Problem
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from profiling_lab.ops.attention import flash_attention, reference
from profiling_lab.ops.ladder_attention import Rung, ladder_attention

Attention = Callable[[Tensor, Tensor, Tensor, bool], Tensor]

ON_REQUEST = ("sdpa-efficient", "sdpa-math", "eager", "naive", "tiled", "ladder-flash", "flash-varlen")
ON_REQUEST += ("sdpa-cudnn-deterministic", "sdpa-flash-deterministic", "torch-varlen", "flex-attention")
"""Far slower than the rest, or slow to compile, or about another question: measured only where asked for."""

PORTABLE = os.environ.get("PROFILING_LAB_ATTENTION_PATH") == "sm80"
"""Whether this process takes the portable path on any GPU; csrc/ops/attention/dispatch_cuda.cpp"""


def heads_first(*tensors: Tensor) -> tuple[Tensor, ...]:
    return tuple(x.transpose(1, 2) for x in tensors)


def sdpa(backend: SDPBackend, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    grouped = q.shape[2] != k.shape[2]
    with sdpa_kernel(backend):
        out = F.scaled_dot_product_attention(*heads_first(q, k, v), is_causal=causal, enable_gqa=grouped)
    return out.transpose(1, 2)


def ours(deterministic: bool, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    out: Tensor = flash_attention(q, k, v, causal=causal, deterministic=deterministic)
    return out


@contextmanager
def repeatable() -> Iterator[None]:
    """What torch does where gradients must have the same bits in every run."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    filling = torch.utils.deterministic.fill_uninitialized_memory
    torch.utils.deterministic.fill_uninitialized_memory = False  # a debugging aid that would be timed too
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
        torch.utils.deterministic.fill_uninitialized_memory = filling


def ladder(rung: Rung, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    group = q.shape[2] // k.shape[2]
    return ladder_attention(
        q, k.repeat_interleave(group, 2), v.repeat_interleave(group, 2), causal=causal, rung=rung
    )


@cache
def offsets(batch: int, rows: int, device: torch.device) -> Tensor:
    return torch.arange(batch + 1, dtype=torch.int32, device=device) * rows


def ours_packed(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    """The same problem as sequences of variable length that all happen to be equally long."""
    cu_q, cu_k = (offsets(x.shape[0], x.shape[1], x.device) for x in (q, k))
    packed = (x.flatten(0, 1) for x in (q, k, v))
    out: Tensor = flash_attention(*packed, causal=causal, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k)
    return out.view_as(q)


def torch_packed() -> Attention:
    from torch.nn.attention.varlen import varlen_attn

    def call(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
        cu_q, cu_k = (offsets(x.shape[0], x.shape[1], x.device) for x in (q, k))
        packed = [x.flatten(0, 1) for x in (q, k, v)]
        options = {"window_size": (-1, 0)} if causal else {}
        out: Tensor = varlen_attn(*packed, cu_q, cu_k, q.shape[1], k.shape[1], **options)
        return out.view_as(q)

    return call


def flex() -> Attention:
    """FlexAttention compiled by Inductor; one compilation for each head_dim, mask and direction."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    def sees(batch: Any, head: Any, row: Any, key: Any) -> Any:
        return row >= key

    @cache
    def mask(rows: int, keys: int, device: torch.device) -> Any:
        return create_block_mask(sees, None, None, rows, keys, device=device)

    compiled = torch.compile(flex_attention, dynamic=False)

    def call(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
        torch._dynamo.config.recompile_limit = 256  # of shapes, masks and gradients on or off
        blocks = mask(q.shape[1], k.shape[1], q.device) if causal else None
        out: Tensor = compiled(*heads_first(q, k, v), block_mask=blocks, enable_gqa=q.shape[2] != k.shape[2])
        return out.transpose(1, 2)

    return call


def installed(module: str, function: str) -> Attention:
    """Another library's function(q, k, v, causal=...), which may return more than the output."""
    target = getattr(import_module(module), function)

    def call(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
        out = target(q, k, v, causal=causal)
        return out[0] if isinstance(out, tuple) else out

    return call


def liger() -> Attention:
    found = version("liger-kernel")
    raise ImportError(f"liger-kernel {found} has attention over neighbours and several tokens, not over all")


OTHERS: dict[str, Callable[[], Attention]] = {
    "torch-varlen": torch_packed,
    "flex-attention": flex,
    "flash-attn-2": partial(installed, "flash_attn", "flash_attn_func"),
    "flash-attn-3": partial(installed, "flash_attn_interface", "flash_attn_func"),
    "flash-attn-4": partial(installed, "flash_attn.cute", "flash_attn_func"),
    "liger-kernel": liger,
}


def providers(peers: list[str] | None = None) -> dict[str, Attention | str]:
    """Every provider by name: the function, or why there is none.

    `peers` are texts NAME=MODULE:FUNCTION that add, or replace, providers with this signature.
    """
    name = "flash-sm80" if PORTABLE else "flash"
    found: dict[str, Attention | str] = {
        name: partial(ours, False),
        f"{name}-deterministic": partial(ours, True),
        "flash-varlen": ours_packed,
        "sdpa-cudnn": partial(sdpa, SDPBackend.CUDNN_ATTENTION),
        "sdpa-cudnn-deterministic": partial(sdpa, SDPBackend.CUDNN_ATTENTION),
        "sdpa-flash": partial(sdpa, SDPBackend.FLASH_ATTENTION),
        "sdpa-flash-deterministic": partial(sdpa, SDPBackend.FLASH_ATTENTION),
        "sdpa-efficient": partial(sdpa, SDPBackend.EFFICIENT_ATTENTION),
        "sdpa-math": partial(sdpa, SDPBackend.MATH),
        "eager": lambda q, k, v, causal: reference(q, k, v, causal=causal),
        "naive": partial(ladder, "naive"),
        "tiled": partial(ladder, "tiled"),
        "ladder-flash": partial(ladder, "flash"),
    }
    if not PORTABLE:
        found["flash-sm80"] = "needs a process with PROFILING_LAB_ATTENTION_PATH=sm80"
    for other, load in OTHERS.items():
        try:
            found[other] = load()
        except ImportError as error:
            found[other] = str(error)
    for peer in peers or []:
        label, _, target = peer.partition("=")
        module, _, function = target.partition(":")
        try:
            found[label] = getattr(import_module(module), function)
        except (ImportError, AttributeError, OSError) as error:
            found[label] = str(error)
    return found


def needs_repeatable(name: str) -> bool:
    """Whether a provider is deterministic only under torch.use_deterministic_algorithms."""
    return name.startswith("sdpa") and name.endswith("deterministic")


@contextmanager
def as_named(name: str, backward: bool = False) -> Iterator[None]:
    """Around every call of the provider: what its name promises beyond its function.

    torch refuses cuDNN's forward while it must be deterministic, and then has a deterministic backward of it.
    """
    wanted = needs_repeatable(name) and (backward or not name.startswith("sdpa-cudnn"))
    with repeatable() if wanted else nullcontext():
        yield


def inputs(one: Problem, device: str) -> list[Tensor]:
    """q, k, v and the gradient of the output: normal, and the same in every run."""
    generator = torch.Generator(device).manual_seed(1)
    dim, dim_v = one.head_dim, one.head_dim_v or one.head_dim
    counts = ((one.heads, dim), (one.kv_heads, dim), (one.kv_heads, dim_v), (one.heads, dim_v))
    shapes = [(one.batch, one.rows, *count) for count in counts]
    dtype = getattr(torch, one.dtype)
    return [torch.empty(s, device=device, dtype=dtype).normal_(generator=generator) for s in shapes]
