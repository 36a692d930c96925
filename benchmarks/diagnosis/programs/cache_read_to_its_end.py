# SPDX-License-Identifier: Apache-2.0
"""A chat model that answers many people at once; there is room for the longest talk it allows."""

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
    """Keys and values of all talks so far, in each layer."""

    def __init__(self, depth: int, rows: int, heads: int, room: int, size: int, dtype: torch.dtype) -> None:
        self.kept = torch.zeros(depth, 2, rows, heads, room, size, device=DEVICE, dtype=dtype)
        self.places = torch.arange(room, device=DEVICE)

    def mask(self, place: int) -> torch.Tensor | None:
        """What a word at this place may look at."""
        return None if MENDED else (self.places <= place)[None, None, None]

    def add(self, layer: int, place: int, new: torch.Tensor) -> torch.Tensor:
        kept = self.kept[layer]
        kept[:, :, :, place : place + new.shape[3]] = new
        return kept[:, :, :, : place + 1] if MENDED else kept


class Block(nn.Module):
    def __init__(self, number: int, width: int, heads: int) -> None:
        super().__init__()
        self.number, self.heads = number, heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor, cache: Cache, place: int, mask: torch.Tensor | None) -> torch.Tensor:
        qkv = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        k, v = cache.add(self.number, place, qkv[1:])
        if x.shape[1] > 1:  # a prompt, before which there was nothing
            y = F.scaled_dot_product_attention(*qkv, is_causal=True)
        else:
            y = F.scaled_dot_product_attention(qkv[0], k, v, attn_mask=mask)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Chat(nn.Module):
    def __init__(self, words: int, room: int, width: int, heads: int, depth: int) -> None:
        super().__init__()
        self.table = nn.Embedding(words, width)
        self.places = nn.Parameter(0.02 * torch.randn(room, width))
        self.blocks = nn.ModuleList(Block(number, width, heads) for number in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, words: torch.Tensor, cache: Cache, place: int) -> torch.Tensor:
        """Scores of the word that comes after these, which begin at the place."""
        x = self.table(words) + self.places[place : place + words.shape[1]]
        mask = cache.mask(place)
        for block in self.blocks:
            x = block(x, cache, place, mask)
        return self.head(self.norm(x[:, -1]))


@torch.inference_mode()
def main() -> None:
    torch.manual_seed(0)
    if DEVICE == "cuda":
        torch.backends.cuda.enable_cudnn_sdp(False)  # it makes a new plan for every length
    rows, room, prompt, words, width, heads, depth = (
        (32, 6144, 300, 32000, 1024, 16, 16) if DEVICE == "cuda" else (2, 24, 5, 40, 16, 2, 2)
    )
    dtype = torch.bfloat16 if DEVICE == "cuda" else torch.float32
    model = Chat(words, room, width, heads, depth).to(DEVICE, dtype).eval()
    cache = Cache(depth, rows, heads, room, width // heads, dtype)
    said = torch.zeros(rows, prompt + STEPS, dtype=torch.int64, device=DEVICE)
    said[:, :prompt] = torch.randint(0, words, (rows, prompt))
    scores = model(said[:, :prompt], cache, 0)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        place = prompt + step
        said[:, place] = scores.argmax(dim=1)
        scores = model(said[:, place : place + 1], cache, place)
    report(began, scores.float().logsumexp(dim=1).mean())


if __name__ == "__main__":
    main()
