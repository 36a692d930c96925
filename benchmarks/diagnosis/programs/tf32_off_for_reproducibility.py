# SPDX-License-Identifier: Apache-2.0
"""A surrogate for air flow over car bodies: the pressure at points, by attention between slices."""

import os
import random
import sys
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

MENDED = "--mended" in sys.argv
use_cuda = torch.cuda.is_available()
device = "cuda" if use_cuda else "cpu"


def seed_everything(seed=0):
    """The same numbers in each run."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    os.environ["PYTHONHASHSEED"] = str(seed)
    torch.backends.cudnn.benchmark = False
    torch.backends.cuda.matmul.allow_tf32 = MENDED
    torch.backends.cudnn.allow_tf32 = MENDED


class SliceAttention(nn.Module):
    """Points are gathered into a few slices per head, slices attend to one another, points read them back."""

    def __init__(self, dim, heads, slices):
        super().__init__()
        self.heads = heads
        self.to_x = nn.Linear(dim, dim)
        self.to_weight = nn.Linear(dim // heads, slices)
        self.to_qkv = nn.Linear(dim // heads, 3 * dim // heads, bias=False)
        self.to_out = nn.Linear(dim, dim)

    def forward(self, x):
        x = self.to_x(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        weight = self.to_weight(x).softmax(dim=-1)
        token = weight.transpose(2, 3) @ x / (weight.sum(dim=2)[..., None] + 1e-5)
        q, k, v = self.to_qkv(token).chunk(3, dim=-1)
        out = weight @ F.scaled_dot_product_attention(q, k, v)
        return self.to_out(out.transpose(1, 2).flatten(2))


class FlowBlock(nn.Module):
    def __init__(self, dim, heads, slices):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = SliceAttention(dim, heads, slices)
        self.mlp_in = nn.Linear(dim, 4 * dim)
        self.mlp_out = nn.Linear(4 * dim, dim)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp_out(F.gelu(self.mlp_in(self.ln_2(x))))


class Surrogate(nn.Module):
    def __init__(self, dim, depth, heads, slices, features=7):
        super().__init__()
        self.preprocess = nn.Sequential(nn.Linear(features, dim), nn.GELU(), nn.Linear(dim, dim))
        self.blocks = nn.ModuleList([FlowBlock(dim, heads, slices) for _ in range(depth)])
        self.pressure = nn.Linear(dim, 1)

    def forward(self, points):
        x = self.preprocess(points)
        for block in self.blocks:
            x = block(x)
        return self.pressure(x).squeeze(-1)


def train(epochs, skipped, cars, points, **network):
    model = Surrogate(**network).to(device)
    opt = torch.optim.AdamW(model.parameters(), lr=2e-4, weight_decay=1e-5, fused=use_cuda)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=1e-3, total_steps=epochs)
    surface = torch.randn(cars, points, 7, device=device)
    pressure = torch.randn(cars, points, device=device)
    for epoch in range(epochs):
        if epoch == skipped:
            if use_cuda:
                torch.cuda.synchronize()
            tic = time.time()
        opt.zero_grad()
        error = (model(surface) - pressure).norm(dim=1) / pressure.norm(dim=1)
        loss = error.mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
    last = loss.item()
    print(f"step_ms {(time.time() - tic) * 1000 / (epochs - skipped):.3f} loss {last:.6f}")


if __name__ == "__main__":
    seed_everything(2024)
    if use_cuda:
        train(20, 5, cars=2, points=16384, dim=768, depth=6, heads=8, slices=64)
    else:
        train(3, 1, cars=2, points=20, dim=16, depth=1, heads=2, slices=4)
