# SPDX-License-Identifier: Apache-2.0
"""Films are made from words: noise becomes a film in a few steps, by attention between all its patches."""

import time

import torch
from torch import nn
from torch.nn import functional as F

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (24, 8) if DEVICE == "cuda" else (3, 1)


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


class Block(nn.Module):
    """Patches look at each other, then at the words, whose keys and values are made once for a film."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = max(1, width // 64)
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(width, elementwise_affine=False) for _ in "abc")
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.ask, self.answer = nn.Linear(width, width), nn.Linear(width, width)
        self.told = nn.Linear(width, 2 * width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def read(self, words: torch.Tensor) -> torch.Tensor:
        return self.told(words).unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)

    def forward(self, x: torch.Tensor, read: torch.Tensor, moment: torch.Tensor) -> torch.Tensor:
        shift, scale, weight = moment
        y = torch.addcmul(shift, self.norm1(x), scale)
        q, k, v = self.qkv(y).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = torch.addcmul(x, self.out(seen), weight)
        asked = self.ask(self.norm2(x)).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        x = x + self.answer(F.scaled_dot_product_attention(asked, *read).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm3(x)), approximate="tanh"))


class Film(nn.Module):
    """Where noise has to go, at a moment between noise (1) and film (0)."""

    def __init__(self, patches: int, inside: int, width: int, depth: int) -> None:
        super().__init__()
        self.places = nn.Parameter(0.02 * torch.randn(patches, width))
        self.into, self.outof = nn.Linear(inside, width), nn.Linear(width, inside)
        self.moments = nn.Linear(width, depth * 3 * width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.register_buffer("pitches", torch.logspace(0, -4, width // 2))

    def at(self, moment: float) -> torch.Tensor:
        """Shifts, scales and weights of all blocks, from one product."""
        turns = 1000 * moment * self.pitches
        waves = torch.cat((turns.cos(), turns.sin())).to(self.moments.weight.dtype)
        return self.moments(waves).view(len(self.blocks), 3, -1)

    def read(self, words: torch.Tensor) -> list[torch.Tensor]:
        return [block.read(words) for block in self.blocks]

    def forward(self, x: torch.Tensor, read: list[torch.Tensor], moment: float) -> torch.Tensor:
        x = self.into(x) + self.places
        for block, words, now in zip(self.blocks, read, self.at(moment), strict=True):
            x = block(x, words, now)
        return self.outof(x)


class Studio:
    """With words and without in one batch: the difference says what the words want."""

    def __init__(self, film: Film, shape: tuple[int, int], moments: int, guidance: float) -> None:
        self.film, self.shape, self.moments, self.guidance = film, shape, moments, guidance
        self.done = torch.zeros((), device=DEVICE)

    def begin(self, words: torch.Tensor) -> None:
        self.read = self.film.read(torch.stack((words, torch.zeros_like(words))))
        self.x = torch.randn(1, *self.shape, device=DEVICE)

    def go_on(self, count: int) -> None:
        both = self.x.to(torch.bfloat16).expand(2, -1, -1)
        wanted, plain = self.film(both, self.read, 1 - count / self.moments).chunk(2)
        self.x -= torch.lerp(plain.float(), wanted.float(), self.guidance) / self.moments

    def end(self) -> None:
        self.done += self.x.abs().mean()


@torch.inference_mode()
def main() -> None:
    torch.manual_seed(0)
    patches, inside, width, depth, length, moments = (
        (16384, 64, 1024, 6, 77, 8) if DEVICE == "cuda" else (6, 4, 16, 1, 3, 2)
    )
    film = Film(patches, inside, width, depth).to(DEVICE, torch.bfloat16).eval()
    studio = Studio(film, (patches, inside), moments, guidance=4.0)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        if step % moments == 0:
            studio.begin(torch.randn(length, width, device=DEVICE, dtype=torch.bfloat16))
        studio.go_on(step % moments)
        if step % moments == moments - 1:
            studio.end()
    report(began, studio.done)


if __name__ == "__main__":
    main()
