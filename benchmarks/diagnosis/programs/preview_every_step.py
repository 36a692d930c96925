# SPDX-License-Identifier: Apache-2.0
"""A diffusion model of latents is trained, and a board of pictures shows how well it does."""

import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (20, 5) if DEVICE == "cuda" else (3, 1)


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
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Denoiser(nn.Module):
    """Tells the noise in latents from pieces of two by two."""

    def __init__(self, channels: int, size: int, width: int, depth: int) -> None:
        super().__init__()
        self.into = nn.Linear(4 * channels, width)
        self.places = nn.Parameter(0.02 * torch.randn((size // 2) ** 2, width))
        self.when = nn.Sequential(nn.Linear(1, width), nn.SiLU(), nn.Linear(width, width))
        self.blocks = nn.Sequential(*(Block(width, max(1, width // 64)) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 4 * channels)

    def forward(self, latents: torch.Tensor, times: torch.Tensor) -> torch.Tensor:
        pieces = F.pixel_unshuffle(latents, 2).flatten(2).transpose(1, 2)
        x = self.into(pieces) + self.places + self.when(times[:, None]).unsqueeze(1)
        found = self.head(self.norm(self.blocks(x))).transpose(1, 2)
        return F.pixel_shuffle(found.unflatten(2, (latents.shape[2] // 2, -1)), 2)


class Decoder(nn.Module):
    """Turns latents into pictures that are eight times as large; it is learned already."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.into = nn.Conv2d(channels, width, 3, padding=1)
        widths = (width, width // 2, width // 4)
        self.stages = nn.ModuleList(
            nn.ModuleList((nn.Conv2d(one, one, 3, padding=1), nn.Conv2d(one, two, 3, padding=1)))
            for one, two in zip(widths, (*widths[1:], width // 4), strict=True)
        )
        self.last = nn.Conv2d(width // 4, 3, 3, padding=1)

    def forward(self, latents: torch.Tensor) -> torch.Tensor:
        x = self.into(latents)
        for first, second in self.stages:
            x = F.interpolate(x, scale_factor=2.0)
            x = F.silu(second(x + F.silu(first(x))))
        return torch.tanh(self.last(x))


class PreviewCallback:
    """Shows what the model makes of noisy latents, once in a while."""

    def __init__(self, decoder: Decoder, every: int) -> None:
        self.decoder, self.every = decoder, every
        self.board: list[torch.Tensor] = []

    @torch.no_grad()
    def on_step_end(self, step: int, noisy: torch.Tensor, found: torch.Tensor, times: torch.Tensor) -> None:
        if MENDED and step % self.every != 0:
            return
        share = times.view(-1, 1, 1, 1)
        clean = (noisy - share.sqrt() * found) / (1 - share).sqrt()
        pictures = self.decoder(clean.contiguous(memory_format=torch.channels_last))
        pictures = (pictures.clamp(-1, 1) + 1) / 2
        if step % self.every == 0:
            self.board.append(pictures.mul(255).to(torch.uint8).cpu())


def main() -> None:
    torch.manual_seed(0)
    rows, channels, size, width, depth, features = (
        (64, 4, 32, 512, 8, 256) if DEVICE == "cuda" else (3, 2, 4, 16, 1, 8)
    )
    model = Denoiser(channels, size, width, depth).to(DEVICE, torch.bfloat16)
    decoder = Decoder(channels, features).to(DEVICE, torch.bfloat16, memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=DEVICE == "cuda")
    preview = PreviewCallback(decoder.requires_grad_(False).eval(), every=100)
    data = torch.randn(256, channels, size, size, device=DEVICE, dtype=torch.bfloat16)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        latents = data.index_select(0, torch.randint(0, len(data), (rows,), device=DEVICE))
        times = 0.98 * torch.rand(rows, device=DEVICE, dtype=torch.bfloat16) + 0.01
        noise, share = torch.randn_like(latents), times.view(-1, 1, 1, 1)
        noisy = (1 - share).sqrt() * latents + share.sqrt() * noise
        found = model(noisy, times)
        loss = F.mse_loss(found.float(), noise.float())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        preview.on_step_end(step, noisy, found, times)
    report(began, loss)
    assert len(preview.board) == 1


if __name__ == "__main__":
    main()
