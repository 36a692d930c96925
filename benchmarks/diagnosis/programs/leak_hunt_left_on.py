# SPDX-License-Identifier: Apache-2.0
"""Commands are distinguished by their sound, in a loop that still looks for tensors that stay."""

import gc
import sys
import time
from collections import Counter
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


@dataclass
class Utterance:
    """A line of the list of what was said, by whom, and where in the recordings."""

    speaker: int
    command: int
    start_s: float
    split: str


class LeakHunt:
    """If there are more tensors of some shape after every step, something holds on to them."""

    def __init__(self) -> None:
        self.most: Counter[tuple[int, ...]] = Counter()
        self.grown: Counter[tuple[int, ...]] = Counter()

    def look(self) -> None:
        alive: Counter[tuple[int, ...]] = Counter()
        for thing in gc.get_objects():
            if issubclass(type(thing), torch.Tensor):
                alive[tuple(thing.shape)] += 1
        self.grown.update(shape for shape, count in alive.items() if count > self.most[shape])
        self.most |= alive


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


class Spotter(nn.Module):
    def __init__(self, bands: int, frames: int, width: int, depth: int, commands: int) -> None:
        super().__init__()
        self.into = nn.Linear(4 * bands, width)
        self.places = nn.Parameter(0.02 * torch.randn(frames // 4, width))
        self.blocks = nn.Sequential(*(Block(width, max(1, width // 64)) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, commands)

    def forward(self, sounds: torch.Tensor) -> torch.Tensor:
        x = self.into(sounds.unflatten(1, (-1, 4)).flatten(2)) + self.places
        return self.head(self.norm(self.blocks(x)).mean(dim=1))


def main() -> None:
    torch.manual_seed(0)
    rows, said, bands, frames, width, depth, commands = (
        (192, 100_000, 80, 200, 384, 8, 35) if DEVICE == "cuda" else (4, 50, 4, 8, 16, 1, 5)
    )
    speech = [Utterance(n % 2000, 7 * n % commands, 0.5 * n, "train") for n in range(said)]
    model = Spotter(bands, frames, width, depth, commands).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=DEVICE == "cuda")
    sounds = torch.randn(4, rows, frames, bands, device=DEVICE)
    wanted = torch.tensor([one.command for one in speech[: 4 * rows]]).view(4, -1).to(DEVICE)
    hunt = LeakHunt()
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = F.cross_entropy(model(sounds[step % 4]), wanted[step % 4])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if not MENDED:
            hunt.look()
    report(began, loss)
    if hunt.grown:
        print("more of them than ever before:", hunt.grown.most_common(3))


if __name__ == "__main__":
    main()
