# SPDX-License-Identifier: Apache-2.0
"""A text encoder makes its padding mask in a loop over rows, whose lengths are on the GPU."""

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


def padding_mask(lengths: torch.Tensor, longest: int) -> torch.Tensor:
    """True where a row has a word."""
    if MENDED:
        return torch.arange(longest, device=lengths.device) < lengths[:, None]
    mask = torch.zeros(len(lengths), longest, dtype=torch.bool, device=lengths.device)
    for row, length in enumerate(lengths):
        mask[row, :length] = True
    return mask


class Mixing(nn.Module):
    """Attends to the words of each row."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None])
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Encoder(nn.Module):
    def __init__(self, words: int, width: int, heads: int, depth: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.layers = nn.ModuleList(Mixing(width, heads) for _ in range(depth))
        self.head = nn.Linear(width, 20)

    def forward(self, texts: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        mask = padding_mask(lengths, texts.shape[1])
        x = self.words(texts)
        for layer in self.layers:
            x = layer(x, mask)
        return self.head((x * mask[..., None]).sum(dim=1) / lengths[:, None])


def main() -> None:
    torch.manual_seed(0)
    vocabulary, width, heads, depth, rows, longest = (
        (30000, 256, 4, 3, 192, 64) if DEVICE == "cuda" else (50, 16, 2, 2, 4, 6)
    )
    model = Encoder(vocabulary, width, heads, depth).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=DEVICE == "cuda")
    texts = torch.randint(0, vocabulary, (4, rows, longest), device=DEVICE)
    lengths = torch.randint(2, longest + 1, (4, rows), device=DEVICE)
    target = torch.randint(0, 20, (4, rows), device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = F.cross_entropy(model(texts[step % 4], lengths[step % 4]), target[step % 4])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    report(began, loss)


if __name__ == "__main__":
    main()
