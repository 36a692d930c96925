# SPDX-License-Identifier: Apache-2.0
"""A mixture of experts is pre-trained on text: two of the eight experts of a layer speak about each word."""

import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (24, 6) if DEVICE == "cuda" else (3, 1)


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


class Experts(nn.Module):
    def __init__(self, width: int, inner: int, experts: int, chosen: int) -> None:
        super().__init__()
        self.chosen = chosen
        self.gate = nn.Linear(width, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, width, inner) / width**0.5)
        self.down = nn.Parameter(torch.randn(experts, inner, width) / inner**0.5)

    def work(self, x: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
        return F.gelu(x @ up) @ down

    def route(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Which experts speak about a word, and how much each counts."""
        best = self.gate(x).float().softmax(dim=-1).topk(self.chosen, dim=-1)
        return best.values / best.values.sum(dim=-1, keepdim=True), best.indices

    def of_all(self, x: torch.Tensor, weights: torch.Tensor, choice: torch.Tensor) -> torch.Tensor:
        share = x.new_zeros(len(x), len(self.up)).scatter(1, choice, weights.to(x.dtype))
        y = torch.zeros_like(x)
        for number, (up, down) in enumerate(zip(self.up.unbind(), self.down.unbind(), strict=True)):
            y = y + share[:, number, None] * self.work(x, up, down)
        return y

    def of_chosen(self, x: torch.Tensor, weights: torch.Tensor, choice: torch.Tensor) -> torch.Tensor:
        """Words that go to one expert lie one after the other."""
        order = choice.flatten().argsort()
        rows = order // self.chosen
        counts = F.one_hot(choice.flatten(), len(self.up)).sum(dim=0).tolist()
        groups = zip(x.index_select(0, rows).split(counts), self.up.unbind(), self.down.unbind(), strict=True)
        said = torch.cat([self.work(*group) for group in groups])
        said = said * weights.flatten().index_select(0, order).to(x.dtype)[:, None]
        return torch.zeros_like(x).index_add(0, rows, said)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        words = x.flatten(0, 1).to(torch.bfloat16)
        speak = self.of_chosen if MENDED else self.of_all
        return speak(words, *self.route(words)).view_as(x)


class Layer(nn.Module):
    def __init__(self, width: int, heads: int, inner: int, experts: int, chosen: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.experts = Experts(width, inner, experts, chosen)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.experts(self.norm2(x))


class MixtureModel(nn.Module):
    def __init__(self, words: int, length: int, width: int, inner: int, experts: int, depth: int) -> None:
        super().__init__()
        self.table, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        heads = max(1, width // 64)
        self.layers = nn.Sequential(*(Layer(width, heads, inner, experts, 2) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        x = self.layers(self.table(text) + self.places.weight[: text.shape[1]])
        return self.head(self.norm(x))


def step_on(model: MixtureModel, optimizer: torch.optim.Optimizer, text: torch.Tensor) -> torch.Tensor:
    with torch.autocast(DEVICE, torch.bfloat16):
        logits = model(text[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten())
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return loss


def main() -> None:
    torch.manual_seed(0)
    words, rows, length, width, inner, experts, depth = (
        (16384, 8, 1024, 768, 3072, 8, 5) if DEVICE == "cuda" else (30, 2, 8, 16, 24, 4, 1)
    )
    model = MixtureModel(words, length, width, inner, experts, depth).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=DEVICE == "cuda")
    texts = torch.randint(0, words, (3, rows, length + 1), device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        loss = step_on(model, optimizer, texts[step % 3])
    report(began, loss)


if __name__ == "__main__":
    main()
