# SPDX-License-Identifier: Apache-2.0
"""Removes rain from photographs; the norm is over channels, as in networks that come from transformers."""

import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

mended = "--mended" in sys.argv
cuda = torch.cuda.is_available()
dev = "cuda" if cuda else "cpu"


class LayerNorm2d(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x):
        last = x.permute(0, 2, 3, 1)
        if not mended:
            last = last.contiguous()
        last = F.layer_norm(last, (last.shape[-1],), self.weight, self.bias, 1e-6)
        if mended:
            return last.permute(0, 3, 1, 2)
        return last.permute(0, 3, 1, 2).contiguous()


class GatedBlock(nn.Module):
    """Two halves: convolve and multiply one by the other, then widen and multiply again."""

    def __init__(self, c):
        super().__init__()
        self.norm1, self.norm2 = LayerNorm2d(c), LayerNorm2d(c)
        self.conv = nn.Conv2d(c, 2 * c, 3, padding=1)
        self.conv_out = nn.Conv2d(c, c, 1)
        self.wide = nn.Conv2d(c, 2 * c, 1)
        self.wide_out = nn.Conv2d(c, c, 1)

    def forward(self, x):
        one, two = self.conv(self.norm1(x)).chunk(2, dim=1)
        x = x + self.conv_out(one * two)
        one, two = self.wide(self.norm2(x)).chunk(2, dim=1)
        return x + self.wide_out(one * two)


class Derain(nn.Module):
    def __init__(self, c, depth):
        super().__init__()
        self.intro = nn.Conv2d(12, c, 3, padding=1)
        self.blocks = nn.Sequential(*[GatedBlock(c) for _ in range(depth)])
        self.ending = nn.Conv2d(c, 12, 3, padding=1)

    def forward(self, x):
        folded = F.pixel_unshuffle(x, 2)
        if mended:
            folded = folded.contiguous(memory_format=torch.channels_last)
        return x + F.pixel_shuffle(self.ending(self.blocks(self.intro(folded))), 2)


def charbonnier(a, b):
    return ((a - b).square() + 1e-6).sqrt().mean()


def train(batch, side, channels, depth, iters, skip):
    net = Derain(channels, depth).to(dev, torch.bfloat16)
    if mended:
        net = net.to(memory_format=torch.channels_last)
    # sums of small steps need the bits that bfloat16 has not
    master = [p.detach().float().requires_grad_() for p in net.parameters()]
    opt = torch.optim.AdamW(master, lr=1e-4, betas=(0.9, 0.9), fused=cuda)
    clean = torch.rand(2, batch, 3, side, side, device=dev, dtype=torch.bfloat16)
    streaks = (torch.rand(2, batch, 1, side, side, device=dev) > 0.97).to(torch.bfloat16)
    rainy = (clean + 0.5 * streaks).clamp_(0, 1)
    for i in range(iters):
        if i == skip:
            if cuda:
                torch.cuda.synchronize()
            tick = time.perf_counter()
        loss = charbonnier(net(rainy[i % 2]).float(), clean[i % 2])
        loss.backward()
        with torch.no_grad():
            for wide, p in zip(master, net.parameters(), strict=True):
                wide.grad = p.grad.float()
            opt.step()
            torch._foreach_copy_(list(net.parameters()), master)
        net.zero_grad()
    end = loss.item()
    print(f"step_ms {1e3 * (time.perf_counter() - tick) / (iters - skip):.3f} loss {end:.6f}")


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    if cuda:
        train(batch=16, side=256, channels=128, depth=12, iters=20, skip=5)
    else:
        train(batch=2, side=8, channels=8, depth=2, iters=3, skip=1)
