# SPDX-License-Identifier: Apache-2.0
"""flash_attention's kernels under NVIDIA's compute-sanitizer, on the portable path and on the device's own.

"keys" are the kernels for keys in a cache and block masks. What the tools cannot follow is left out and told
in docs/notebook/attention.md: initcheck does not see TMA write, and racecheck takes some arrivals of the
forward at head_dim 256 for too few.
"""

from __future__ import annotations

import pytest
from sanitizer import assert_finds_nothing

PROGRAM = """
import sys, torch
from torch.nn.attention.flex_attention import create_block_mask
from profiling_lab.ops import flash_attention, flash_attention_with_block_mask, flash_attention_with_cache

def cached(dim, page, rows, kept=(40, 130, 3)):
    offsets = torch.tensor([0, *rows]).cumsum(0).int().cuda()
    pages = -(-(max(kept) + max(rows)) // page)
    table = torch.randperm(len(rows) * pages).int().cuda().view(len(rows), pages)
    q, k, v = (torch.randn(sum(rows), h, dim, device="cuda").bfloat16() for h in (2, 1, 1))
    k_cache, v_cache = (torch.randn(len(rows) * pages, page, 1, dim, device="cuda").bfloat16() for _ in "kv")
    lengths = torch.tensor(kept).int().cuda()
    flash_attention_with_cache(
        q, k_cache, v_cache, k, v, cache_seqlens=lengths, block_table=table, cu_seqlens_q=offsets
    )

def masked(dim, rows=330):
    q, k, v = (torch.randn(1, rows, h, dim, device="cuda").bfloat16() for h in (2, 1, 1))
    mask = create_block_mask(lambda b, h, i, j: (i + j) % 5 != 2, None, None, rows, rows, device="cuda")
    flash_attention_with_block_mask(q, k, v, mask)

def run(dim, heads, kv_heads, rows, keys, deterministic, lengths=None, dim_v=None, **options):
    dim_v = dim_v or dim
    shapes = [(rows, heads, dim), (keys, kv_heads, dim), (keys, kv_heads, dim_v), (rows, heads, dim_v)]
    q, k, v, dout = (torch.randn(s if lengths else (1, *s), device="cuda").bfloat16() for s in shapes)
    if lengths:
        options |= dict.fromkeys(("cu_seqlens_q", "cu_seqlens_k"), torch.tensor(lengths).int().cuda())
    leaves = [x.requires_grad_() for x in (q, k, v)]
    out, lse = flash_attention(*leaves, return_lse=True, deterministic=deterministic, **options)
    torch.autograd.backward([out, lse], [dout, torch.ones_like(lse)])

few = sys.argv[1] == "few"
for dim in (64, 128, 192) if sys.argv[1] == "keys" else ():
    for page in (1, 7, 16, 128):
        cached(dim, page, (150, 1, 18))
    masked(dim)
for dim in {"keys": (), "few": (64,), "all": (64, 96, 128, 192, 256)}[sys.argv[1]]:
    for deterministic in (False, True):
        run(dim, 2, 2, 270, 270, deterministic, causal=True)
        if few:
            continue
        run(dim, 4, 1, 129, 200, deterministic)
        run(dim, 2, 1, 1100, 1100, deterministic, dim_v=dim - 64 or 8, causal=True)
        run(dim - 8, 2, 2, 200, 200, deterministic, window=(60, 10), sink=torch.zeros(2, device="cuda"))
        run(dim, 2, 2, 330, 330, deterministic, lengths=[0, 70, 70, 300], causal=True)
    run(dim, 2, 2, 100, 100, False, softcap=5.0)
torch.cuda.synchronize()
print("ran")
"""


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize(
    ("tool", "path", "how_many"),
    [
        ("memcheck", "", "all"),
        ("memcheck", "sm80", "all"),
        ("memcheck", "", "keys"),
        ("synccheck", "", "all"),
        ("synccheck", "", "keys"),
        ("synccheck", "sm80", "all"),
        ("racecheck", "", "few"),
        ("racecheck", "sm80", "few"),
        ("initcheck", "sm80", "few"),
    ],
)
def test_sanitizers_find_nothing(tool: str, path: str, how_many: str) -> None:
    assert_finds_nothing(
        tool,
        PROGRAM,
        how_many,
        PROFILING_LAB_ATTENTION_PATH=path,
        PYTORCH_NO_CUDA_MEMORY_CACHING="1",  # so that the tools see every tensor's own ends
    )
