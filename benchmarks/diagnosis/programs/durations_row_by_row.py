# SPDX-License-Identifier: Apache-2.0
"""A speech model repeats each sound for as many frames as it lasts, one utterance after the other."""

import sys
import time

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (15, 5) if DEVICE == "cuda" else (3, 1)


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


class LengthRegulator(nn.Module):
    """Repeats each sound for as many frames as it lasts; shorter utterances end with zeros."""

    def __init__(self, frames: int) -> None:
        super().__init__()
        self.register_buffer("moments", torch.arange(frames))

    def forward(self, sounds: torch.Tensor, durations: torch.Tensor) -> torch.Tensor:
        if MENDED:
            return self.looked_up(sounds, durations)
        pairs = zip(sounds, durations, strict=True)
        spread = pad_sequence([torch.repeat_interleave(*pair, dim=0) for pair in pairs], batch_first=True)
        return F.pad(spread, (0, 0, 0, len(self.moments) - spread.shape[1]))

    def looked_up(self, sounds: torch.Tensor, durations: torch.Tensor) -> torch.Tensor:
        moments = self.moments.repeat(len(sounds), 1)
        sound = torch.searchsorted(durations.cumsum(1), moments, right=True)[..., None]
        last = sounds.shape[1] - 1
        spread = sounds.gather(1, sound.clamp(max=last).expand(-1, -1, sounds.shape[2]))
        return spread.masked_fill(sound > last, 0)


class Speaker(nn.Module):
    def __init__(self, sounds: int, width: int, depth: int, frames: int, bands: int) -> None:
        super().__init__()
        self.table = nn.Embedding(sounds, width)
        self.encoder = nn.Sequential(*(Block(width, width // 64 or 1) for _ in range(depth)))
        self.regulator = LengthRegulator(frames)
        self.decoder = nn.Sequential(*(Block(width, width // 64 or 1) for _ in range(depth)))
        self.head = nn.Linear(width, bands)

    def forward(self, text: torch.Tensor, durations: torch.Tensor) -> torch.Tensor:
        return self.head(self.decoder(self.regulator(self.encoder(self.table(text)), durations)))


def main() -> None:
    torch.manual_seed(0)
    rows, length, longest, width, depth = (96, 64, 4, 384, 3) if DEVICE == "cuda" else (3, 5, 3, 16, 1)
    model = Speaker(80, width, depth, length * longest, 80).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=DEVICE == "cuda")
    text = torch.randint(0, 80, (rows, length), device=DEVICE)
    durations = torch.randint(1, longest + 1, (rows, length), device=DEVICE)
    spoken = torch.randn(rows, length * longest, 80, device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        with torch.autocast(DEVICE, torch.bfloat16):
            heard = model(text, durations)
        loss = F.l1_loss(heard.float(), spoken)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    report(began, loss)


if __name__ == "__main__":
    main()
