# SPDX-License-Identifier: Apache-2.0
"""A radiance field in bf16 learns from rays that are drawn and cut into samples on the GPU."""

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


class Field(nn.Module):
    """Colour and density of a place."""

    def __init__(self, octaves: int, width: int, depth: int) -> None:
        super().__init__()
        self.register_buffer("octaves", 2.0 ** torch.arange(octaves))
        self.into, self.head = nn.Linear(6 * octaves, width), nn.Linear(width, 4)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def forward(self, places: torch.Tensor) -> torch.Tensor:
        angles = (places[..., None] * self.octaves).flatten(-2)
        x = self.into(torch.cat((angles.sin(), angles.cos()), dim=-1))
        for layer in self.layers:
            x = F.relu(layer(x))
        return self.head(x)


def rendered(field: Field, origins: torch.Tensor, directions: torch.Tensor, samples: int) -> torch.Tensor:
    """Colours of rays: samples are seen through those in front of them."""
    depths = torch.arange(samples, device=DEVICE) + torch.rand(len(origins), samples, device=DEVICE)
    depths = depths / samples
    places = torch.addcmul(origins[:, None], directions[:, None], depths[..., None])
    with torch.autocast(DEVICE, torch.bfloat16):
        colours, density = field(places).split((3, 1), dim=-1)
    optical = F.softplus(density[..., 0].float()) / samples
    through = torch.exp(optical - optical.cumsum(dim=1))
    weight = through * -torch.expm1(-optical)
    return (weight[..., None] * colours.float().sigmoid()).sum(dim=1)


def main() -> None:
    torch.manual_seed(0)
    pixels, rays, samples, octaves, width, depth = (
        (500_000, 4096, 96, 10, 512, 8) if DEVICE == "cuda" else (50, 4, 5, 3, 8, 2)
    )
    field = Field(octaves, width, depth).to(DEVICE)
    optimizer = torch.optim.Adam(field.parameters(), lr=5e-4, fused=DEVICE == "cuda")
    directions = F.normalize(torch.randn(pixels, 3, device=DEVICE), dim=-1)
    origins, colours = -directions.roll(1, 0), torch.rand(pixels, 3, device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        chosen = torch.randint(0, pixels, (rays,), device=DEVICE)
        seen = rendered(field, origins[chosen], directions[chosen], samples)
        loss = F.mse_loss(seen, colours[chosen])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    report(began, loss)


if __name__ == "__main__":
    main()
