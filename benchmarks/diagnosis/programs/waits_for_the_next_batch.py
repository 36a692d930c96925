# SPDX-License-Identifier: Apache-2.0
"""Clips of video are uploaded on a stream of their own, into two buffers that take turns."""

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


class Uploader:
    """While a step works with one buffer, the other gets the clips of the next."""

    def __init__(self, batches: list[torch.Tensor]) -> None:
        self.batches = [batch.pin_memory() if DEVICE == "cuda" else batch for batch in batches]
        self.buffers = [batches[0].to(DEVICE), batches[0].to(DEVICE)]
        self.now = 0
        if DEVICE == "cuda":
            self.side = torch.cuda.Stream()
            self.read = [torch.cuda.Event() for _ in self.buffers]

    def clips(self) -> torch.Tensor:
        if DEVICE == "cuda":
            torch.cuda.current_stream().wait_stream(self.side)
        return self.buffers[self.now]

    def queued(self, step: int) -> None:
        """The step is on its way: the clips of the next may come."""
        batch, other = self.batches[(step + 1) % len(self.batches)], 1 - self.now
        if DEVICE == "cuda":
            self.read[self.now].record()
            if MENDED:
                self.side.wait_event(self.read[other])
            else:
                self.side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.side):
                self.buffers[other].copy_(batch, non_blocking=True)
        else:
            self.buffers[other].copy_(batch)
        self.now = other


class Layer(nn.Module):
    """Attention among the patches of a moment, and a wide layer."""

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


class Watcher(nn.Module):
    """What happens in a clip, from patches of two pictures each."""

    def __init__(self, patch: int, width: int, heads: int, depth: int, actions: int) -> None:
        super().__init__()
        self.patch, self.into = patch, nn.Linear(2 * 3 * patch * patch, width)
        self.layers = nn.Sequential(*(Layer(width, heads) for _ in range(depth)))
        self.head = nn.Linear(width, actions)

    def forward(self, clips: torch.Tensor) -> torch.Tensor:
        rows, pictures, _colours, height, wide = clips.shape
        x = clips.view(rows * pictures // 2, 6, height // self.patch, self.patch, wide // self.patch, -1)
        x = x.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)
        y = self.layers(self.into(x.to(torch.bfloat16) / 255))
        return self.head(y.mean(dim=1).view(rows, pictures // 2, -1).mean(dim=1))


def main() -> None:
    torch.manual_seed(0)
    rows, pictures, size, patch, width, heads, depth = (
        (128, 16, 256, 16, 256, 4, 2) if DEVICE == "cuda" else (2, 4, 8, 4, 8, 2, 1)
    )
    model = Watcher(patch, width, heads, depth, 50).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=DEVICE == "cuda")
    shape, kind = (rows, pictures, 3, size, size), {"device": DEVICE, "dtype": torch.uint8}
    uploader = Uploader([torch.randint(0, 256, shape, **kind).cpu() for _ in range(2)])
    actions = torch.randint(0, 50, (rows,), device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = F.cross_entropy(model(uploader.clips()), actions)
        loss.backward()
        uploader.queued(step)
        optimizer.step()
        optimizer.zero_grad()
    report(began, loss)


if __name__ == "__main__":
    main()
