# SPDX-License-Identifier: Apache-2.0
"""Attention under FlexAttention's block masks: ours, FlexAttention, and the same masks as options.

    python benchmarks/attention_block_mask.py -o benchmarks/results/attention_block_mask.jsonl
    python benchmarks/attention_block_mask.py --head-dim 64 128 256 --without-flex

Forward of 2 x 8192 rows, heads x head_dim = 2048, bfloat16. Masks: causal; documents of 1900 rows, causal;
prefix, which all rows see, then causal; holes, which no option can say. Providers:
  ours     flash_attention_with_block_mask with prepare_block_mask done before
  option   flash_attention with causal=True, or with documents as variable lengths, where that is the same
  flex     torch.compile(flex_attention), which compiles for each mask

Times are of the GPU with a cold L2 cache, all providers in turns; `rate` counts the pairs that are seen.
`prepare` is the wall clock of prepare_block_mask.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from script import run_script, say
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from profiling_lab.measure import ResultsFile, compare, machine, ratio
from profiling_lab.ops import flash_attention, flash_attention_with_block_mask, prepare_block_mask

BENCHMARK = "attention_block_mask"
BATCH, ROWS, DOCUMENT, PREFIX = 2, 8192, 1900, 2048


def causal(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return j <= i


def documents(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return (i // DOCUMENT == j // DOCUMENT) & (j <= i)


def prefix(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return (j <= i) | (j < PREFIX)


def holes(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return (j <= i) & ((i // 256 + j // 256) % 4 != 1) & ((i + j) % 64 != 0)


MASKS = (causal, documents, prefix, holes)


def pairs(mask_mod: Callable[..., Tensor]) -> int:
    i, j = torch.arange(ROWS, device="cuda"), torch.arange(ROWS, device="cuda")
    zero = torch.zeros((), dtype=torch.long, device="cuda")
    return sum(int(mask_mod(zero, zero, some[:, None], j[None]).sum()) for some in i.split(1024))


def as_option(
    mask_mod: Callable[..., Tensor], q: Tensor, k: Tensor, v: Tensor
) -> Callable[[], Tensor] | None:
    if mask_mod is causal:
        return lambda: flash_attention(q, k, v, causal=True)  # type: ignore[no-any-return]
    if mask_mod is not documents:
        return None
    ends = [*range(DOCUMENT, ROWS, DOCUMENT), ROWS]
    offsets = torch.tensor([0, *(b * ROWS + end for b in range(BATCH) for end in ends)]).int().cuda()
    flat = [x.flatten(0, 1) for x in (q, k, v)]

    def packed() -> Tensor:
        out: Tensor = flash_attention(*flat, causal=True, cu_seqlens_q=offsets, cu_seqlens_k=offsets)
        return out.unflatten(0, (BATCH, ROWS))

    return packed


def as_flex(mask: BlockMask, q: Tensor, k: Tensor, v: Tensor) -> Callable[[], Tensor]:
    compiled = torch.compile(flex_attention)
    theirs = [x.transpose(1, 2).contiguous() for x in (q, k, v)]
    return lambda: compiled(*theirs, block_mask=mask).transpose(1, 2)  # type: ignore[no-any-return]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-o", "--output", type=Path, help="JSON lines, appended (default: none)")
    parser.add_argument("--head-dim", type=int, nargs="+", default=[64, 128])
    parser.add_argument("--without-flex", action="store_true", help="it compiles for half a minute")
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    results = ResultsFile(args.output, machine())
    for dim in args.head_dim:
        heads = 2048 // dim
        q, k, v = (torch.randn(BATCH, ROWS, heads, dim, device="cuda", dtype=torch.bfloat16) for _ in "qkv")
        for mask_mod in MASKS:
            case: dict[str, Any] = {"mask": mask_mod.__name__, "head_dim": dim, "rows": ROWS, "heads": heads}
            mask = create_block_mask(mask_mod, None, None, ROWS, ROWS, device="cuda")
            torch.cuda.synchronize()
            start = time.perf_counter()
            tables = prepare_block_mask(mask)
            torch.cuda.synchronize()
            results.add(BENCHMARK, case, "ours", "prepare", time.perf_counter() - start, "s")
            calls = {"ours": partial(flash_attention_with_block_mask, q, k, v, tables)}
            if option := as_option(mask_mod, q, k, v):
                calls["option"] = option
            if not args.without_flex:
                calls["flex"] = as_flex(mask, q, k, v)
            truth = calls["ours"]()
            for call in calls.values():
                torch.testing.assert_close(call(), truth, rtol=2e-2, atol=1e-2)
            timings = compare(calls, rounds=args.rounds, warmup_s=0.01)
            flops, said = 4 * BATCH * heads * dim * pairs(mask_mod), []
            for name, timing in timings.items():
                results.add_timing(BENCHMARK, case, name, timing)
                results.add(BENCHMARK, case, name, "rate", flops / timing.median_ns / 1e3, "TFLOP/s")
                said.append(f"{name} {flops / timing.median_ns / 1e3:.0f}")
                if name != "ours":
                    results.add(BENCHMARK, case, "ours", f"over_{name}", ratio(timing, timings["ours"]), "1")
            say(f"d{dim} {mask_mod.__name__:<10} {'  '.join(said)} TFLOP/s")
    return 0


if __name__ == "__main__":
    run_script(main)
