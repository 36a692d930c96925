# SPDX-License-Identifier: Apache-2.0
"""flash_attention beside PyTorch's own backends and every fast attention that is installed.

    python benchmarks/benchmark_attention.py --seq-lengths 128,256,512,1024 --output benchmark_results.json
    python benchmarks/benchmark_attention.py --seq-len 8192 --head-dim 128 --causal both --direction both

Every provider is first compared with float64 at a small size and left out, aloud, if it is wrong or missing.
Then all take turns within each round. TFLOP/s count 4 b h s^2 d forward (half of it causal) and 2.5 times
that backward, whatever an implementation really computes. --output ending in .jsonl appends lines, any other
name gets one JSON array, which visualize_results.py reads.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from profiling_lab.measure import ResultsFile, compare, machine
from profiling_lab.ops.attention import flash_attention, reference

Attention = Callable[..., Tensor]
"""q, k, v as (batch, rows, heads, head_dim), and causal."""


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def sdpa(backend: SDPBackend, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    with sdpa_kernel(backend):
        out = F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=causal
        )
    return out.transpose(1, 2)


def ours(deterministic: bool, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    out: Tensor = flash_attention(q, k, v, causal=causal, deterministic=deterministic)
    return out


def providers() -> dict[str, Attention]:
    found: dict[str, Attention] = {
        "flash": partial(ours, False),
        "flash-deterministic": partial(ours, True),
        "sdpa-cudnn": partial(sdpa, SDPBackend.CUDNN_ATTENTION),
        "sdpa-flash": partial(sdpa, SDPBackend.FLASH_ATTENTION),
        "sdpa-math": partial(sdpa, SDPBackend.MATH),
        "naive": lambda q, k, v, causal: reference(q, k, v, causal=causal),
    }
    try:
        from flash_attn_interface import flash_attn_func as fa3

        found["flash-attn-3"] = lambda q, k, v, causal: fa3(q, k, v, causal=causal)
    except ImportError as error:
        say(f"no FlashAttention-3: {error}")
    try:
        from flash_attn.cute import flash_attn_func as fa4

        def first(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
            out = fa4(q, k, v, causal=causal)
            return out[0] if isinstance(out, tuple) else out

        found["flash-attn-4"] = first
    except ImportError as error:
        say(f"no FlashAttention-4: {error}")
    return found


def inputs(
    batch: int, rows: int, heads: int, kv_heads: int, dim: int, dtype: torch.dtype, device: str
) -> list[Tensor]:
    generator = torch.Generator(device).manual_seed(1)
    counts = (heads, kv_heads, kv_heads, heads)
    return [
        torch.empty(batch, rows, h, dim, device=device, dtype=dtype).normal_(generator=generator)
        for h in counts
    ]


def backward_of(
    function: Attention, q: Tensor, k: Tensor, v: Tensor, dout: Tensor, causal: bool
) -> Callable[[], Any]:
    """The backward of one forward, to be called any number of times."""
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    out = function(*leaves, causal)
    return lambda: torch.autograd.grad(out, leaves, dout, retain_graph=True)


def right(function: Attention, dim: int, dtype: torch.dtype, device: str) -> bool:
    """Whether values and gradients are as near to float64 as the dtype allows; raises where it cannot run."""
    q, k, v, dout = inputs(2, 384, 2, 2, dim, dtype, device)
    for causal in (False, True):
        doubles = [x.double() for x in (q, k, v, dout)]
        truth = [reference(*doubles[:3], causal=causal)]
        truth += backward_of(lambda *x: reference(*x[:3], causal=x[3]), *doubles, causal)()
        got = [function(q, k, v, causal), *backward_of(function, q, k, v, dout, causal)()]
        for a, b in zip(got, truth, strict=True):
            if not ((a.double() - b).norm() / b.norm()).item() < max(4 * torch.finfo(dtype).eps, 1e-5):
                return False
    return True


def usable(wanted: list[str] | None, dim: int, dtype: torch.dtype, device: str) -> dict[str, Attention]:
    found = {}
    for name, function in providers().items():
        if wanted is not None and name not in wanted:
            continue
        try:
            if right(function, dim, dtype, device):
                found[name] = function
            else:
                say(f"left out at head_dim {dim}: {name} is wrong")
        except Exception as error:
            say(f"left out at head_dim {dim}: {name}: {str(error).splitlines()[0]}")
    return found


def run(options: argparse.Namespace, results: ResultsFile) -> None:
    dtype, device = getattr(torch, options.dtype), options.device
    masks = {"no": (False,), "yes": (True,), "both": (False, True)}[options.causal]
    directions = ("forward", "backward") if options.direction == "both" else (options.direction,)
    for dim in options.head_dim:
        everyone = usable(options.impl, dim, dtype, device)
        if not everyone:
            continue
        for rows in options.seq_lengths:
            batch = options.batch or max(1, 16384 // rows)
            heads = options.heads or max(1, 2048 // dim)
            kv_heads = options.kv_heads or heads
            q, k, v, dout = inputs(batch, rows, heads, kv_heads, dim, dtype, device)
            for causal in masks:
                for direction in directions:
                    flops = 4 * batch * heads * rows * rows * dim // (2 if causal else 1)
                    flops = flops * 5 // 2 if direction == "backward" else flops
                    variants: dict[str, Callable[[], object]] = {}
                    for name, function in everyone.items():
                        if name in ("naive", "sdpa-math") and rows > options.naive_up_to:
                            continue  # the score matrix of all heads would not fit, or take minutes
                        if kv_heads != heads and name.startswith("sdpa"):
                            continue
                        if direction == "backward":
                            variants[name] = backward_of(function, q, k, v, dout, causal)
                        elif name != "flash-deterministic":
                            variants[name] = partial(function, q, k, v, causal)
                    with torch.set_grad_enabled(direction == "backward"):
                        timings = compare(
                            variants, device=device, rounds=options.rounds, warmup_s=0.05, cold=False
                        )
                    case = {"head_dim": dim, "rows": rows, "batch": batch, "heads": heads}
                    case |= {"kv_heads": kv_heads, "causal": causal}
                    case |= {"dtype": options.dtype, "direction": direction}
                    line = f"d {dim:<4} s {rows:<6} {'causal' if causal else 'full':<7} {direction:<9}"
                    for name, timing in timings.items():
                        rate = flops / timing.median_ns / 1e3
                        results.add_timing("attention", case, name, timing)
                        results.add("attention", case, name, "rate", rate, "TFLOP/s")
                        line += f" {name} {rate:.0f} (+-{timing.iqr_frac:.1%})"
                    print(line, flush=True)


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--seq-lengths", "--seq-len", type=numbers, default=[512, 1024, 2048, 4096, 8192, 16384]
    )
    parser.add_argument("--head-dim", type=numbers, default=[64, 128, 256])
    parser.add_argument("--causal", choices=("no", "yes", "both"), default="both", nargs="?", const="yes")
    parser.add_argument("--direction", choices=("forward", "backward", "both"), default="both")
    parser.add_argument("--impl", type=lambda text: text.split(","), help="only these providers")
    parser.add_argument("--batch", type=int, help="default: 16384 rows in all")
    parser.add_argument("--heads", type=int, help="default: 2048 columns in all")
    parser.add_argument("--kv-heads", type=int, help="fewer key heads than heads: grouped queries")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--naive-up-to", type=int, default=2048)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    lines = options.output is not None and options.output.suffix == ".jsonl"
    results = ResultsFile(options.output if lines else None, machine(options.device))
    run(options, results)
    if options.output is not None and not lines:
        options.output.write_text(json.dumps(results.lines, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
