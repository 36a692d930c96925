# SPDX-License-Identifier: Apache-2.0
"""Speech to phonemes with an encoder and a decoder; how many are wrong is shown next to the loss."""

import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (26, 6) if DEVICE == "cuda" else (3, 1)
SHOW_EVERY = 50 if MENDED else 1


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


def edit_distance(said: list[int], meant: list[int]) -> int:
    """Levenshtein's: what must be put in, left out or replaced."""
    before = list(range(len(meant) + 1))
    for row, one in enumerate(said, 1):
        now = [row]
        for column, other in enumerate(meant, 1):
            now.append(min(before[column] + 1, now[-1] + 1, before[column - 1] + (one != other)))
        before = now
    return before[-1]


class ErrorRate:
    def __init__(self) -> None:
        self.wrong, self.total = 0, 0

    def update(self, scores: torch.Tensor, meant: torch.Tensor) -> None:
        for guess, truth in zip(scores.argmax(dim=-1).tolist(), meant.tolist(), strict=True):
            self.wrong += edit_distance(guess, truth)
            self.total += len(truth)

    def value(self) -> float:
        return self.wrong / max(1, self.total)


class Layer(nn.Module):
    """Attends to itself, and to the sound if there is any."""

    def __init__(self, width: int, heads: int, listens: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, listens
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        if listens:
            self.norm3, self.q = nn.LayerNorm(width), nn.Linear(width, width)
            self.kv, self.heard = nn.Linear(width, 2 * width), nn.Linear(width, width)

    def split(self, x: torch.Tensor, parts: int) -> tuple[torch.Tensor, ...]:
        return x.unflatten(-1, (parts, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)

    def forward(self, x: torch.Tensor, sound: torch.Tensor | None = None) -> torch.Tensor:
        q, k, v = self.split(self.qkv(self.norm1(x)), 3)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        if sound is not None:
            (q,), (k, v) = self.split(self.q(self.norm3(x)), 1), self.split(self.kv(sound), 2)
            x = x + self.heard(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class Listener(nn.Module):
    def __init__(self, bands: int, phonemes: int, width: int, depth: int) -> None:
        super().__init__()
        heads = max(1, width // 64)
        self.front = nn.Conv1d(bands, width, 4, stride=4)
        self.encoder = nn.Sequential(*(Layer(width, heads, False) for _ in range(depth)))
        self.table = nn.Embedding(phonemes + 1, width)
        self.decoder = nn.ModuleList(Layer(width, heads, True) for _ in range(depth // 2))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, phonemes)

    def forward(self, pitch: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
        sound, x = self.encoder(self.front(pitch).mT), self.table(before)
        for layer in self.decoder:
            x = layer(x, sound)
        return self.head(self.norm(x))


class Trainer:
    def __init__(self, model: nn.Module) -> None:
        self.model, self.errors = model, ErrorRate()
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=DEVICE == "cuda")

    def show(self, step: int, scores: torch.Tensor, meant: torch.Tensor) -> None:
        if step % SHOW_EVERY == 0:
            self.errors.update(scores.detach(), meant)

    def step(self, step: int, pitch: torch.Tensor, meant: torch.Tensor) -> torch.Tensor:
        with torch.autocast(DEVICE, torch.bfloat16):
            scores = self.model(pitch, F.pad(meant[:, :-1] + 1, (1, 0)))
        loss = F.cross_entropy(scores.float().flatten(0, 1), meant.flatten())
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.show(step, scores, meant)
        return loss.detach()


def main() -> None:
    torch.manual_seed(0)
    rows, bands, frames, said, phonemes, width, depth = (
        (48, 80, 1200, 72, 44, 512, 8) if DEVICE == "cuda" else (2, 6, 16, 5, 7, 16, 2)
    )
    trainer = Trainer(Listener(bands, phonemes, width, depth).to(DEVICE))
    pitch = torch.randn(3, rows, bands, frames, device=DEVICE)
    meant = torch.randint(0, phonemes, (3, rows, said), device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        loss = trainer.step(step, pitch[step % 3], meant[step % 3])
    report(began, loss)
    assert 0 < trainer.errors.value() <= 1


if __name__ == "__main__":
    main()
