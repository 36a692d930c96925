# SPDX-License-Identifier: Apache-2.0
"""Parts of prompts against a cache of keys, alone and together with single rows: flash_attention_with_cache.

    python benchmarks/attention_prefill.py -o benchmarks/results/attention_prefill.jsonl
    python benchmarks/attention_prefill.py --rows 2048 --keys 32768 --page-size 1 16 --rounds 30

Each of --sequences has --keys keys in a cache of pages and brings --rows more, which the call appends.
Providers:
  ours        flash_attention_with_cache with cu_seqlens_q
  varlen      flash_attention of the same rows to keys that lie one behind the other: what pages cost
  sdpa-flash  the same as one batch, causal from the last key, without pages (all sequences are alike here)

The mixed case is one such part and --decode sequences of one row each: one call, next to the sum of two calls
(`apart`). Times are of the GPU with a cold L2 cache, all providers in turns; `rate` counts the pairs that are
seen.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from script import run_script, say
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right

from profiling_lab.measure import ResultsFile, compare, copy_rate, machine, ratio
from profiling_lab.ops import flash_attention, flash_attention_with_cache

BENCHMARK = "attention_prefill"
Calls = dict[str, Callable[[], Any]]


class Cache:
    """Sequences with `keys` keys each, in pages in a random order, and their new rows."""

    def __init__(
        self, rows: list[int], keys: list[int], heads: int, kv_heads: int, dim: int, page: int
    ) -> None:
        generator = torch.Generator("cuda").manual_seed(1)

        def normal(*shape: int) -> Tensor:
            return torch.empty(shape, device="cuda", dtype=torch.bfloat16).normal_(generator=generator)

        def offsets(counts: list[int]) -> Tensor:
            return torch.tensor([0, *counts]).cumsum(0).int().cuda()

        totals = [k + r for k, r in zip(keys, rows, strict=True)]
        self.q, self.cu_q, self.cu_k = normal(sum(rows), heads, dim), offsets(rows), offsets(totals)
        self.k, self.v = (normal(sum(totals), kv_heads, dim) for _ in "kv")
        starts = self.cu_k.tolist()
        self.new = [
            torch.cat([side[starts[b] + keys[b] : starts[b + 1]] for b in range(len(rows))])
            for side in (self.k, self.v)
        ]
        self.lengths = torch.tensor(keys, dtype=torch.int32, device="cuda")
        per_sequence = -(-max(totals) // page)
        count = len(rows) * per_sequence
        order = torch.randperm(count, generator=torch.Generator().manual_seed(1)).int()
        self.table = order.reshape(len(rows), per_sequence).cuda()
        self.cache = [
            torch.empty(count, page, kv_heads, dim, device="cuda", dtype=torch.bfloat16) for _ in "kv"
        ]
        for cached, side in zip(self.cache, (self.k, self.v), strict=True):
            cached.zero_()
            for b in range(len(rows)):
                at = torch.arange(keys[b], device="cuda")
                pages = self.table[b].long()[at // page]
                cached[pages, at % page] = side[starts[b] : starts[b] + keys[b]]

    def ours(self) -> Tensor:
        out: Tensor = flash_attention_with_cache(
            self.q, *self.cache, *self.new, cache_seqlens=self.lengths, block_table=self.table,
            cu_seqlens_q=self.cu_q,
        )  # fmt: skip
        return out

    def varlen(self) -> Tensor:
        out: Tensor = flash_attention(
            self.q, self.k, self.v, causal=True, cu_seqlens_q=self.cu_q, cu_seqlens_k=self.cu_k
        )
        return out

    def pairs(self) -> int:
        rows, keys = self.cu_q.diff().tolist(), self.cu_k.diff().tolist()
        return sum(r * k - r * (r - 1) // 2 for r, k in zip(rows, keys, strict=True))


def with_sdpa(cache: Cache, sequences: int, rows: int) -> Callable[[], Tensor]:
    q, k, v = (
        x.unflatten(0, (sequences, -1)).transpose(1, 2).contiguous() for x in (cache.q, cache.k, cache.v)
    )
    mask = causal_lower_right(rows, k.shape[2])

    def call() -> Tensor:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            out: Tensor = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
        return out.transpose(1, 2).flatten(0, 1)

    return call


def agreeing(calls: Calls) -> Calls:
    """Those that give what the first one gives."""
    found, truth = {}, None
    for name, call in calls.items():
        try:
            out = call()
            truth = out if truth is None else truth
            torch.testing.assert_close(out, truth, rtol=2e-2, atol=1e-2)
        except (RuntimeError, AssertionError) as error:
            say(f"left out: {name}: {str(error).strip().splitlines()[0]}")
            continue
        found[name] = call
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-o", "--output", type=Path, help="JSON lines, appended (default: none)")
    parser.add_argument("--sequences", type=int, default=2)
    parser.add_argument("--rows", type=int, nargs="+", default=[512, 2048])
    parser.add_argument("--keys", type=int, nargs="+", default=[1024, 8192, 32768])
    parser.add_argument("--page-size", type=int, nargs="+", default=[1, 16, 64, 256])
    parser.add_argument("--heads", default="32/8", metavar="HEADS/KEY_HEADS")
    parser.add_argument("--head-dim", type=int, nargs="+", default=[128])
    parser.add_argument(
        "--decode", type=int, default=64, help="single rows of the mixed case, 4096 keys each"
    )
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    results = ResultsFile(args.output, machine())
    heads, kv_heads = (int(part) for part in args.heads.split("/"))
    copies = copy_rate()
    for dim, keys, rows in product(args.head_dim, args.keys, args.rows):
        case: dict[str, Any] = {"sequences": args.sequences, "rows": rows, "keys": keys, "heads": heads}
        case |= {"kv_heads": kv_heads, "head_dim": dim}
        caches = {
            page: Cache([rows] * args.sequences, [keys] * args.sequences, heads, kv_heads, dim, page)
            for page in args.page_size
        }
        first = caches[args.page_size[0]]
        calls: Calls = {"varlen": first.varlen, "sdpa-flash": with_sdpa(first, args.sequences, rows)}
        calls |= {f"ours-{page}": cache.ours for page, cache in caches.items()}
        timings = compare(agreeing(calls), rounds=args.rounds, warmup_s=0.01)
        flops, said = 4 * first.pairs() * heads * dim, []
        for name, timing in timings.items():
            provider, _, page = name.partition("-") if name.startswith("ours") else (name, "", "")
            one = case | ({"page_size": int(page)} if page else {})
            rate = flops / timing.median_ns / 1e3
            results.add_timing(BENCHMARK, one, provider, timing)
            results.add(BENCHMARK, one, provider, "rate", rate, "TFLOP/s")
            over = ratio(timing, timings["varlen"])
            if page:
                results.add(BENCHMARK, one, provider, "over_varlen", over, "1")
            said.append(f"{name} {rate:.0f} ({over:.3f} x the time)")
        say(f"d{dim} rows {rows:<5} keys {keys:<6} {'  '.join(said)}")
        del caches, first, calls
        torch.cuda.empty_cache()
    for page in args.page_size:
        mixed(args.decode, page, heads, kv_heads, args.rounds, results, copies)
    return 0


def mixed(
    decode: int, page: int, heads: int, kv_heads: int, rounds: int, results: ResultsFile, copies: float
) -> None:
    """A part of a prompt and single rows in one call, next to one call for each."""
    dim, rows, keys, kept = 128, 2048, 8192, 4096
    make = partial(Cache, heads=heads, kv_heads=kv_heads, dim=dim, page=page)
    together, long = make([rows] + [1] * decode, [keys] + [kept] * decode), make([rows], [keys])
    short = make([1] * decode, [kept] * decode)
    q, new = short.q[:, None], [x[:, None] for x in short.new]

    def steps() -> Tensor:
        out: Tensor = flash_attention_with_cache(
            q, *short.cache, *new, cache_seqlens=short.lengths, block_table=short.table
        )
        return out

    torch.testing.assert_close(together.ours(), together.varlen(), rtol=2e-2, atol=1e-2)
    timings = compare(
        {"mixed": together.ours, "prompt": long.ours, "steps": steps}, rounds=rounds, warmup_s=0.01
    )
    apart = timings["prompt"].median_ns + timings["steps"].median_ns
    share = 4 * decode * kept * kv_heads * dim / (timings["steps"].median_ns * 1e-9) / copies
    case = {
        "rows": rows,
        "keys": keys,
        "decode": decode,
        "decode_keys": kept,
        "page_size": page,
        "head_dim": dim,
    }
    case |= {"heads": heads, "kv_heads": kv_heads}
    for name, timing in timings.items():
        results.add_timing(BENCHMARK, case | {"part": name}, "ours", timing)
    results.add(BENCHMARK, case, "ours", "mixed_over_apart", timings["mixed"].median_ns / apart, "1")
    results.add(BENCHMARK, case, "ours", "steps_share_of_copy", share, "1")
    said = "  ".join(f"{name} {timing.median_ns / 1000:.1f} us" for name, timing in timings.items())
    say(f"page {page:<4} {said}  mixed over apart {timings['mixed'].median_ns / apart:.3f}, copy {share:.2f}")


if __name__ == "__main__":
    run_script(main)
