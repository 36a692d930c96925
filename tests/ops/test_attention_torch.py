# SPDX-License-Identifier: Apache-2.0
"""flash_attention inside torch's machinery, where test_contract*.py asks every op with fixed lengths alone:
variable lengths compiled, exported and captured, streams, checkpoints, autocast, DDP, and models that call
scaled_dot_product_attention."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from profiling_lab.ops.attention import (
    FlashSelfAttention,
    attention_flash,
    flash_attention,
    flash_attention_for_sdpa,
)

DEVICES = [pytest.param("cpu", id="cpu"), pytest.param("cuda", id="cuda", marks=pytest.mark.gpu)]
ROWS, HEADS, DIM = 300, 4, 64


def dtype_on(device: str) -> torch.dtype:
    return torch.float32 if device == "cpu" else torch.bfloat16


def packed(device: str, *offsets: int, seed: int = 0) -> tuple[list[Tensor], Tensor]:
    """q, k, v and the gradient of the output, 300 rows of all sequences together, and the offsets."""
    generator = torch.Generator().manual_seed(seed)
    tensors = [torch.randn(ROWS, HEADS, DIM, generator=generator) for _ in range(4)]
    cu = torch.tensor(offsets, dtype=torch.int32, device=device)
    return [x.to(device, dtype_on(device)) for x in tensors], cu


def step(tensors: list[Tensor], cu: Tensor) -> list[Tensor]:
    *inputs, dout = tensors
    leaves = [x.detach().requires_grad_() for x in inputs]
    out = flash_attention(*leaves, cu_seqlens_q=cu, cu_seqlens_k=cu, causal=True, deterministic=True)
    return [out.detach(), *torch.autograd.grad(out, leaves, dout)]


@contextmanager
def no_synchronisation() -> Iterator[None]:
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


class Calls(TorchDispatchMode):  # type: ignore[misc]  # torch is untyped here
    """How often flash_attention's forward ran inside."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.count += func is torch.ops.profiling_lab.attention_fwd.default
        return func(*args, **(kwargs or {}))


# Variable lengths


@pytest.mark.gpu
@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("dim", [64, 128, 256])
def test_a_step_with_variable_lengths_never_waits_for_the_gpu(dim: int, deterministic: bool) -> None:
    q, k, v = (torch.randn(ROWS, 4, dim, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    leaves = [x.requires_grad_() for x in (q, k, v)]
    cu = torch.tensor([0, 10, 290], dtype=torch.int32, device="cuda")
    dout = torch.randn_like(q)
    with no_synchronisation():
        out = flash_attention(*leaves, cu_seqlens_q=cu, cu_seqlens_k=cu, deterministic=deterministic)
        torch.autograd.grad(out, leaves, dout)


@pytest.mark.gpu
def test_a_captured_step_replays_with_other_offsets() -> None:
    tensors, cu = packed("cuda", 0, 100, 300)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        step(tensors, cu)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step(tensors, cu)
    for offsets in ([0, 290, 300], [0, 0, 0], [0, 130, 131]):
        cu.copy_(torch.tensor(offsets, dtype=torch.int32))
        graph.replay()
        for name, a, b in zip(("out", "dq", "dk", "dv"), captured, step(tensors, cu), strict=True):
            assert torch.equal(a, b), f"{name} at offsets {offsets}"


@pytest.mark.parametrize("device", DEVICES)
def test_a_sequence_of_nan_is_not_felt_by_its_neighbours(device: str) -> None:
    """Tiles reach into the next sequence: what is there must not be multiplied, not even by 0."""
    tensors, cu = packed(device, 0, 77, 141, 141, 300)
    clean = step(tensors, cu)
    for x in tensors:
        x[77:141] = math.nan
    for name, a, b in zip(("out", "dq", "dk", "dv"), clean, step(tensors, cu), strict=True):
        assert torch.equal(a[:77], b[:77]) and torch.equal(a[141:], b[141:]), name
        assert bool(b[77:141].isnan().all()), f"{name} of the sequence itself"


@pytest.mark.parametrize("device", DEVICES)
def test_variable_lengths_compile_as_one_graph_for_any_number_of_rows(device: str) -> None:
    compiled = torch.compile(attend, fullgraph=True, dynamic=True, backend="aot_eager")
    for rows in (300, 217):
        tensors, cu = packed(device, 0, 40, 200)
        tensors = [x[:rows] for x in tensors]
        for a, b in zip(gradients(compiled, tensors, cu), step(tensors, cu), strict=True):
            torch.testing.assert_close(a, b)


def attend(q: Tensor, k: Tensor, v: Tensor, cu: Tensor) -> Any:
    return flash_attention(q, k, v, cu_seqlens_q=cu, cu_seqlens_k=cu, causal=True, deterministic=True)


def gradients(call: Any, tensors: list[Tensor], cu: Tensor) -> list[Tensor]:
    *inputs, dout = tensors
    leaves = [x.detach().requires_grad_() for x in inputs]
    out = call(*leaves, cu)
    return [out.detach(), *torch.autograd.grad(out, leaves, dout)]


@pytest.mark.parametrize("device", DEVICES)
def test_variable_lengths_export(device: str) -> None:
    class Attend(nn.Module):  # type: ignore[misc]  # torch is untyped here
        def forward(self, q: Tensor, k: Tensor, v: Tensor, cu: Tensor) -> Tensor:
            return attend(q, k, v, cu)

    (q, k, v, _), cu = packed(device, 0, 40, 200)
    rows = torch.export.Dim("rows", min=2, max=4096)
    same = {0: rows}
    program = torch.export.export(Attend(), (q, k, v, cu), dynamic_shapes=(same, same, same, None))
    shorter = (q[:210], k[:210], v[:210], cu)
    assert torch.equal(program.module()(*shorter), attend(*shorter))


# Streams


@pytest.mark.gpu
@pytest.mark.parametrize("dim", [64, 128, 256])
def test_two_streams_with_problems_of_their_own(dim: int) -> None:
    """Nothing of a call, descriptors, counters and workspace included, is shared with a concurrent call."""

    def problem(seed: int, offsets: list[int]) -> tuple[list[Tensor], Tensor]:
        generator = torch.Generator("cuda").manual_seed(seed)
        shape = (offsets[-1], 4, dim)
        tensors = [
            torch.empty(shape, device="cuda", dtype=torch.bfloat16).normal_(generator=generator)
            for _ in range(4)
        ]
        return tensors, torch.tensor(offsets, dtype=torch.int32, device="cuda")

    problems = [problem(1, [0, 700, 1500]), problem(2, [0, 31, 900, 2100])]
    expected = [step(*one) for one in problems]
    streams = [torch.cuda.Stream() for _ in problems]
    torch.cuda.synchronize()
    for repetition in range(15):
        found = []
        for stream, one in zip(streams, problems, strict=True):
            with torch.cuda.stream(stream):
                found.append(step(*one))
        torch.cuda.synchronize()
        for ours, truth in zip(found, expected, strict=True):
            for name, a, b in zip(("out", "dq", "dk", "dv"), ours, truth, strict=True):
                assert torch.equal(a, b), f"{name} differs in repetition {repetition}"


# Modules


def module_and_input(device: str, seed: int = 0) -> tuple[FlashSelfAttention, Tensor]:
    torch.manual_seed(seed)
    module = FlashSelfAttention(
        128, 4, 2, causal=True, deterministic=True, device=device, dtype=dtype_on(device)
    )
    return module, torch.randn(2, 70, 128, device=device, dtype=dtype_on(device))


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("device", DEVICES)
def test_checkpointing_gives_the_same_gradients(device: str, reentrant: bool) -> None:
    module, x = module_and_input(device)
    found = []
    for wrapped in (False, True):
        leaf = x.clone().requires_grad_()
        out = checkpoint(module, leaf, use_reentrant=reentrant) if wrapped else module(leaf)
        out.float().square().sum().backward()
        found.append([leaf.grad, *(p.grad for p in module.parameters())])
        module.zero_grad()
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_a_float32_module_trains_under_autocast_with_a_scaler(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    module = FlashSelfAttention(128, 2, causal=True, device="cuda")
    x = torch.randn(2, 200, 128, device="cuda")
    scaler = torch.amp.GradScaler("cuda")
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=dtype):
            loss = (module(x).float() - x).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in module.parameters())
    assert all(b < a for a, b in itertools.pairwise(losses)), losses


@pytest.mark.gpu
def test_ddp_on_the_gpu_averages_the_gradients(python: Any) -> None:
    """Two processes, on two GPUs where there are two: DDP's own stream reads what our backward writes."""
    done = python(Path(__file__).with_name("attention_ddp.py"))
    assert done.returncode == 0, done.stderr
    assert "gradients equal the whole batch's" in done.stdout


# Models that call scaled_dot_product_attention


@pytest.mark.parametrize("device", DEVICES)
def test_torchs_transformer_uses_it_and_learns_the_same(device: str) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
    layer = layer.to(device, torch.float32 if device == "cpu" else torch.bfloat16)
    x = torch.randn(2, 50, 64, device=device, dtype=dtype_on(device))
    found = []
    for ours in (False, True):
        layer.zero_grad()
        with Calls() as calls:
            if ours:
                with flash_attention_for_sdpa():
                    out = layer(x)
            else:
                out = layer(x)
        assert calls.count == ours
        out.float().square().mean().backward()
        found.append([out.detach(), *(p.grad.clone() for p in layer.parameters())])
    near = {"rtol": 1e-4, "atol": 1e-5} if device == "cpu" else {"rtol": 5e-2, "atol": 2e-2}
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, **near)


@pytest.mark.parametrize("device", DEVICES)
def test_the_context_inside_a_compiled_model(device: str) -> None:
    q, k, v = (torch.randn(1, 4, 33, 64, device=device, dtype=dtype_on(device)) for _ in range(3))

    def model(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True) * 2

    called: list[str] = []

    def backend(graph: Any, _: Any) -> Any:
        called.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return graph

    compiled = torch.compile(model, fullgraph=True, backend=backend)
    with flash_attention_for_sdpa():
        out = compiled(q, k, v)
    assert "profiling_lab.attention_fwd.default" in called
    assert torch.equal(out, attention_flash(q, k, v, causal=True) * 2)
    torch.testing.assert_close(compiled(q, k, v), model(q, k, v))  # outside it is compiled anew
    assert any("scaled_dot_product_attention" in name for name in called)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("device", DEVICES)
def test_the_context_and_checkpoints(device: str, reentrant: bool) -> None:
    """The recomputation runs inside backward, on another thread on CUDA: it must take the same attention."""

    def layer(x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(x, x, x, is_causal=True)

    x = torch.randn(1, 2, 70, 64, device=device, dtype=dtype_on(device))
    found = []
    for wrapped in (False, True):
        leaf = x.clone().requires_grad_()
        with flash_attention_for_sdpa(), Calls() as calls:
            out = checkpoint(layer, leaf, use_reentrant=reentrant) if wrapped else layer(leaf)
            (gradient,) = torch.autograd.grad(out.sum(), leaf) if not reentrant else (through(out, leaf),)
        assert calls.count == 1 + wrapped
        found.append(gradient)
    torch.testing.assert_close(*found)


def through(out: Tensor, leaf: Tensor) -> Tensor:
    out.sum().backward()  # autograd.grad cannot go through a reentrant checkpoint
    assert leaf.grad is not None
    return leaf.grad


@pytest.mark.parametrize("device", DEVICES)
def test_values_of_another_width_are_ours(device: str) -> None:
    dtype = dtype_on(device)
    q, k = (torch.randn(2, 4, n, 64, device=device, dtype=dtype) for n in (20, 33))
    v = torch.randn(2, 4, 33, 32, device=device, dtype=dtype)
    expected = F.scaled_dot_product_attention(q, k, v)
    with flash_attention_for_sdpa(), Calls() as seen:
        out = F.scaled_dot_product_attention(q, k, v)
    assert seen.count == 1 and out.shape == (2, 4, 20, 32)
    torch.testing.assert_close(out, expected, atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("device", DEVICES)
def test_calls_that_mean_something_else_keep_torchs_answer(device: str) -> None:
    """Causal with unequal lengths (torch aligns top-left), dropout, three dimensions."""
    dtype = dtype_on(device)
    q, k, v = (torch.randn(2, 4, n, 64, device=device, dtype=dtype) for n in (20, 33, 33))
    calls: list[tuple[tuple[Tensor, ...], dict[str, Any]]] = [
        ((q, k, v), {"is_causal": True}),
        ((q, k, v), {"dropout_p": 0.5}),
        ((q[0], k[0], v[0]), {}),
    ]
    if device == "cuda":
        calls.append(((q.float(), k.float(), v.float()), {}))
        calls.append(((q[..., :60], k[..., :60], v[..., :60]), {}))
    for tensors, options in calls:
        torch.manual_seed(1)
        with flash_attention_for_sdpa(), Calls() as seen:
            out = F.scaled_dot_product_attention(*tensors, **options)
        assert seen.count == 0
        torch.manual_seed(1)
        torch.testing.assert_close(out, F.scaled_dot_product_attention(*tensors, **options))
    with flash_attention_for_sdpa(), Calls() as seen:
        F.scaled_dot_product_attention(q, k, v)
    assert seen.count == 1


def test_devices_without_kernels_keep_torchs_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is neither the CPU nor a GPU, and GPUs older than 8.0."""
    q = torch.ones(1, 2, 3, 8, device="meta")
    with flash_attention_for_sdpa(), Calls() as seen:
        assert F.scaled_dot_product_attention(q, q, q).is_meta
    assert seen.count == 0
    module = import_module("profiling_lab.ops.attention")
    monkeypatch.setattr(module, "has_cuda_kernels", lambda: True)
    for capability, has_kernels in (((7, 5), False), ((8, 0), True), ((9, 0), True)):
        monkeypatch.setattr(module, "_GPUS", {})
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, found=capability: found)
        assert module._has_kernels("cuda", 0) == has_kernels


# Parts of the result


@pytest.mark.parametrize("device", DEVICES)
def test_the_lse_alone_has_gradients(device: str) -> None:
    """v does not touch it; q and k do as through torch.logsumexp."""
    (q, k, v, _), _ = packed(device, 0)
    leaves = [x[None, :50].detach().requires_grad_() for x in (q, k, v)]
    _, lse = flash_attention(*leaves, return_lse=True)
    dq, dk, dv = torch.autograd.grad(lse.sum(), leaves)
    doubles = [x.detach().double().requires_grad_() for x in leaves[:2]]
    scores = torch.einsum("bihd,bjhd->bhij", *doubles) / math.sqrt(DIM)
    expected = torch.autograd.grad(torch.logsumexp(scores, -1).sum(), doubles)
    near = {"rtol": 1e-4, "atol": 1e-5} if device == "cpu" else {"rtol": 2e-2, "atol": 2e-2}
    for a, b in zip((dq, dk), expected, strict=True):
        torch.testing.assert_close(a.double(), b, **near)
    assert not dv.any()


@pytest.mark.gpu
@pytest.mark.parametrize("dim", [64, 128, 256])
def test_only_the_gradient_of_q_may_differ_between_runs(dim: int) -> None:
    """dK and dV are written once by their owner, so even the fast backward repeats their bits."""
    inputs = [torch.randn(2, 1500, 4, dim, device="cuda", dtype=torch.bfloat16) for _ in range(4)]
    *leaves, dout = (x.requires_grad_() for x in inputs)

    def run() -> list[Tensor]:
        out = flash_attention(*leaves, causal=True)
        return [out.detach(), *torch.autograd.grad(out, leaves, dout.detach())]

    first = run()
    for _ in range(30):
        again = run()
        for name, a, b in zip(("out", "dq", "dk", "dv"), first, again, strict=True):
            assert name == "dq" or torch.equal(a, b), name


@pytest.mark.parametrize("window", [(1, 2, 3), (4,), 1.5, (3, 0.5), "7"])
def test_an_invalid_window_is_one_sentence(window: Any) -> None:
    q = torch.zeros(1, 5, 2, 8)
    with pytest.raises(ValueError, match=r"window is .*, expected \(left, right\) or one number"):
        flash_attention(q, q, q, window=window)
