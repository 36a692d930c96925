# SPDX-License-Identifier: Apache-2.0
"""scaled_dot_product_attention with a mask as a tensor, and with is_causal: what the latter saves.

    python benchmarks/diagnosis/masked_attention.py -o benchmarks/results/masked_attention.jsonl

bfloat16, forward and backward. The rule masked_attention says a gain from these figures
(profiling_lab/rules/masked_attention.py).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from profiling_lab.measure import ResultsFile, compare, machine

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the scripts that all benchmarks share
from script import run_script

SHAPES = (
    # batch, heads, length, head_dim: of a text encoder to a long-context model
    (16, 12, 512, 64),
    (8, 16, 1024, 64),
    (8, 16, 1024, 128),
    (4, 16, 2048, 64),
    (4, 16, 2048, 128),
    (2, 16, 4096, 64),
    (2, 16, 4096, 128),
)


def masks(batch: int, length: int) -> dict[str, dict[str, Any]]:
    every = torch.ones(batch, 1, length, length, device="cuda", dtype=torch.bool)
    return {
        "none": {},
        "is_causal": {"is_causal": True},
        "boolean, causal": {"attn_mask": every.tril()},
        "boolean, causal, for all sequences": {"attn_mask": every[:1].tril()},
        "boolean, padding": {"attn_mask": every[:, :, :1]},
        "numbers": {"attn_mask": torch.zeros(every.shape, device="cuda", dtype=torch.bfloat16)},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure attention with masks.")
    parser.add_argument("--output", "-o", type=Path, help="append JSON lines here")
    results = ResultsFile(parser.parse_args().output, machine("cuda"))
    for shape in SHAPES:
        case = dict(zip(("batch", "heads", "length", "head_dim"), shape, strict=True))
        for direction, ways in calls(*shape).items():
            for name, timing in compare(ways, cold=False).items():
                results.add_timing(
                    "masked_attention", {**case, "direction": direction}, name, timing, "gpu_time"
                )
                print(f"{shape} {direction:8} {name:36} {timing.median_ns / 1e6:8.3f} ms")
    return 0


def calls(batch: int, heads: int, length: int, head_dim: int) -> dict[str, dict[str, Callable[[], object]]]:
    """By direction and mask."""
    shape = (batch, heads, length, head_dim)
    q, k, v = (torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    dout = torch.randn_like(q)
    forward = {
        name: partial(scaled_dot_product_attention, q, k, v, **options)
        for name, options in masks(batch, length).items()
    }
    backward = {
        name: partial(torch.autograd.grad, way(), (q, k, v), dout, retain_graph=True)
        for name, way in forward.items()
    }
    return {"forward": forward, "backward": backward}


if __name__ == "__main__":
    run_script(main)
