# SPDX-License-Identifier: Apache-2.0
"""Contacts in a protein, from the vectors of both residues, joined for each pair of residues."""

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


class Layer(nn.Module):
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


class ContactHead(nn.Module):
    """Whether two residues touch."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.joint, self.last = nn.Linear(2 * width, hidden), nn.Linear(hidden, 1)

    def pairs(self, x: torch.Tensor) -> torch.Tensor:
        length = x.shape[1]
        if MENDED:
            left, right = self.joint.weight.chunk(2, dim=1)
            return F.linear(x, left, self.joint.bias)[:, :, None] + F.linear(x, right)[:, None]
        first = x[:, :, None].expand(-1, -1, length, -1)
        second = x[:, None].expand(-1, length, -1, -1)
        return self.joint(torch.cat((first, second), dim=-1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(F.relu(self.pairs(x), inplace=True))[..., 0]


class Folder(nn.Module):
    def __init__(self, kinds: int, length: int, width: int, heads: int, depth: int, hidden: int) -> None:
        super().__init__()
        self.kinds, self.places = nn.Embedding(kinds, width), nn.Embedding(length, width)
        self.layers = nn.Sequential(*(Layer(width, heads) for _ in range(depth)))
        self.into_pairs, self.contacts = nn.Linear(width, width), ContactHead(width, hidden)

    def forward(self, chain: torch.Tensor) -> torch.Tensor:
        x = self.layers(self.kinds(chain) + self.places.weight[: chain.shape[1]])
        return self.contacts(self.into_pairs(x))


def main() -> None:
    torch.manual_seed(0)
    rows, length, width, heads, depth, hidden = (
        (12, 512, 512, 8, 4, 128) if DEVICE == "cuda" else (2, 6, 16, 2, 2, 8)
    )
    model = Folder(21, length, width, heads, depth, hidden).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=DEVICE == "cuda")
    chains = torch.randint(0, 21, (rows, length), device=DEVICE)
    touching = (torch.rand(rows, length, length, device=DEVICE) < 0.05).float()
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        with torch.autocast(DEVICE, torch.bfloat16):
            scores = model(chains)
        loss = F.binary_cross_entropy_with_logits(scores.float(), touching)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    report(began, loss)


if __name__ == "__main__":
    main()
