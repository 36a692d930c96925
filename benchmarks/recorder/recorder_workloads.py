# SPDX-License-Identifier: Apache-2.0
"""The programs that recorder_overhead.py records: what one step of each is."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

import torch
from heavy_layer_step import make_step
from torch import nn
from torch.nn import functional

from profiling_lab.demo.training import training_script
from profiling_lab.errors import UsageError

Step = Callable[[], object]

VOCABULARY, WIDTH, LAYERS, HEADS = 50257, 1024, 24, 16


class Block(nn.Module):  # type: ignore[misc]
    """One layer of GPT-2: attention and feed-forward, normalised before."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.proj = nn.Linear(WIDTH, WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        query, key, value = (
            part.view(batch, length, HEADS, -1).transpose(1, 2)
            for part in self.qkv(self.norm1(x)).chunk(3, dim=-1)
        )
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.proj(attended.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.down(functional.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt2(nn.Module):  # type: ignore[misc]
    """GPT-2 medium's shape (355 million parameters), its embedding tied to its output."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(length, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return functional.linear(self.norm(x), self.tokens.weight)


def gpt2_training(batch: int = 8, length: int = 1024) -> Step:
    """Forward, backward and fused AdamW under bf16 autocast."""
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = Gpt2(length)
        tokens = torch.randint(VOCABULARY, (batch, length + 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            logits = model(tokens[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def hugging_face_training(device: str = "cuda") -> Step:
    """A small GPT-2 of transformers, bound by launches: 6 layers of 256, 4 x 64 tokens; bf16 autocast,
    clipped gradients, foreach AdamW."""
    try:
        from transformers import GPT2Config, GPT2LMHeadModel
    except ImportError as error:
        raise UsageError(f"this workload needs transformers (pip install transformers): {error}") from None
    torch.manual_seed(0)
    config = GPT2Config(n_layer=6, n_embd=256, n_head=8, n_positions=64, use_cache=False)
    model = GPT2LMHeadModel(config).to(device).train()
    tokens = torch.randint(config.vocab_size, (4, 64), device=device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)

    def step() -> None:
        with torch.autocast(device, torch.bfloat16):
            loss = model(tokens, labels=tokens).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


REQUESTS = 10  # in one step of inference: one alone would be timed with the wait for it


def _inference_model(length: int) -> tuple[Gpt2, torch.Tensor]:
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = Gpt2(length).to(torch.bfloat16).eval().requires_grad_(False)
        return model, torch.randint(VOCABULARY, (1, length))


def inference_graph(length: int = 128) -> Step:
    """Requests of batch 1, replayed from one CUDA graph of the eager model."""
    model, tokens = _inference_model(length)
    warm = torch.cuda.Stream()
    warm.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(warm):
        for _ in range(3):
            model(tokens)
    torch.cuda.current_stream().wait_stream(warm)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        model(tokens)

    def step() -> None:
        for _ in range(REQUESTS):
            graph.replay()

    return step


def inference_compiled(length: int = 128) -> Step:
    """Requests of batch 1 through torch.compile(mode="reduce-overhead"), which makes CUDA graphs."""
    model, tokens = _inference_model(length)
    model.blocks = nn.ModuleList(list(model.blocks)[:6])  # compiling takes its time
    compiled = torch.compile(model, mode="reduce-overhead")

    def step() -> None:
        for _ in range(REQUESTS):
            torch.compiler.cudagraph_mark_step_begin()
            compiled(tokens)

    return step


def heavy(kind: str, keep: ExitStack) -> Step:
    """The exercise's training step; its script's folder lives as long as `keep`."""
    return make_step(keep.enter_context(training_script()), kind, "fp32")


CALLS = 300  # of one kind in a step, with one wait at its end


def many(kind: str) -> Step:
    """CALLS operations of one kind, of some numbers each, so that the host sets the pace."""
    device = torch.zeros(64, device="cuda")
    other, zero = torch.zeros_like(device), torch.zeros((), device="cuda")
    pageable, pinned = torch.zeros(64), torch.zeros(64).pin_memory()
    event = torch.cuda.Event()
    operation: dict[str, Callable[[], object]] = {
        "launches": lambda: device.add_(1),
        "device copies": lambda: device.copy_(other),
        "pinned uploads": lambda: device.copy_(pinned, non_blocking=True),
        "pageable uploads": lambda: device.copy_(pageable),
        "pinned downloads": lambda: pinned.copy_(device, non_blocking=True),
        "reads": zero.item,
        "launches and reads": lambda: zero.add_(1).item(),
        "uploads by value": lambda: torch.tensor([1.0, 2.0], device="cuda"),
        "events": event.record,
        "waits": torch.cuda.synchronize,
    }
    chosen = operation[kind]

    def step() -> None:
        for _ in range(CALLS):
            chosen()

    return step


KINDS = (
    "launches",
    "device copies",
    "pinned uploads",
    "pageable uploads",
    "pinned downloads",
    "reads",
    "launches and reads",
    "uploads by value",
    "events",
    "waits",
)

WORKLOADS: dict[str, Callable[[ExitStack], Step]] = {
    "loop": lambda keep: heavy("loop", keep),
    "slow": lambda keep: heavy("slow", keep),
    "fast": lambda keep: heavy("fast", keep),
    "gpt2": lambda keep: gpt2_training(),
    "hugging face": lambda keep: hugging_face_training(),
    "inference graph": lambda keep: inference_graph(),
    "inference compiled": lambda keep: inference_compiled(),
    **{kind: (lambda keep, kind=kind: many(kind)) for kind in KINDS},  # type: ignore[misc]
}
"""By name, what builds a step. Bound by launches: loop, hugging face. By the GPU: slow, fast, gpt2. Graphs:
inference. One kind of call alone: KINDS."""
