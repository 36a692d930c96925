# SPDX-License-Identifier: Apache-2.0
"""A language model of genomes, with a trainer of our own around it."""

import sys
import time
from dataclasses import dataclass

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


@dataclass(frozen=True)
class Settings:
    letters: int = 8
    width: int = 768 if DEVICE == "cuda" else 16
    heads: int = 12 if DEVICE == "cuda" else 2
    depth: int = 6 if DEVICE == "cuda" else 2
    length: int = 1024 if DEVICE == "cuda" else 8
    rows: int = 16 if DEVICE == "cuda" else 2
    base: float = 10000.0
    lr: float = 3e-4


class Rotary(nn.Module):
    """Turns each pair of a head's channels by an angle that grows with the place in the sequence."""

    def __init__(self, size: int, length: int, base: float) -> None:
        super().__init__()
        self.speeds = [base ** (-2 * i / size) for i in range(size // 2)]
        kept = self.angles(length) if MENDED else None
        self.register_buffer("kept", kept, persistent=False)

    def angles(self, length: int) -> torch.Tensor:
        return torch.tensor([[place * speed for speed in self.speeds] for place in range(length)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.kept is not None:
            angles = self.kept
        else:
            angles = self.angles(x.shape[-2]).to(x.device)
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        one, two = x.chunk(2, dim=-1)
        return torch.cat((one * cos - two * sin, one * sin + two * cos), dim=-1)


class Block(nn.Module):
    def __init__(self, s: Settings) -> None:
        super().__init__()
        self.heads, self.rotary = s.heads, Rotary(s.width // s.heads, s.length, s.base)
        self.norm1, self.norm2 = nn.LayerNorm(s.width), nn.LayerNorm(s.width)
        self.qkv, self.out = nn.Linear(s.width, 3 * s.width), nn.Linear(s.width, s.width)
        self.up, self.down = nn.Linear(s.width, 4 * s.width), nn.Linear(4 * s.width, s.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        q, k = self.rotary(q), self.rotary(k)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GenomeModel(nn.Module):
    """The part that knows the task: what the loss of a batch is, and with what it is made smaller."""

    def __init__(self, s: Settings) -> None:
        super().__init__()
        self.s, self.table = s, nn.Embedding(s.letters, s.width)
        self.blocks = nn.Sequential(*(Block(s) for _ in range(s.depth)))
        self.norm, self.head = nn.LayerNorm(s.width), nn.Linear(s.width, s.letters)

    def training_step(self, batch: torch.Tensor) -> torch.Tensor:
        letters = batch.long()
        scores = self.head(self.norm(self.blocks(self.table(letters[:, :-1]))))
        return F.cross_entropy(scores.flatten(0, 1).float(), letters[:, 1:].flatten())

    def configure_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=self.s.lr, fused=DEVICE == "cuda")


class Trainer:
    def __init__(self, steps: int, precision: torch.dtype) -> None:
        self.steps, self.precision = steps, precision

    def fit(self, module: GenomeModel, batches: list[torch.Tensor]) -> None:
        module.to(DEVICE)
        optimizer = module.configure_optimizer()
        for step in range(self.steps):
            if step == WARM:
                began = start_clock()
            batch = batches[step % len(batches)].to(DEVICE, non_blocking=True)
            with torch.autocast(DEVICE, self.precision):
                loss = module.training_step(batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        report(began, loss)


def main() -> None:
    torch.manual_seed(0)
    s = Settings()
    batches = [torch.randint(0, s.letters, (s.rows, s.length + 1), dtype=torch.uint8) for _ in range(4)]
    if DEVICE == "cuda":
        batches = [batch.pin_memory() for batch in batches]
    Trainer(STEPS, torch.bfloat16).fit(GenomeModel(s), batches)


if __name__ == "__main__":
    main()
