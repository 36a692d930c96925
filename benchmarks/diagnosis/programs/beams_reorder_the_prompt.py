# SPDX-License-Identifier: Apache-2.0
"""Articles are summarised by beam search, whose best beams go on with their keys and values."""

import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (40, 8) if DEVICE == "cuda" else (4, 1)


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


class Cache:
    """Keys and values of one layer. The beams of an article have their prompt in common."""

    def __init__(self, k: torch.Tensor, v: torch.Tensor, beams: int, room: int) -> None:
        rows, heads, self.prompt, each = k.shape
        shape = (2, rows * beams, heads, self.prompt + room, each)
        self.both = torch.zeros(shape, dtype=k.dtype, device=k.device)
        self.both[:, :, :, : self.prompt] = torch.stack((k, v)).repeat_interleave(beams, dim=1)
        self.filled = self.prompt

    def add(self, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.both[0, :, :, self.filled : self.filled + 1] = k
        self.both[1, :, :, self.filled : self.filled + 1] = v
        self.filled += 1
        return self.both[0, :, :, : self.filled], self.both[1, :, :, : self.filled]

    def reorder(self, order: torch.Tensor) -> None:
        """Each beam goes on from the beam that this says."""
        first = self.prompt if MENDED else 0
        now = self.both[:, :, :, first : self.filled]
        now.copy_(now.index_select(1, order))


class Layer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def split(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind()

    def rest(self, x: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))

    def read(self, x: torch.Tensor, beams: int, room: int) -> tuple[torch.Tensor, Cache]:
        q, k, v = self.split(x)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.rest(x, seen), Cache(k, v, beams, room)

    def forward(self, x: torch.Tensor, cache: Cache) -> torch.Tensor:
        q, k, v = self.split(x)
        return self.rest(x, F.scaled_dot_product_attention(q, *cache.add(k, v)))


@torch.inference_mode()
def main() -> None:
    torch.manual_seed(0)
    torch.backends.cuda.enable_cudnn_sdp(False)  # it would plan anew for every length
    rows, beams, length, vocabulary, width, depth = (
        (32, 4, 1024, 32000, 1024, 12) if DEVICE == "cuda" else (2, 3, 5, 30, 16, 2)
    )
    table = nn.Embedding(vocabulary, width).to(DEVICE, torch.bfloat16)
    nn.init.normal_(table.weight, std=2 * width**-0.5)
    layers = nn.ModuleList(Layer(width, max(1, width // 64)) for _ in range(depth))
    layers, norm = layers.to(DEVICE, torch.bfloat16), nn.LayerNorm(width).to(DEVICE, torch.bfloat16)
    x, caches = table(torch.randint(0, vocabulary, (rows, length), device=DEVICE)), []
    for layer in layers:
        x, cache = layer.read(x, beams, STEPS)
        caches.append(cache)
    scores = F.log_softmax(norm(x[:, -1]) @ table.weight.t(), dim=-1, dtype=torch.float32)
    total, token = scores.topk(beams, dim=1)
    said = torch.zeros(rows * beams, STEPS, dtype=torch.int64, device=DEVICE)
    place = beams * torch.arange(rows, device=DEVICE).unsqueeze(1)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        x = table(token.view(-1, 1))
        for layer, cache in zip(layers, caches, strict=True):
            x = layer(x, cache)
        scores = F.log_softmax(norm(x[:, -1]) @ table.weight.t(), dim=-1, dtype=torch.float32)
        total, best = (total.view(-1, 1) + scores).view(rows, -1).topk(beams, dim=1)
        order = (place + best // vocabulary).view(-1)
        token = best % vocabulary
        for cache in caches:
            cache.reorder(order)
        said = said.index_select(0, order)
        said[:, step] = token.view(-1)
    report(began, total.mean() / STEPS)


if __name__ == "__main__":
    main()
