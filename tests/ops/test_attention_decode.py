# SPDX-License-Identifier: Apache-2.0
"""flash_attention for few queries, as in decoding: on Hopper a kernel of its own (sm90/decode/kernel.cuh).

tests/ops/test_kernels_on_cpu.py runs the kernel's source without a GPU.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
from attention_oracle import check_against_float64, tensors

torch = pytest.importorskip("torch")

from profiling_lab.ops.attention import flash_attention, reference  # noqa: E402

pytestmark = pytest.mark.gpu

# batch, rows, keys, heads, kv_heads, head_dim
SHAPES = [
    pytest.param((1, 1, 1, 1, 1, 64), id="one-key"),
    pytest.param((1, 1, 1024, 16, 16, 128), id="one-sequence"),
    pytest.param((3, 1, 1000, 8, 1, 128), id="one-key-head"),
    pytest.param((2, 4, 517, 8, 2, 64), id="sixteen-rows-of-a-draft"),
    pytest.param((2, 4, 517, 10, 2, 64), id="twenty-rows-take-the-other-kernel"),
    pytest.param((5, 16, 16, 3, 3, 128), id="short-prefill"),
    pytest.param((1, 5, 3, 2, 1, 64), id="first-rows-see-nothing"),
    pytest.param((70, 1, 300, 12, 4, 72), id="more-blocks-than-run-at-once"),
    pytest.param((1, 2, 20000, 4, 2, 256), id="long"),
    pytest.param((1, 1, 70001, 2, 1, 40), id="longer-odd"),
]
OPTIONS = [
    pytest.param({}, id="full"),
    pytest.param({"causal": True}, id="causal"),
    pytest.param({"window": (100, 0)}, id="window"),
    pytest.param({"window": (7, 2), "softcap": 5.0}, id="window-and-softcap"),
    pytest.param({"scale": -0.3}, id="negative-scale"),
]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("shape", SHAPES)
def test_against_float64(shape: tuple[int, ...], options: dict[str, Any]) -> None:
    batch, rows, keys, heads, kv_heads, dim = shape
    for dtype in (torch.bfloat16, torch.float16):
        inputs = tensors("cuda", dtype, batch, rows, keys, heads, kv_heads, dim)
        sink = torch.linspace(-2, 3, heads, dtype=torch.float64, device="cuda")
        sink[0] = -math.inf
        if heads > 1:
            check_against_float64(inputs, sink=sink, **options)
        check_against_float64(inputs, **options)


def test_values_behind_the_cache_are_not_read() -> None:
    """A cache longer than its valid part, filled with NaN, as static caches are."""
    cache = torch.full((2, 2, 640, 4, 128), math.nan, device="cuda", dtype=torch.bfloat16)
    q = torch.randn(2, 1, 8, 128, device="cuda", dtype=torch.bfloat16)
    for length in (1, 15, 16, 17, 300, 511):
        cache[:, :, :length] = torch.randn(2, 2, length, 4, 128, device="cuda")
        k, v = cache[0, :, :length], cache[1, :, :length]
        ours, lse = flash_attention(q, k, v, causal=True, return_lse=True)
        exact, exact_lse = reference(*(x.double() for x in (q, k, v)), causal=True, return_lse=True)
        torch.testing.assert_close(ours.double(), exact, rtol=2e-2, atol=5e-3)
        torch.testing.assert_close(lse.double(), exact_lse, rtol=1e-4, atol=1e-4)


def test_the_bits_are_those_of_every_run_and_of_a_graph() -> None:
    q, k, v = (x.detach() for x in tensors("cuda", torch.bfloat16, 2, 1, 3000, 8, 2, 128))
    first = flash_attention(q, k, v)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = flash_attention(q, k, v)
    for _ in range(20):
        captured.fill_(math.nan)
        graph.replay()
        assert torch.equal(captured, first) and torch.equal(flash_attention(q, k, v), first)


def test_which_kernel_runs() -> None:
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("the kernel is Hopper's")

    def kernels(rows: int) -> set[str]:
        inputs = tensors("cuda", torch.bfloat16, 1, rows, 200, 4, 4, 64)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as recorded:
            flash_attention(*(x.detach() for x in inputs), causal=True)
            torch.cuda.synchronize()
        return {event.name for event in recorded.events() if "attention" in event.name}

    assert all("decode" in name for name in kernels(16)) and len(kernels(16)) == 1
    assert not any("decode" in name for name in kernels(17))
