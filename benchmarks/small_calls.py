# SPDX-License-Identifier: Apache-2.0
"""Calls so small that the host takes longer than the GPU: ours, eager PyTorch, torch.compile and Liger.

    python benchmarks/small_calls.py -o benchmarks/results/small_calls.jsonl
    python benchmarks/small_calls.py --ops layer_norm_gelu --rows 1 64 --modes default reduce-overhead
    python benchmarks/small_calls.py --prepare         only fill torch.compile's cache, which takes longest
    python benchmarks/small_calls.py --device cpu      the host's part alone: on the CPU, of hardly any data

What is called, in bfloat16 (float32 on the CPU):
  layer_norm_gelu   n rows of 4096 columns
  heavy_layer       n rows of 512 columns: a chain of three products
  attention         n rows that look back at one another, 16 heads of 128
  decode            attention of one row in each of n sequences to 1024 keys; forward only

"forward" runs without gradients, "both" is a forward that wants them and torch.autograd.grad for all inputs.
Mode "stream" is the time of a call in a Python loop: the host's, or the GPU's where that is longer. "graph"
is the time of a call in a CUDA graph, which has no host in it. All providers take turns. Attention's peer is
F.scaled_dot_product_attention; its tensors lie as it wants them, and ours as we do.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from capturable import capturable
from script import run_script, say
from torch import Tensor
from torch.nn import functional as F

from profiling_lab.measure import ResultsFile, Timing, compare, machine, ratio
from profiling_lab.ops.attention import flash_attention
from profiling_lab.ops.heavy_layer import heavy_layer
from profiling_lab.ops.heavy_layer import reference as heavy_layer_reference
from profiling_lab.ops.layer_norm_gelu import layer_norm_gelu
from profiling_lab.ops.layer_norm_gelu import reference as layer_norm_gelu_reference

BENCHMARK = "small_calls"
ROWS = (1, 4, 16, 64, 256)
MODES = ("default", "max-autotune-no-cudagraphs", "reduce-overhead")
HEADS = 16

Function = Callable[..., Tensor]
Call = Callable[[], object]
Case = dict[str, str | int | float | bool]


@dataclass(frozen=True, slots=True)
class Subject:
    """What is called: `shapes` of the arguments for n, ours, and the formula as torch has it."""

    shapes: Callable[[int], tuple[tuple[int, ...], ...]]
    ours: Function
    formula: Function
    heads_first: bool = False
    """The formula's arguments lie as (batch, heads, rows, head_dim)."""
    directions: tuple[str, ...] = ("forward", "both")


def subjects(device: str) -> dict[str, Subject]:
    wide, narrow, head, keys = (4096, 512, 128, 1024) if device == "cuda" else (8, 8, 8, 1)
    causal = partial(F.scaled_dot_product_attention, is_causal=True)
    return {
        "layer_norm_gelu": Subject(
            lambda n: ((n, wide), (wide,), (wide,)), layer_norm_gelu, layer_norm_gelu_reference
        ),
        "heavy_layer": Subject(
            lambda n: ((n, narrow), *[(narrow, narrow)] * 3, (narrow,)), heavy_layer, heavy_layer_reference
        ),
        "attention": Subject(
            lambda n: ((1, n, HEADS, head),) * 3, partial(flash_attention, causal=True), causal, True
        ),
        "decode": Subject(
            lambda n: ((n, 1, HEADS, head), *[(n, keys, HEADS, head)] * 2),
            flash_attention,
            F.scaled_dot_product_attention,
            True,
            ("forward",),
        ),
    }


def liger() -> Function | None:
    """Liger's layer norm, and torch's GELU behind it."""
    try:
        from liger_kernel.ops.layer_norm import LigerLayerNormFunction
    except ImportError as error:
        say(f"no Liger: {error}")
        return None
    return lambda x, weight, bias: F.gelu(LigerLayerNormFunction.apply(x, weight, bias, 1e-5))


def providers(name: str, subject: Subject, modes: list[str], with_liger: bool) -> dict[str, Function]:
    found: dict[str, Function] = {"ours": subject.ours, "eager": subject.formula}
    for mode in () if subject.heads_first else modes:  # attention is one kernel as it is
        found[f"compile {mode}"] = torch.compile(subject.formula, mode=mode, dynamic=False)
    theirs = liger() if with_liger and name == "layer_norm_gelu" else None
    if theirs is not None:
        found["liger + gelu"] = theirs
    return found


def inputs(subject: Subject, n: int, device: str) -> list[Tensor]:
    """The arguments, and behind them the gradient of the result, which is like the first."""
    generator = torch.Generator(device).manual_seed(1)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    shapes = subject.shapes(n)
    return [
        torch.empty(shape, device=device, dtype=dtype).normal_(0, shape[-1] ** -0.5, generator=generator)
        for shape in (*shapes, shapes[0])
    ]


def both(function: Function, leaves: list[Tensor], dy: Tensor) -> tuple[Tensor, ...]:
    gradients: tuple[Tensor, ...] = torch.autograd.grad(function(*leaves), leaves, dy)
    return gradients


def calls(
    subject: Subject, everyone: dict[str, Function], n: int, direction: str, device: str
) -> dict[str, Call]:
    """What each provider is to run, once it has run here; one that cannot is named and left out."""
    found: dict[str, Call] = {}
    for name, function in everyone.items():
        *arguments, dy = inputs(subject, n, device)
        if subject.heads_first and name != "ours":
            *arguments, dy = (t.transpose(1, 2).contiguous() for t in (*arguments, dy))
        call: Call = partial(function, *arguments)
        if direction == "both":
            call = partial(both, function, [t.requires_grad_() for t in arguments], dy)
        try:
            call()
        except Exception as error:
            if name == "ours":
                raise
            say(f"left out: {name}: {str(error).splitlines()[0]}")
            continue
        found[name] = call
    return found


def timed(variants: dict[str, Call], mode: str, rounds: int) -> dict[str, Timing]:
    """A provider that cannot be captured into a graph is left out of that mode."""
    if mode == "host":
        return compare(variants, device="cpu", rounds=rounds, warmup_s=0.02, calls_per_sample=50)
    if mode == "graph":  # reduce-overhead has its own graphs
        variants = capturable({who: call for who, call in variants.items() if "reduce-overhead" not in who})
    return compare(
        variants,
        mode="graph" if mode == "graph" else "stream",
        rounds=rounds,
        warmup_s=0.01,
        cold=False,
        calls_per_sample=20,
    )


def measure(
    results: ResultsFile,
    name: str,
    subject: Subject,
    everyone: dict[str, Function],
    n: int,
    device: str,
    rounds: int,
) -> None:
    for direction in subject.directions:
        with torch.set_grad_enabled(direction == "both"):
            variants = calls(subject, everyone, n, direction, device)
            for mode in ("stream", "graph") if device == "cuda" else ("host",):
                timings = timed(variants, mode, rounds)
                case: Case = {"op": name, "n": n, "direction": direction, "mode": mode}
                for provider, timing in timings.items():
                    results.add_timing(BENCHMARK, case, provider, timing)
                worst = max(ratio(timings["ours"], t) for who, t in timings.items() if who != "ours")
                results.add(BENCHMARK, case, "ours", "over_best_peer", worst, "1")
                each = "  ".join(
                    f"{who} {t.median_ns / 1e3:.2f} ({t.iqr_frac:.0%})" for who, t in timings.items()
                )
                print(f"{name} n {n} {direction} {mode}: over best peer {worst:.3f} | us: {each}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", "-o", type=Path, help="append JSON lines here (default: print only)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--ops", nargs="+", choices=tuple(subjects("cpu")), default=tuple(subjects("cpu")))
    parser.add_argument("--rows", nargs="+", type=int, default=ROWS, help="values of n")
    parser.add_argument("--modes", nargs="*", choices=MODES, default=("default",), help="of torch.compile")
    parser.add_argument("--compile-rows", nargs="+", type=int, help="compile for these n only (default: all)")
    parser.add_argument("--no-liger", action="store_true", help="its kernels take seconds to compile")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--prepare", action="store_true", help="compile, time nothing")
    options = parser.parse_args()

    import torch._dynamo

    torch._dynamo.config.cache_size_limit = 64
    results = ResultsFile(None if options.prepare else options.output, machine(options.device))
    for name in options.ops:
        subject = subjects(options.device)[name]
        everyone = providers(
            name, subject, list(options.modes), options.device == "cuda" and not options.no_liger
        )
        for n in options.rows:
            these = everyone
            if options.compile_rows is not None and n not in options.compile_rows:
                these = {who: call for who, call in everyone.items() if not who.startswith("compile")}
            if not options.prepare:
                measure(results, name, subject, these, n, options.device, options.rounds)
                continue
            for direction in subject.directions:
                with torch.set_grad_enabled(direction == "both"):
                    calls(subject, these, n, direction, options.device)
    return 0


if __name__ == "__main__":
    run_script(main)
