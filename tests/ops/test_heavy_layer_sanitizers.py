# SPDX-License-Identifier: Apache-2.0
"""Every kernel of heavy_layer's "fast" under NVIDIA's compute-sanitizer."""

from __future__ import annotations

import pytest
from sanitizer import assert_finds_nothing

# Folded by kernels of our own and by the library's products, and the chain; whole tiles and parts of them; a
# product's depth in pieces of which some have nothing to do.
PROGRAM = """
import torch
from profiling_lab.ops import heavy_layer

def run(rows, d, dtype):
    x, dy = (torch.randn(rows, d, device="cuda").to(dtype) for _ in range(2))
    w = [(torch.randn(d, d, device="cuda") / d**0.5).to(dtype).requires_grad_() for _ in range(3)]
    b = torch.zeros(d, device="cuda", dtype=dtype, requires_grad=True)
    heavy_layer(x.requires_grad_(), *w, b).backward(dy)

for rows, d in ((300, 136), (65, 40), (200, 37), (520, 512), (20, 64)):
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        run(rows, d, dtype)
torch.backends.cuda.matmul.allow_tf32 = True
run(300, 136, torch.float32)
torch.cuda.synchronize()
print("ran")
"""


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("tool", ["memcheck", "racecheck", "synccheck", "initcheck"])
def test_sanitizers_find_nothing(tool: str) -> None:
    assert_finds_nothing(tool, PROGRAM)
