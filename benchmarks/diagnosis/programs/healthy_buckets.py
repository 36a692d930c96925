# SPDX-License-Identifier: Apache-2.0
"""A diffusion transformer learns pictures of many shapes: each batch has one shape, and the next another."""

import sys
import time
from collections.abc import Iterator

import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (30, 6) if DEVICE == "cuda" else (3, 1)


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


class Block(nn.Module):
    """Attention and a product, both scaled and moved by how noisy the picture is."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width, elementwise_affine=False)
        self.norm2 = nn.LayerNorm(width, elementwise_affine=False)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.turn = nn.Linear(width, 4 * width)

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        scale1, move1, scale2, move2 = self.turn(F.silu(time))[:, None].chunk(4, dim=-1)
        y = torch.addcmul(move1, self.norm1(x), 1 + scale1)
        q, k, v = self.qkv(y).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        y = torch.addcmul(move2, self.norm2(x), 1 + scale2)
        return x + self.down(F.gelu(self.up(y), approximate="tanh"))


class Denoiser(nn.Module):
    def __init__(self, channels: int, side: int, width: int, depth: int) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(channels, width), nn.Linear(width, channels)
        self.times = nn.Sequential(nn.Linear(1, width), nn.SiLU(), nn.Linear(width, width))
        self.rows = nn.Parameter(0.02 * torch.randn(side, 1, width))
        self.columns = nn.Parameter(0.02 * torch.randn(side, width))
        self.blocks = nn.ModuleList(Block(width, max(1, width // 64)) for _ in range(depth))

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        high, wide = x.shape[1:3]
        x = (self.into(x) + (self.rows[:high] + self.columns[:wide])).flatten(1, 2)
        about = self.times(time)
        for block in self.blocks:
            x = block(x, about)
        return self.out(x).unflatten(1, (high, wide))


class Buckets:
    """Latents of pictures in pinned memory, sorted by shape. The shape of a batch is drawn, never mixed."""

    def __init__(self, shapes: list[tuple[int, int]], tokens: int, channels: int, batches: int) -> None:
        self.piles = []
        for high, wide in shapes:
            pile = torch.randn(batches, tokens // (high * wide), high, wide, channels)
            self.piles.append(pile.pin_memory() if DEVICE == "cuda" else pile)
        order = torch.randperm(len(shapes) * batches).tolist()
        self.order = [divmod(number, batches) for number in order]

    def __iter__(self) -> Iterator[torch.Tensor]:
        for pile, batch in self.order:
            yield self.piles[pile][batch].to(DEVICE, non_blocking=True)


def main() -> None:
    torch.manual_seed(0)
    shapes, tokens, channels, side, width, depth = (
        ([(32, 32), (24, 40), (40, 24), (20, 48), (48, 20), (28, 36)], 20480, 16, 48, 1536, 6)
        if DEVICE == "cuda"
        else ([(2, 2), (1, 4), (4, 1)], 8, 3, 4, 16, 1)
    )
    model = Denoiser(channels, side, width, depth).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=DEVICE == "cuda")
    for step, clean in enumerate(Buckets(shapes, tokens, channels, STEPS // len(shapes))):
        if step == WARM:
            began = start_clock()
        time_of = torch.rand(len(clean), 1, device=DEVICE)
        noise = torch.randn_like(clean)
        noisy = torch.lerp(clean, noise, time_of[:, :, None, None])
        with torch.autocast(DEVICE, torch.bfloat16):
            told = model(noisy, time_of)
        loss = F.mse_loss(told.float(), noise - clean)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    report(began, loss)


if __name__ == "__main__":
    main()
