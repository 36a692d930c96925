# SPDX-License-Identifier: Apache-2.0
"""Speech is written as tokens by a transformer that gets its causal mask as a tensor."""

import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

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

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class SpeechModel(nn.Module):
    """Codes of a neural codec, each from the codes before it and the voice of the speaker."""

    def __init__(self, codes: int, length: int, voice: int, width: int, heads: int, depth: int) -> None:
        super().__init__()
        self.table, self.places = nn.Embedding(codes, width), nn.Embedding(length, width)
        self.voice = nn.Linear(voice, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, codes)
        self.register_buffer("mask", torch.ones(length, length, dtype=torch.bool).tril())

    def visible(self, length: int) -> torch.Tensor | None:
        """Which code sees which; None lets the attention leave out what is ahead."""
        return None if MENDED else self.mask[:length, :length]

    def forward(self, codes: torch.Tensor, voice: torch.Tensor) -> torch.Tensor:
        length = codes.shape[1]
        x = self.table(codes) + self.places.weight[:length] + self.voice(voice)[:, None]
        mask = self.visible(length)
        for block in self.blocks:
            x = block(x, mask)
        return self.head(self.norm(x))


def main() -> None:
    torch.manual_seed(0)
    rows, length, codes, voice, width, heads, depth = (
        (2, 8192, 1024, 192, 768, 12, 6) if DEVICE == "cuda" else (2, 12, 20, 4, 16, 2, 2)
    )
    model = SpeechModel(codes, length, voice, width, heads, depth).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=DEVICE == "cuda")
    spoken = torch.randint(0, codes, (rows, length + 1), device=DEVICE)
    speakers = torch.randn(rows, voice, device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        with torch.autocast(DEVICE, torch.bfloat16):
            logits = model(spoken[:, :-1], speakers)
            loss = F.cross_entropy(logits.flatten(0, 1), spoken[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    report(began, loss)


if __name__ == "__main__":
    main()
