# SPDX-License-Identifier: Apache-2.0
"""Where are a player's joints? A vision transformer learns maps that are bright at each of them."""

import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (24, 6) if DEVICE == "cuda" else (3, 1)


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


class PoseNet(nn.Module):
    """Patches of a picture in, for each patch a small square of each joint's map out."""

    def __init__(
        self, high: int, wide: int, patch: int, width: int, depth: int, joints: int, fine: int
    ) -> None:
        super().__init__()
        self.grid, self.patch = (high // patch, wide // patch), patch
        self.into = nn.Linear(3 * patch * patch, width)
        self.places = nn.Parameter(0.02 * torch.randn(self.grid[0] * self.grid[1], width))
        self.layers = nn.Sequential(*(Layer(width, max(1, width // 64)) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, joints * fine * fine)
        self.unfold = nn.PixelShuffle(fine)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        patches = F.pixel_unshuffle(pictures, self.patch).flatten(2).mT
        x = self.layers(self.into(patches.to(torch.bfloat16) / 255 - 0.5) + self.places)
        return self.unfold(self.head(self.norm(x)).mT.unflatten(2, self.grid))


class JointMaps:
    """A bump of Gauss around each joint, made on the GPU from the coordinates alone."""

    def __init__(self, high: int, wide: int, spread: float) -> None:
        self.rows, self.columns = torch.arange(high, device=DEVICE), torch.arange(wide, device=DEVICE)
        self.factor = -0.5 / spread**2

    def along(self, cells: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        return ((cells - at[..., None]).square() * self.factor).exp()

    def __call__(self, joints: torch.Tensor) -> torch.Tensor:
        high = self.along(self.rows, joints[..., 0] * len(self.rows))
        wide = self.along(self.columns, joints[..., 1] * len(self.columns))
        return high[..., :, None] * wide[..., None, :]


class Players:
    """Cut-outs of players: pictures of 8 bits, where the joints are, and which of them can be seen."""

    def __init__(self, batches: int, rows: int, high: int, wide: int, joints: int) -> None:
        parts = (
            torch.randint(0, 256, (batches, rows, 3, high, wide), dtype=torch.uint8),
            torch.rand(batches, rows, joints, 2),
            (torch.rand(batches, rows, joints) < 0.8).float(),
        )
        self.parts = [part.pin_memory() for part in parts] if DEVICE == "cuda" else list(parts)

    def batch(self, number: int) -> tuple[torch.Tensor, ...]:
        return tuple(part[number % len(part)].to(DEVICE, non_blocking=True) for part in self.parts)


def pose_loss(found: torch.Tensor, wanted: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    """Joints that are hidden count nothing, by a factor instead of a mask."""
    wrong = (found.float() - wanted).square().mean(dim=(2, 3))
    return (wrong * seen).sum() / seen.sum()


def main() -> None:
    torch.manual_seed(0)
    rows, high, wide, patch, width, depth, joints, fine = (
        (128, 256, 192, 16, 1024, 10, 17, 4) if DEVICE == "cuda" else (2, 16, 12, 4, 16, 1, 3, 2)
    )
    model = PoseNet(high, wide, patch, width, depth, joints, fine).to(DEVICE)
    maps = JointMaps(high * fine // patch, wide * fine // patch, spread=2.0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, fused=DEVICE == "cuda")
    players = Players(3, rows, high, wide, joints)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        pictures, where, seen = players.batch(step)
        with torch.autocast(DEVICE, torch.bfloat16):
            found = model(pictures)
        loss = pose_loss(found, maps(where), seen)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    report(began, loss)


if __name__ == "__main__":
    main()
