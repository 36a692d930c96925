# SPDX-License-Identifier: Apache-2.0
"""How far attention is from float64: ours, PyTorch's formulas in the same dtype, and PyTorch's fast backends.

    python benchmarks/attention_error.py --output benchmarks/results/attention_error.jsonl
    PROFILING_LAB_ATTENTION_PATH=sm80 python benchmarks/attention_error.py --output ...    # the portable path

Of the output and of each gradient: the largest error, the mean of its absolute value, and the mean of the
signed error in units of what independent errors of that size would leave by chance ("bias"). Times nothing.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from itertools import product
from pathlib import Path

import torch
from attention_cases import Problem, problem
from attention_providers import PORTABLE, Attention, as_named, inputs, providers
from script import run_script
from torch import Tensor

from profiling_lab.measure import ResultsFile, machine
from profiling_lab.ops.attention import reference

NAMES = ("out", "dq", "dk", "dv")
OURS = ("flash-sm80",) if PORTABLE else ("flash", "flash-deterministic")
OTHERS = ("eager", "sdpa-cudnn", "sdpa-flash")


def results_of(function: Attention, tensors: list[Tensor], causal: bool) -> list[Tensor]:
    leaves = [x.detach().requires_grad_() for x in tensors[:3]]
    out = function(*leaves, causal)
    return [out.detach(), *torch.autograd.grad(out, leaves, tensors[3])]


def exact(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    out: Tensor = reference(q, k, v, causal=causal)
    return out


def errors(found: Tensor, truth: Tensor) -> dict[str, tuple[float, str]]:
    error = found.double() - truth
    by_chance = error.std().item() / math.sqrt(error.numel())
    return {
        "max_error": (error.abs().max().item(), "1"),
        "mean_error": (error.abs().mean().item(), "1"),
        "bias": (error.mean().item() / by_chance if by_chance else 0.0, "standard errors"),
    }


def problems(device: str) -> list[Problem]:
    on_cpu = device == "cpu"
    return [
        problem("backward", dim, rows, causal, 1 if on_cpu else 2, 4, kv_heads, dtype)
        for dtype, dim, rows, causal, kv_heads in product(
            ("float32", "bfloat16") if on_cpu else ("bfloat16", "float16"),
            (64, 128, 256),
            (300 if on_cpu else 1000,),
            (False, True),
            (4, 2),
        )
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, help="append JSON lines here")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    results = ResultsFile(options.output, machine(options.device))
    everyone = providers()
    wanted: dict[str, Callable[..., Tensor]] = {
        name: function
        for name in (*OURS, *OTHERS)
        if not isinstance(function := everyone[name], str)
        and not (options.device == "cpu" and name == "sdpa-cudnn")
    }
    for one in problems(options.device):
        tensors = inputs(one, options.device)
        truth = results_of(exact, [x.double() for x in tensors], one.causal)
        case = {"dtype": one.dtype, "head_dim": one.head_dim, "rows": one.rows, "causal": one.causal}
        case |= {"heads": one.heads, "kv_heads": one.kv_heads}
        line = one.label
        for name, function in wanted.items():
            with as_named(name):
                found = results_of(function, tensors, one.causal)
            for tensor, a, b in zip(NAMES, found, truth, strict=True):
                for metric, (value, unit) in errors(a, b).items():
                    results.add("attention_error", {**case, "tensor": tensor}, name, metric, value, unit)
                if tensor in ("out", "dq"):
                    line += f" {name} {tensor} {(a.double() - b).abs().max().item():.1e}"
        print(line, flush=True)
    return 0


if __name__ == "__main__":
    run_script(main)
