# SPDX-License-Identifier: Apache-2.0
"""Every kernel of layer_norm_gelu under NVIDIA's compute-sanitizer: no access out of bounds, no race in
shared memory, no barrier that some threads miss, no read of uninitialised memory.
"""

from __future__ import annotations

import pytest
from sanitizer import assert_finds_nothing

# A shape for every way to share a row: a warp, a block, a cluster, a long row; aligned and not; few rows and
# more rows than blocks; packed rows, which need 1024 rows: split and not, the last step with fewer rows; and
# shifted rows in blocks and in clusters, more of them than are on the GPU at once, and fewer.
# synccheck (2025.3.1) breaks clusters of more than eight blocks with two of these on an SM: it reports "an
# illegal memory access" or "missing init", also of a kernel that has one barrier and one st.async.
PROGRAM = """
import sys, torch
from profiling_lab.ops import layer_norm_gelu, layer_norm_gelu_residual

LEFT_OUT = [(19, 65537)] if "synccheck" in sys.argv else []
SHIFTED = ((1, 1025), (1700, 1031), (5, 2049), (300, 8193), (9, 8200), (9, 16385), (19, 65537), (3, 131071))
SHAPES = ((3, 1), (9, 37), (300, 512), (70, 768), (40, 1000), (40, 1024), (300, 4096), (2, 4096), (40, 5120),
          (20, 8192), (9, 12288), (9, 16384), (5, 32768), (3, 20000), (1030, 33), (1100, 520), (1025, 1001),
          *SHIFTED)
for dtype in (torch.bfloat16, torch.float32, torch.float16):
    for rows, d in SHAPES:
        if (rows, d) in LEFT_OUT:
            continue
        if dtype == torch.float16 and rows < 1024:
            continue  # as bfloat16
        for offset in (0, 1):
            whole = torch.randn(rows * d + offset, device="cuda").to(dtype)
            x = whole[offset:].view(rows, d).detach().requires_grad_()
            weight, bias = (torch.rand(d, device="cuda").to(dtype).requires_grad_() for _ in range(2))
            layer_norm_gelu(x, weight, bias).backward(torch.ones(rows, d, device="cuda", dtype=dtype))
            y, total = layer_norm_gelu_residual(x, x.detach(), weight, bias)
            (y.sum() + total.sum()).backward()
torch.cuda.synchronize()
print("ran")
"""


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("tool", ["memcheck", "racecheck", "synccheck", "initcheck"])
def test_sanitizers_find_nothing(tool: str) -> None:
    assert_finds_nothing(tool, PROGRAM, tool)
