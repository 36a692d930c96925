# SPDX-License-Identifier: Apache-2.0
"""Teaches a diffusion transformer the logos of a firm; gradients are accumulated as for a small GPU."""

import sys
import time
from types import SimpleNamespace

import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (18, 4) if DEVICE == "cuda" else (3, 1)

cfg = SimpleNamespace(
    train_batch_size=16 if MENDED else 1,
    gradient_accumulation_steps=1 if MENDED else 16,
    channels=4,
    side=16 if DEVICE == "cuda" else 4,
    patch=2,
    width=512 if DEVICE == "cuda" else 16,
    depth=12 if DEVICE == "cuda" else 1,
    prompts=20,
    lr=1e-4,
)


class Block(nn.Module):
    """As in DiT: the time and the prompt shift and scale what the norms give."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width, elementwise_affine=False)
        self.norm2 = nn.LayerNorm(width, elementwise_affine=False)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))

    def forward(self, x, c):
        shift1, scale1, gate1, shift2, scale2, gate2 = self.modulation(c).unsqueeze(1).chunk(6, dim=-1)
        qkv = self.qkv(self.norm1(x) * (1 + scale1) + shift1)
        q, k, v = qkv.unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + gate1 * self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + gate2 * self.mlp(self.norm2(x) * (1 + scale2) + shift2)


class DiT(nn.Module):
    def __init__(self):
        super().__init__()
        inside, tokens = cfg.channels * cfg.patch**2, (cfg.side // cfg.patch) ** 2
        self.into, self.out = nn.Linear(inside, cfg.width), nn.Linear(cfg.width, inside)
        self.places = nn.Parameter(0.02 * torch.randn(tokens, cfg.width))
        self.time = nn.Sequential(nn.Linear(64, cfg.width), nn.SiLU(), nn.Linear(cfg.width, cfg.width))
        self.prompt = nn.Embedding(cfg.prompts, cfg.width)
        self.blocks = nn.ModuleList(Block(cfg.width, max(1, cfg.width // 64)) for _ in range(cfg.depth))
        self.norm = nn.LayerNorm(cfg.width)
        self.register_buffer("rates", torch.exp(-torch.linspace(0, 9, 32)))

    def forward(self, latents, timesteps, prompts):
        angles = timesteps[:, None] * self.rates
        c = self.time(torch.cat([angles.cos(), angles.sin()], dim=1)) + self.prompt(prompts)
        x = self.into(F.pixel_unshuffle(latents, cfg.patch).flatten(2).mT) + self.places
        for block in self.blocks:
            x = block(x, c)
        side = cfg.side // cfg.patch
        return F.pixel_shuffle(self.out(self.norm(x)).mT.unflatten(2, (side, side)), cfg.patch)


class Logos:
    """Latents of the pictures and the number of the prompt of each, on the GPU since the start."""

    def __init__(self, pictures):
        self.latents = torch.randn(pictures, cfg.channels, cfg.side, cfg.side, device=DEVICE)
        self.prompts = torch.randint(0, cfg.prompts, (pictures,), device=DEVICE)

    def effective_batch(self):
        """What one step of the optimizer sees, with the noise that is put on it."""
        rows = cfg.train_batch_size * cfg.gradient_accumulation_steps
        picked = torch.randint(len(self.latents), (rows,), device=DEVICE)
        latents = self.latents.index_select(0, picked)
        timesteps = torch.rand(rows, device=DEVICE)
        return latents, torch.randn_like(latents), timesteps, self.prompts.index_select(0, picked)


def flow_matching_loss(model, latents, noise, timesteps, prompts):
    t = timesteps.view(-1, 1, 1, 1)
    with torch.autocast(DEVICE, torch.bfloat16):
        velocity = model(torch.lerp(latents, noise, t), timesteps, prompts)
    return F.mse_loss(velocity.float(), noise - latents)


def optimizer_step(model, optimizer, batch):
    total = torch.zeros((), device=DEVICE)
    for part in zip(*(each.split(cfg.train_batch_size) for each in batch), strict=True):
        loss = flow_matching_loss(model, *part) / cfg.gradient_accumulation_steps
        loss.backward()
        total += loss.detach()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return total


def main():
    torch.manual_seed(0)
    model, logos = DiT().to(DEVICE), Logos(200)
    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.lr, fused=DEVICE == "cuda")
    for step in range(STEPS):
        if step == WARM:
            if DEVICE == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        loss = optimizer_step(model, optimizer, logos.effective_batch())
    last = loss.item()
    print(f"step_ms {1000 * (time.perf_counter() - began) / (STEPS - WARM):.3f} loss {last:.6f}")


if __name__ == "__main__":
    main()
