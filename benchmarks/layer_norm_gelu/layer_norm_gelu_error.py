# SPDX-License-Identifier: Apache-2.0
"""The error of layer_norm_gelu by binade of the result, and eager PyTorch's.

    python benchmarks/layer_norm_gelu/layer_norm_gelu_error.py --output results.jsonl

Against a float64 result that does not compute 1 + erf(z) or 1 + tanh(z). The largest error relative to the
result, in units of the dtype's eps, for each sign and power of two of the result that is met often enough.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path

import torch
from torch import Tensor

from profiling_lab.measure import ResultsFile, machine
from profiling_lab.ops.layer_norm_gelu import layer_norm_gelu, reference

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the scripts that all benchmarks share
from script import run_script

ROWS, D = 8192, 4096
ENOUGH = 1000
DTYPES = ("float32", "bfloat16", "float16")


def exact(x: Tensor, weight: Tensor, bias: Tensor, approximate: str) -> Tensor:
    z = torch.nn.functional.layer_norm(x.double(), x.shape[-1:], weight.double(), bias.double())
    if approximate == "tanh":
        return z * torch.sigmoid(math.sqrt(8 / math.pi) * (z + 0.044715 * z**3))
    return 0.5 * z * torch.special.erfc(-z / math.sqrt(2))


def worst_by_binade(y: Tensor, truth: Tensor) -> dict[tuple[int, int], float]:
    """By sign and exponent: a binade e holds 2^(e-1) to 2^e. Subnormal results are left out."""
    error = (y.double() - truth).abs() / truth.abs() / torch.finfo(y.dtype).eps
    exponent = torch.frexp(truth.abs())[1]
    lowest = math.frexp(torch.finfo(y.dtype).tiny)[1]
    worst: dict[tuple[int, int], float] = {}
    for sign in (-1, 1):
        of_sign = truth.sign() == sign
        for binade in exponent[of_sign].unique().tolist():
            chosen = error[of_sign & (exponent == binade)]
            if binade > lowest and chosen.numel() >= ENOUGH:
                worst[sign, int(binade)] = float(chosen.max())
    return worst


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, help="append JSON lines here")
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=DTYPES)
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    rows = ROWS if device.type == "cuda" else 64
    results = ResultsFile(options.output, machine(device.type))
    for dtype_name in options.dtypes:
        dtype = getattr(torch, dtype_name)
        generator = torch.Generator(device).manual_seed(7)
        x = torch.empty(rows, D, device=device, dtype=dtype).normal_(0.5, 2, generator=generator)
        bias = torch.empty(D, device=device, dtype=dtype).normal_(0, 0.3, generator=generator)
        weight = torch.linspace(0.2, 5, D, device=device).to(
            dtype
        )  # z to +-20: the whole range of the result
        for approximate in ("none", "tanh"):
            truth = exact(x, weight, bias, approximate)
            found = {
                "ours": worst_by_binade(layer_norm_gelu(x, weight, bias, approximate=approximate), truth),
                "eager": worst_by_binade(reference(x, weight, bias, approximate=approximate), truth),
            }
            worse = 0
            for sign, binade in found["ours"]:
                for provider, worst in found.items():
                    case = {"dtype": dtype_name, "approximate": approximate, "sign": sign, "binade": binade}
                    results.add(
                        "layer_norm_gelu_error", case, provider, "worst_error", worst[sign, binade], "eps"
                    )
                worse += found["ours"][sign, binade] > found["eager"][sign, binade]
            print(f"{dtype_name} {approximate}: {len(found['ours'])} binades, ours worse in {worse}")
            print(
                "  "
                + "  ".join(
                    f"{'-' if s < 0 else ''}2^{b} {e:.2f}/{found['eager'][s, b]:.2f}"
                    for (s, b), e in found["ours"].items()
                    if b in (-100, -60, -30, -20, -12, -8, -4, -2, 0, 1, 3)
                ),
                flush=True,
            )
    return 0


if __name__ == "__main__":
    run_script(main)
