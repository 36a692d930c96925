# SPDX-License-Identifier: Apache-2.0
"""Vectors of sentences: a copy of the encoder that follows slowly reads what is to be found again."""

import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (20, 5) if DEVICE == "cuda" else (3, 1)


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Encoder(nn.Module):
    def __init__(self, words: int, length: int, width: int, depth: int, shared: int) -> None:
        super().__init__()
        self.table = nn.Embedding(words, width)
        self.places = nn.Parameter(0.02 * torch.randn(length, width))
        self.blocks = nn.Sequential(*(Block(width, max(1, width // 64)) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, shared)

    def forward(self, texts: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.blocks(self.table(texts) + self.places)).mean(dim=1)
        return F.normalize(self.head(x).float(), dim=-1)


class Queue:
    """Vectors of the last batches. The oldest ones are overwritten where they are."""

    def __init__(self, size: int, shared: int) -> None:
        self.vectors = F.normalize(torch.randn(size, shared, device=DEVICE), dim=-1).to(torch.bfloat16)
        self.place = 0

    def add(self, vectors: torch.Tensor) -> None:
        self.vectors[self.place : self.place + len(vectors)] = vectors
        self.place = (self.place + len(vectors)) % len(self.vectors)


class Contrast:
    def __init__(self, model: Encoder, slow: Encoder, queue: Queue, temperature: float) -> None:
        self.model, self.slow, self.queue, self.temperature = model, slow, queue, temperature
        self.slow.load_state_dict(model.state_dict())
        self.slow.requires_grad_(False)
        self.pairs = list(slow.parameters()), list(model.parameters())
        self.optimizer = torch.optim.AdamW(self.pairs[1], lr=1e-4, fused=DEVICE == "cuda")

    @torch.no_grad()
    def keys(self, texts: torch.Tensor) -> torch.Tensor:
        torch._foreach_lerp_(*self.pairs, 0.001)
        return self.slow(texts)

    def step(self, texts: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
        with torch.autocast(DEVICE, torch.bfloat16):
            keys = self.keys(others)
            found = self.model(texts)
            wrong = found @ self.queue.vectors.t()
        right = (found * keys).sum(dim=1, keepdim=True)
        scores = torch.cat((right, wrong.float()), dim=1) / self.temperature
        loss = F.cross_entropy(scores, torch.zeros(len(texts), dtype=torch.int64, device=DEVICE))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.queue.add(keys)
        return loss


def main() -> None:
    torch.manual_seed(0)
    rows, length, words, width, depth, shared, kept = (
        (256, 96, 32000, 768, 10, 256, 16384) if DEVICE == "cuda" else (3, 5, 30, 16, 1, 8, 12)
    )
    model, slow = (Encoder(words, length, width, depth, shared).to(DEVICE) for _ in range(2))
    contrast = Contrast(model, slow, Queue(kept, shared), temperature=0.05)
    texts = torch.randint(0, words, (4, rows, length), device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        now = texts[step % 4]
        loss = contrast.step(now, now.roll(1, dims=1))
    report(began, loss)


if __name__ == "__main__":
    main()
