# SPDX-License-Identifier: Apache-2.0
"""A serving loop: prompts of mixed lengths, then one token a step for all sequences, in one CUDA graph.

    python benchmarks/serving_loop.py -o benchmarks/results/serving_loop.jsonl
    python benchmarks/serving_loop.py --sequences 1 16 --prompt 4096 --page-size 16
    python benchmarks/serving_loop.py --device cpu        a tiny model, no graph

The model is a decoder like Llama with weights drawn at random (serving_model.py). Providers of its attention:
  ours        prompts packed by flash_attention, a paged cache by flash_attention_with_cache
  sdpa        prompts padded, a cache with room for the longest sequence and a mask, both by SDPA
  flash-attn  as ours, by flash_attn's functions, where it is installed; its pages have 256 keys

Times are of the wall clock, from one synchronization to the next, all providers in turns: of the prompts with
the first token, and of the steps that follow. `tokens_per_second` counts the tokens of these steps.
"""

from __future__ import annotations

import argparse
from itertools import product
from pathlib import Path

import torch
from script import run_script, say
from serving_model import Config, FlashAttn, Padded, Paged, Server, Weights

from profiling_lab.measure import ResultsFile, compare, machine, ratio

BENCHMARK = "serving_loop"
TOLERANCE = 0.05  # of the largest logit, for bfloat16


def prompts(sequences: int, longest: int, vocabulary: int, device: str) -> list[torch.Tensor]:
    """Lengths from a quarter of the longest one to it, evenly spread; the same in every run."""
    generator = torch.Generator().manual_seed(1)
    lengths = torch.linspace(longest, max(longest // 4, 1), sequences).long().tolist()
    return [torch.randint(vocabulary, (n,), generator=generator).to(device) for n in lengths]


def servers(
    weights: Weights, asked: list[torch.Tensor], steps: int, page_size: int, graph: bool
) -> dict[str, Server]:
    """Those whose logits, of the first step behind the prompts, are those of SDPA."""
    found: dict[str, Server] = {}
    truth: torch.Tensor | None = None
    first: torch.Tensor | None = None
    kinds = {"sdpa": Padded, "ours": Paged, "flash-attn": FlashAttn}
    for name, kind in kinds.items():
        try:
            server = Server(weights, kind(weights.config, asked, steps, page_size), asked, steps)
            server.prefill()
            first = server.token.clone() if first is None else first
            server.token.copy_(first)
            server.step()
        except (ImportError, RuntimeError) as error:
            say(f"left out: {name}: {str(error).splitlines()[0]}")
            continue
        truth = server.logits.clone() if truth is None else truth  # the capture below overwrites them
        error = float((server.logits - truth).abs().max() / truth.abs().max())
        if error > TOLERANCE:
            say(f"left out: {name}: its logits differ by {error:.3f} of the largest one")
            continue
        if graph:
            server.capture()
        found[name] = server
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-o", "--output", type=Path, help="JSON lines, appended (default: none)")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--sequences", type=int, nargs="+", default=None, help="default: 1 16 64")
    parser.add_argument("--prompt", type=int, nargs="+", default=None, help="the longest; default: 1024 8192")
    parser.add_argument("--new-tokens", type=int, default=None, help="of each sequence (default: 128)")
    parser.add_argument("--page-size", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=10)
    args = parser.parse_args()
    on_gpu = args.device == "cuda"
    results = ResultsFile(args.output, machine(args.device))
    config = Config() if on_gpu else Config.tiny()
    weights = Weights(config, args.device, torch.bfloat16 if on_gpu else torch.float32)
    counts = args.sequences or ([1, 16, 64] if on_gpu else [2])
    longest = args.prompt or ([1024, 8192] if on_gpu else [12])
    new = args.new_tokens or (128 if on_gpu else 6)
    for length, sequences in product(longest, counts):
        asked = prompts(sequences, length, config.vocabulary, args.device)
        measured = servers(weights, asked, new, args.page_size, graph=on_gpu)
        case = {"sequences": sequences, "prompt": length, "new_tokens": new, "page_size": args.page_size}
        case |= {"layers": config.layers, "d_model": config.d_model, "graph": on_gpu}
        for phase in ("prompts", "steps"):
            calls = {name: s.prefill if phase == "prompts" else s.decode for name, s in measured.items()}
            timings = compare(
                calls,
                device=args.device,
                mode="host",
                rounds=args.rounds,
                warmup_s=0.1 if on_gpu else 0,
            )
            said = []
            for name, timing in timings.items():
                results.add_timing(BENCHMARK, case | {"phase": phase}, name, timing)
                said.append(f"{name} {timing.median_ns / 1e6:.2f} ms")
                if phase == "steps":
                    rate = sequences * (new - 1) / (timing.median_ns * 1e-9)
                    results.add(BENCHMARK, case, name, "tokens_per_second", rate, "1/s")
                    said[-1] += f" ({rate:.0f} tokens/s)"
            if {"ours", "sdpa"} <= timings.keys():
                gain = ratio(timings["sdpa"], timings["ours"])
                results.add(BENCHMARK, case | {"phase": phase}, "ours", "over_sdpa", gain, "1")
                said.append(f"ours over sdpa {gain:.2f}")
            say(f"b {sequences:<4} prompt {length:<6} {phase:<8} {'  '.join(said)}")
        del measured
    return 0


if __name__ == "__main__":
    run_script(main)
