# SPDX-License-Identifier: Apache-2.0
"""Attention of one new row in each sequence to its cached keys: flash_attention and PyTorch's backends.

    python benchmarks/attention_decode.py -o benchmarks/results/attention_decode.jsonl
    python benchmarks/attention_decode.py --sequences 1 8 --keys 1024 --heads 32/8

Times are of the GPU, with a cold L2 cache, all providers in turns. `share_of_copy` is the bytes of K and V
over the time, as a share of the rate at which this GPU copies.
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

from profiling_lab.measure import ResultsFile, compare, copy_rate, machine, ratio
from profiling_lab.ops import flash_attention

BENCHMARK = "attention_decode"
LARGEST = 24 << 30  # bytes of a cache


def sdpa(backend: SDPBackend, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    with sdpa_kernel(backend):
        return F.scaled_dot_product_attention(q, k, v, enable_gqa=q.shape[1] != k.shape[1])


BACKENDS = {
    "sdpa-flash": SDPBackend.FLASH_ATTENTION,
    "sdpa-cudnn": SDPBackend.CUDNN_ATTENTION,
    "sdpa-efficient": SDPBackend.EFFICIENT_ATTENTION,
}


def variants(
    sequences: int, keys: int, heads: int, kv_heads: int, dim: int
) -> dict[str, Callable[[], Tensor]]:
    """The calls; SDPA gets its cache as (sequences, heads, keys, head_dim), the order that suits it."""
    generator = torch.Generator("cuda").manual_seed(1)

    def normal(rows: int, count: int) -> Tensor:
        shape = (sequences, rows, count, dim)
        return torch.empty(shape, device="cuda", dtype=torch.bfloat16).normal_(generator=generator)

    q, k, v = normal(1, heads), normal(keys, kv_heads), normal(keys, kv_heads)
    theirs = [x.transpose(1, 2).contiguous() for x in (q, k, v)]
    ours = flash_attention(q, k, v)
    found: dict[str, Callable[[], Tensor]] = {"ours": partial(flash_attention, q, k, v)}
    for name, backend in BACKENDS.items():
        call = partial(sdpa, backend, *theirs)
        try:
            torch.testing.assert_close(call().transpose(1, 2), ours, rtol=2e-2, atol=1e-2)
        except RuntimeError as error:
            say(f"left out: {name}: {str(error).splitlines()[0]}")
            continue
        found[name] = call
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-o", "--output", type=Path, help="JSON lines, appended (default: none)")
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 4, 16, 64, 256])
    parser.add_argument("--keys", type=int, nargs="+", default=[1024, 8192, 65536])
    parser.add_argument("--heads", nargs="+", default=["16/16", "32/8", "64/8"], metavar="HEADS/KEY_HEADS")
    parser.add_argument("--head-dim", type=int, nargs="+", default=[128])
    parser.add_argument("--rounds", type=int, default=20)
    args = parser.parse_args()
    results = ResultsFile(args.output, machine())
    copies = copy_rate()
    say(f"copy rate {copies / 1e12:.3f} TB/s")
    for dim, pair, keys, sequences in product(args.head_dim, args.heads, args.keys, args.sequences):
        heads, kv_heads = (int(part) for part in pair.split("/"))
        cache = 4 * sequences * keys * kv_heads * dim
        if cache > LARGEST:
            continue
        calls = variants(sequences, keys, heads, kv_heads, dim)
        timings = compare(calls, rounds=args.rounds, warmup_s=0.01)
        case: dict[str, Any] = {"sequences": sequences, "keys": keys, "heads": heads, "kv_heads": kv_heads}
        case["head_dim"] = dim
        shares = []
        for name, timing in timings.items():
            share = cache / (timing.median_ns * 1e-9) / copies
            results.add_timing(BENCHMARK, case, name, timing)
            results.add(BENCHMARK, case, name, "share_of_copy", share, "1")
            shares.append(f"{name} {timing.median_ns / 1000:.1f} us ({share:.2f})")
        peers = [ratio(timings["ours"], t) for name, t in timings.items() if name != "ours"]
        if peers:
            results.add(BENCHMARK, case, "ours", "over_best_peer", max(peers), "1")
        label = f"b {sequences:<4} k {keys:<6} h {pair:<6} d {dim:<4}"
        say(f"{label} over best peer {max(peers, default=0):.3f} | {'  '.join(shares)}")
        del calls
        torch.cuda.empty_cache()
    return 0


if __name__ == "__main__":
    run_script(main)
