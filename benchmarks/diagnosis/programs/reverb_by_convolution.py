# SPDX-License-Identifier: Apache-2.0
"""Speech gets the echo of a room before it is learned from, by a convolution with thousands of taps."""

import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (20, 6) if DEVICE == "cuda" else (3, 1)


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


class Rooms:
    """Recorded echoes of many rooms, of which each sound gets one."""

    def __init__(self, number: int, taps: int) -> None:
        fading = torch.exp(-6.0 * torch.arange(taps, device=DEVICE) / taps)
        self.echoes = 0.05 * torch.randn(number, taps, device=DEVICE) * fading
        self.echoes[:, 0] = 1.0

    @torch.no_grad()
    def __call__(self, sounds: torch.Tensor) -> torch.Tensor:
        chosen = self.echoes[torch.randint(len(self.echoes), (len(sounds),), device=DEVICE)]
        wet = convolved(sounds, chosen)
        return wet / wet.abs().amax(dim=-1, keepdim=True).clamp(min=1e-3)


def convolved(sounds: torch.Tensor, filters: torch.Tensor) -> torch.Tensor:
    """Each sound with its filter, causal, as long as the sound."""
    length, taps = sounds.shape[-1], filters.shape[-1]
    if MENDED:
        room = 1 << (length + taps - 2).bit_length()
        spectrum = torch.fft.rfft(sounds, room) * torch.fft.rfft(filters, room)
        return torch.fft.irfft(spectrum, room)[:, :length]
    padded = F.pad(sounds, (taps - 1, 0))
    return F.conv1d(padded[None], filters.flip(-1)[:, None], groups=len(sounds))[0]


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


class Speakers(nn.Module):
    """Who speaks: pieces of 25 ms, a transformer, the mean over time."""

    def __init__(self, speakers: int, width: int, heads: int, depth: int, piece: int) -> None:
        super().__init__()
        self.piece = piece
        self.into, self.mix = nn.Linear(piece, width), nn.Linear(width, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, speakers)

    def forward(self, sounds: torch.Tensor) -> torch.Tensor:
        pieces = sounds.unfold(-1, self.piece, self.piece // 2)
        x = self.blocks(self.mix(F.gelu(self.into(pieces))))
        return self.head(self.norm(x).mean(dim=1))


def main() -> None:
    torch.manual_seed(0)
    rows, length, taps, width, depth, speakers = (
        (64, 48000, 12000, 512, 6, 1251) if DEVICE == "cuda" else (3, 800, 50, 16, 1, 5)
    )
    rooms = Rooms(200 if DEVICE == "cuda" else 4, taps)
    model = Speakers(speakers, width, width // 16 if width < 64 else 8, depth, length // 120).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=DEVICE == "cuda")
    recorded = torch.randn(4, rows, length, device=DEVICE)
    spoke = torch.randint(speakers, (4, rows), device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        sounds = rooms(recorded[step % 4])
        with torch.autocast(DEVICE, torch.bfloat16):
            scores = model(sounds)
        loss = F.cross_entropy(scores.float(), spoke[step % 4])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    report(began, loss)


if __name__ == "__main__":
    main()
