# SPDX-License-Identifier: Apache-2.0
"""Talks are written down: a decoder hears all of the sound before each word that it writes."""

import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (14, 4) if DEVICE == "cuda" else (3, 1)


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


class Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = max(1, width // 64)
        self.norm, self.asks, self.out = nn.LayerNorm(width), nn.Linear(width, width), nn.Linear(width, width)
        self.pairs = nn.Linear(width, 2 * width)

    def keys_and_values(self, x: torch.Tensor) -> torch.Tensor:
        return self.pairs(x).unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)

    def forward(self, normed: torch.Tensor, pairs: torch.Tensor) -> torch.Tensor:
        q = self.asks(normed).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        return self.out(F.scaled_dot_product_attention(q, *pairs).transpose(1, 2).flatten(2))


def feed_forward(width: int) -> nn.Module:
    layers = [nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)]
    return nn.Sequential(*layers)


class EncoderLayer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.around, self.feed = Attention(width), feed_forward(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = self.around.norm(x)
        x = x + self.around(normed, self.around.keys_and_values(normed))
        return x + self.feed(x)


class DecoderLayer(nn.Module):
    def __init__(self, width: int, rows: int, longest: int) -> None:
        super().__init__()
        self.written, self.heard, self.feed = Attention(width), Attention(width), feed_forward(width)
        heads = self.written.heads
        self.register_buffer("cache", torch.zeros(2, rows, heads, longest, width // heads))

    def listen(self, sound: torch.Tensor) -> None:
        self.sound = self.heard.keys_and_values(sound) if MENDED else sound

    def forward(self, x: torch.Tensor, place: int) -> torch.Tensor:
        normed = self.written.norm(x)
        self.cache[:, :, :, place : place + 1] = self.written.keys_and_values(normed)
        x = x + self.written(normed, self.cache[:, :, :, : place + 1])
        pairs = self.sound if MENDED else self.heard.keys_and_values(self.sound)
        x = x + self.heard(self.heard.norm(x), pairs)
        return x + self.feed(x)


class Writer(nn.Module):
    def __init__(self, pitches: int, width: int, depth: int, words: int, rows: int, longest: int) -> None:
        super().__init__()
        self.into = nn.Linear(pitches, width)
        self.encoder = nn.Sequential(*(EncoderLayer(width) for _ in range(3)), nn.LayerNorm(width))
        self.table, self.places = nn.Embedding(words, width), nn.Parameter(torch.randn(longest, width))
        self.decoder = nn.ModuleList(DecoderLayer(width, rows, longest) for _ in range(depth))
        self.norm, self.longest = nn.LayerNorm(width), longest

    def forward(self, pitches: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The likeliest words, and how likely the last of them is."""
        sound = self.encoder(self.into(pitches))
        for layer in self.decoder:
            layer.listen(sound)
        words = torch.zeros(len(sound), self.longest + 1, dtype=torch.int64, device=DEVICE)
        for place in range(self.longest):
            x = self.table(words[:, place : place + 1]) + self.places[place]
            for layer in self.decoder:
                x = layer(x, place)
            scores = F.linear(self.norm(x[:, 0]), self.table.weight)
            words[:, place + 1] = scores.argmax(dim=-1)
        return words, scores.max(dim=-1).values


@torch.inference_mode()
def main() -> None:
    torch.manual_seed(0)
    rows, frames, pitches, width, depth, words, longest = (
        (32, 1500, 128, 1024, 6, 51872, 40) if DEVICE == "cuda" else (2, 6, 4, 8, 1, 16, 4)
    )
    model = Writer(pitches, width, depth, words, rows, longest).to(DEVICE, torch.bfloat16).eval()
    sounds = torch.randn(3, rows, frames, pitches).to(torch.bfloat16)
    if DEVICE == "cuda":
        sounds = sounds.pin_memory()
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        _, likely = model(sounds[step % 3].to(DEVICE, non_blocking=True))
    report(began, likely.float().mean())


if __name__ == "__main__":
    main()
