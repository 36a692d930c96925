# SPDX-License-Identifier: Apache-2.0
"""The same attention four times, once each after a warm-up: the program for Nsight Compute.

    python rungs.py

naive, tiled and ladder are the rungs of profiling_lab.ops.ladder_attention, flash is flash_attention.
4 x 8 heads of 1024 rows, 64 numbers a row, in bfloat16, without a mask.
"""

import sys

import torch

from profiling_lab.ops import flash_attention, ladder_attention

BATCH, ROWS, HEADS, DIM = 4, 1024, 8, 64
FLOPS = 4 * BATCH * HEADS * ROWS * ROWS * DIM
RUNGS = {
    "naive": lambda q, k, v: ladder_attention(q, k, v, rung="naive"),
    "tiled": lambda q, k, v: ladder_attention(q, k, v, rung="tiled"),
    "ladder": lambda q, k, v: ladder_attention(q, k, v, rung="flash"),
    "flash": lambda q, k, v: flash_attention(q, k, v),
}


def main():
    if not torch.cuda.is_available():
        sys.exit("the rungs are CUDA kernels: recorded/ has what an H200 showed")
    torch.manual_seed(0)
    q, k, v = (torch.randn(BATCH, ROWS, HEADS, DIM, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    results = []
    for attend in RUNGS.values():
        attend(q, k, v)
        torch.cuda.synchronize()
    for name, attend in RUNGS.items():
        torch.cuda.nvtx.range_push(name)
        results.append(attend(q, k, v).float())
        torch.cuda.synchronize()
        torch.cuda.nvtx.range_pop()
    apart = max(float((result - results[0]).abs().max()) for result in results)
    print(f"{FLOPS / 1e9:.2f} GFLOP each; the results differ by at most {apart:.4f}")


if __name__ == "__main__":
    main()
