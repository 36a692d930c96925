# SPDX-License-Identifier: Apache-2.0
"""An autoencoder of images that encodes the quarter of the patches that a draw on the GPU leaves."""

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

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class MaskedImages(nn.Module):
    def __init__(self, patch: int, count: int, widths: tuple[int, int], depths: tuple[int, int]) -> None:
        super().__init__()
        wide, narrow = widths
        self.into, self.between = nn.Linear(patch, wide), nn.Linear(wide, narrow)
        self.places = nn.Parameter(0.02 * torch.randn(count, wide))
        self.places_after = nn.Parameter(0.02 * torch.randn(count, narrow))
        self.hidden = nn.Parameter(torch.zeros(narrow))
        self.encoder = nn.Sequential(*(Block(wide, wide // 64 or 1) for _ in range(depths[0])))
        self.decoder = nn.Sequential(*(Block(narrow, narrow // 64 or 1) for _ in range(depths[1])))
        self.head = nn.Linear(narrow, patch)

    def forward(self, patches: torch.Tensor) -> torch.Tensor:
        rows, count = patches.shape[:2]
        order = torch.rand(rows, count, device=patches.device).argsort(dim=1)
        shown = order[:, : count // 4, None]
        picked = patches.gather(1, shown.expand(-1, -1, patches.shape[2]))
        x = self.encoder(self.into(picked) + F.embedding(shown[..., 0], self.places))
        x = self.between(x)
        canvas = self.hidden.to(x.dtype).expand(rows, count, -1)
        canvas = canvas.scatter(1, shown.expand(-1, -1, x.shape[2]), x)
        return self.head(self.decoder(canvas + self.places_after))


def main() -> None:
    torch.manual_seed(0)
    rows, count, patch, widths, depths = (
        (192, 196, 768, (1024, 512), (8, 2)) if DEVICE == "cuda" else (2, 8, 12, (16, 8), (2, 1))
    )
    model = MaskedImages(patch, count, widths, depths).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=DEVICE == "cuda")
    patches = torch.randn(rows, count, patch, device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        with torch.autocast(DEVICE, torch.bfloat16):
            painted = model(patches)
        loss = F.mse_loss(painted.float(), patches)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    report(began, loss)


if __name__ == "__main__":
    main()
