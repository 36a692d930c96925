# SPDX-License-Identifier: Apache-2.0
"""flash_attention at its limits: sizes beyond 32 bits, races, poisoned memory, bias of the error, memory."""

from __future__ import annotations

import itertools
import math
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from needs import needs_gpu_memory

from profiling_lab.ops.attention import flash_attention, reference

BF16 = torch.bfloat16


def normal(*shape: int, seed: int, device: str = "cuda", dtype: torch.dtype = BF16) -> torch.Tensor:
    generator = torch.Generator(device).manual_seed(seed)
    return torch.empty(shape, device=device, dtype=dtype).normal_(generator=generator)


def gradients(inputs: list[torch.Tensor], dout: torch.Tensor, **options: Any) -> list[torch.Tensor]:
    leaves = [x.detach().requires_grad_() for x in inputs]
    out = flash_attention(*leaves, **options)
    return [out.detach(), *torch.autograd.grad(out, leaves, dout)]


# Sizes


@pytest.mark.gpu
@pytest.mark.parametrize("causal", [False, True])
def test_more_than_2_to_the_31_elements(causal: bool) -> None:
    """The last batch entry begins beyond element 2^31 of every tensor, and equals the same entry alone."""
    needs_gpu_memory(60)
    batch, rows, heads, dim = 4200, 256, 16, 128
    assert (batch - 1) * rows * heads * dim > 1 << 31
    inputs = [normal(batch, rows, heads, dim, seed=s) for s in range(3)]
    dout = normal(batch, rows, heads, dim, seed=4)
    whole = [x[-2:].clone() for x in gradients(inputs, dout, causal=causal, deterministic=True)]
    alone = gradients([x[-2:].clone() for x in inputs], dout[-2:].clone(), causal=causal, deterministic=True)
    for a, b in zip(whole, alone, strict=True):
        assert torch.equal(a, b), "an entry's bits do not depend on the batch around it"


@pytest.mark.gpu
def test_more_than_2_to_the_31_elements_in_one_packed_tensor() -> None:
    """Offsets of a variable-length batch count rows; times heads and head_dim they leave 32 bits."""
    needs_gpu_memory(60)
    lengths = [1_000_000, 40_000, 20_000, 1000]
    heads, dim = 16, 128
    total = sum(lengths)
    assert (total - lengths[-1]) * heads * dim > 1 << 31
    cu = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32, device="cuda")
    *inputs, dout = (normal(total, heads, dim, seed=s) for s in range(4))
    offsets = {"cu_seqlens_q": cu, "cu_seqlens_k": cu}
    packed = gradients(inputs, dout, window=(100, 0), deterministic=True, **offsets)
    last = [x[-lengths[-1] :][None].clone() for x in (*inputs, dout)]
    alone = gradients(last[:3], last[3], window=(100, 0), deterministic=True)
    for name, a, b in zip(("out", "dq", "dk", "dv"), packed, alone, strict=True):
        torch.testing.assert_close(a[-lengths[-1] :], b[0], rtol=2e-2, atol=5e-3, msg=name)


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(70_000, 3, 1, 64), (1, 3, 70_000, 64), (300, 2, 300, 64)])
def test_more_batch_entries_and_heads_than_a_grid_has_rows(shape: tuple[int, ...]) -> None:
    inputs = [normal(*shape, seed=s) for s in range(3)]
    dout = normal(*shape, seed=4)
    ours = gradients(inputs, dout, causal=True)
    for end in (slice(0, 1), slice(-1, None)):
        axis = 0 if shape[0] > 1 else 2
        cut = [x[end] if axis == 0 else x[:, :, end] for x in (*inputs, dout, *ours)]
        doubles = [x.double().requires_grad_() for x in cut[:3]]
        truth = reference(*doubles, causal=True)
        expected = [truth, *torch.autograd.grad(truth, doubles, cut[3].double())]
        for a, b in zip(cut[4:], expected, strict=True):
            torch.testing.assert_close(a.double(), b, rtol=3e-2, atol=3e-2)


# Races


@pytest.mark.gpu
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dim", [64, 128, 256])
def test_repetitions_agree_while_another_stream_loads_the_gpu(dim: int, causal: bool) -> None:
    """A hand-over between producer and consumers that is one arrival early shows under changing load."""
    inputs = [normal(2, 1337, 6, dim, seed=s) for s in range(3)]
    dout = normal(2, 1337, 6, dim, seed=4)
    noise = normal(2048, 2048, seed=5)
    side = torch.cuda.Stream()
    first = gradients(inputs, dout, causal=causal, deterministic=True)
    for repetition in range(150):
        if repetition % 2:
            with torch.cuda.stream(side):
                for _ in range(1 + repetition % 5):
                    noise = noise @ noise
                    noise = noise / noise.norm()
        again = gradients(inputs, dout, causal=causal, deterministic=True)
        for name, a, b in zip(("out", "dq", "dk", "dv"), first, again, strict=True):
            assert torch.equal(a, b), f"{name} differs in repetition {repetition}"


@pytest.mark.gpu
@pytest.mark.parametrize("dim", [64, 128])
def test_the_fast_gradient_of_q_differs_by_rounding_alone(dim: int) -> None:
    """Its sum has no fixed order: every repetition must stay within a few fp32 roundings of the fixed one."""
    inputs = [normal(1, 2048, 8, dim, seed=s) for s in range(3)]
    dout = normal(1, 2048, 8, dim, seed=4)
    fixed = gradients(inputs, dout, deterministic=True)[1].float()
    for _ in range(20):
        free = gradients(inputs, dout)[1].float()
        assert ((free - fixed).norm() / fixed.norm()).item() < 5e-3


@pytest.mark.gpu
@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize(
    ("batch", "rows", "heads", "kv_heads", "causal"),
    [
        (4, 2048, 16, 8, True),  # twice as many long and short key tiles as a GPU has SMs
        (1, 2100, 40, 40, False),  # a last round of a few tiles, each taken in parts
        (3, 1100, 24, 6, False),
    ],
)
def test_the_order_of_the_work_changes_gradients_by_rounding_alone(
    dim: int, batch: int, rows: int, heads: int, kv_heads: int, causal: bool
) -> None:
    """Key tiles of grouped heads from both ends, tiles in parts; against the deterministic order."""
    q, dout = (normal(batch, rows, heads, dim, seed=s) for s in (0, 4))
    k, v = (normal(batch, rows, kv_heads, dim, seed=s) for s in (1, 2))
    fixed = gradients([q, k, v], dout, causal=causal, deterministic=True)
    for _ in range(5):
        for name, a, b in zip(
            ("out", "dq", "dk", "dv"), fixed, gradients([q, k, v], dout, causal=causal), strict=True
        ):
            error = (a.float() - b.float()).norm() / a.float().norm()
            assert error.item() < 5e-3, name


@pytest.mark.gpu
def test_a_rows_bits_do_not_depend_on_the_batch_around_it() -> None:
    q, k, v = (normal(9, 700, 4, 128, seed=s) for s in range(3))
    whole = flash_attention(q, k, v, causal=True)
    for i in (0, 5, 8):
        assert torch.equal(
            whole[i : i + 1], flash_attention(q[i : i + 1], k[i : i + 1], v[i : i + 1], causal=True)
        )


# Poisoned neighbours


def poisoned(x: torch.Tensor, value: float) -> torch.Tensor:
    """x inside a larger tensor: rows, heads and columns around it hold `value`."""
    batch, rows, heads, dim = x.shape
    around = torch.full((batch + 1, rows + 200, heads + 2, dim + 16), value, dtype=x.dtype, device=x.device)
    inside = around[1:, 100 : 100 + rows, 1 : 1 + heads, 8 : 8 + dim]
    inside.copy_(x)
    return inside


@pytest.mark.parametrize("value", [math.nan, math.inf, 3e38])
@pytest.mark.parametrize("options", [{}, {"causal": True}, {"window": (70, 3)}], ids=str)
@pytest.mark.parametrize("dim", [40, 64, 128, 256])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_neighbours_in_memory_are_not_felt(
    device: str, dim: int, options: dict[str, Any], value: float
) -> None:
    """Tiles reach over the ends of a sequence; what is there must not be multiplied, not even by 0."""
    shapes = [(2, 150, 4, dim), (2, 201, 2, dim), (2, 201, 2, dim)]
    inputs = [normal(*s, seed=i, device=device) for i, s in enumerate(shapes)]
    dout = normal(*shapes[0], seed=4, device=device)
    clean = gradients(inputs, dout, deterministic=True, **options)
    dirty_inputs = [poisoned(x, value) for x in inputs]
    dirty = gradients(dirty_inputs, poisoned(dout, value), deterministic=True, **options)
    for name, a, b in zip(("out", "dq", "dk", "dv"), clean, dirty, strict=True):
        assert torch.equal(a, b), name


# Error


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dim", [64, 128, 256])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_errors_have_no_preferred_sign(device: str, dim: int, causal: bool) -> None:
    """A truncation, or a sum that loses its small terms, would pull the mean of the signed error off zero."""
    rows = 400 if device == "cpu" else 2000
    inputs = [normal(2, rows, 4, dim, seed=s, device=device) for s in range(3)]
    dout = normal(2, rows, 4, dim, seed=4, device=device)
    ours = gradients(inputs, dout, causal=causal)
    doubles = [x.double().requires_grad_() for x in inputs]
    truth = reference(*doubles, causal=causal)
    exact = [truth.detach(), *torch.autograd.grad(truth, doubles, dout.double())]
    for name, a, b in zip(("out", "dq", "dk", "dv"), ours, exact, strict=True):
        toward_zero = (a.double() - b) * b.sign()
        for what, error in (("signed error", a.double() - b), ("error away from zero", toward_zero)):
            noise = error.std().item() / math.sqrt(error.numel())
            # Errors of neighbours are correlated through the shared probabilities: hence not 5 but 12.
            assert abs(error.mean().item()) < 12 * noise, (
                f"{name}: mean {what} {error.mean():.2e}, noise {noise:.2e}"
            )


@pytest.mark.gpu
@pytest.mark.parametrize("dim", [64, 128, 256])
def test_small_integers_are_exact(dim: int) -> None:
    """With equal keys every probability is 1 / keys, a power of two: sums of small integers have no rounding.

    A wrong layout of a matrix fragment cannot hide in a tolerance here.
    """
    generator = torch.Generator("cuda").manual_seed(1)
    q = torch.zeros(1, 512, 2, dim, device="cuda", dtype=BF16)
    k = torch.randint(-4, 5, (1, 512, 2, dim), generator=generator, device="cuda").to(BF16)
    v = torch.randint(-8, 9, (1, 512, 2, dim), generator=generator, device="cuda").to(BF16)
    dout = torch.randint(-2, 3, (1, 512, 2, dim), generator=generator, device="cuda").to(BF16)
    out, _, _, dv = gradients([q, k, v], dout)
    assert torch.equal(out, v.double().mean(1, keepdim=True).to(BF16).expand_as(out))
    assert torch.equal(dv, dout.double().mean(1, keepdim=True).to(BF16).expand_as(dv))


# Memory


@pytest.mark.gpu
@pytest.mark.parametrize("deterministic", [False, True])
def test_memory_grows_with_the_rows_and_not_with_their_square(deterministic: bool) -> None:
    peaks = []
    for rows in (8192, 16384):
        inputs = [normal(1, rows, 4, 128, seed=s) for s in range(3)]
        dout = normal(1, rows, 4, 128, seed=4)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        gradients(inputs, dout, causal=True, deterministic=deterministic)
        peaks.append(torch.cuda.max_memory_allocated() - before)
    assert peaks[1] < 2.1 * peaks[0]
    assert peaks[1] < 16384 * 4 * 128 * 2 * 8, "no more than a few tensors of the inputs' size"


@pytest.mark.gpu
def test_memory_of_the_backward_at_head_dim_256() -> None:
    """On Hopper dQ has one owner; on the portable path blocks add to an fp32 sum, two tensors more."""
    portable = os.environ.get("PROFILING_LAB_ATTENTION_PATH") == "sm80"
    hopper = torch.cuda.get_device_capability() == (9, 0) and not portable
    leaves = [normal(1, 8192, 8, 256, seed=s).requires_grad_() for s in range(3)]
    dout = normal(1, 8192, 8, 256, seed=4)
    out = flash_attention(*leaves, causal=True)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    torch.autograd.grad(out, leaves, dout)
    tensor_bytes = dout.numel() * dout.element_size()
    assert torch.cuda.max_memory_allocated() - before < (3.5 if hopper else 5.5) * tensor_bytes


def test_memory_on_the_cpu_grows_with_the_rows(python: Any) -> None:
    """The process's high-water mark: four times the rows may cost four times the tensors, never 16 times."""
    program = """
import sys, torch
from pathlib import Path
from profiling_lab.ops import flash_attention
def high_water():
    line = next(x for x in Path('/proc/self/status').read_text().splitlines() if x.startswith('VmHWM'))
    return int(line.split()[1]) * 1024
torch.set_num_threads(2)
def work(rows):
    leaves = [torch.randn(1, rows, 1, 32, requires_grad=True) for _ in range(3)]
    flash_attention(*leaves, causal=True).sum().backward()
work(64)
before = high_water()
work(int(sys.argv[1]))
print(high_water() - before)
"""
    rows = 20_000
    done = python(program, str(rows))
    assert done.returncode == 0, done.stderr
    grown, scores = int(done.stdout), rows * rows * 4
    assert grown < scores / 8, f"{grown >> 20} MiB more for {rows} rows, whose scores are {scores >> 20} MiB"


CPU_PATHS = """
import sys, torch
from profiling_lab.ops import flash_attention

CASES = ((130, 70, 40, {}), (100, 213, 64, {"causal": True}), (33, 64, 128, {"softcap": 3.0}))

def results():
    found = []
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        generator = torch.Generator().manual_seed(5)
        for rows, keys, dim, options in CASES:
            shapes = [(2, rows, 4, dim), (2, keys, 2, dim), (2, keys, 2, dim), (2, rows, 4, dim)]
            *x, dout = (torch.randn(s, generator=generator, dtype=torch.float64).to(dtype) for s in shapes)
            leaves = [t.requires_grad_() for t in x]
            out = flash_attention(*leaves, **options)
            found += [out.detach(), *torch.autograd.grad(out, leaves, dout)]
    return found

if __name__ == "__main__":
    torch.save(results(), sys.argv[1])
"""


@pytest.mark.parametrize("path", ["avx512", "avx2", "sse2"])
def test_every_instruction_set_of_the_cpu_gives_the_same(path: str, python_warm: Any, tmp_path: Path) -> None:
    """A process may ask for less than its CPU has; without asking it gets all, matrix tiles included."""
    here: dict[str, Any] = {"__name__": "here"}
    exec(CPU_PATHS, here)
    file = tmp_path / "results.pt"
    done = python_warm(CPU_PATHS, str(file), PROFILING_LAB_ATTENTION_PATH=path)
    assert done.returncode == 0, done.stderr
    for a, b in zip(here["results"](), torch.load(file), strict=True):
        near = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}[a.dtype]
        torch.testing.assert_close(a, b, rtol=near, atol=near)
