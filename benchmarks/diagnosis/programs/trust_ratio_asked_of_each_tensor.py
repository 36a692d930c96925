# SPDX-License-Identifier: Apache-2.0
"""Two views of a star's spectrum shall look alike to a deep network, which learns with LARS."""

import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class LARS(torch.optim.Optimizer):
    """Layer-wise adaptive rate scaling (You et al., 2017) around momentum SGD."""

    def __init__(self, params, lr, momentum=0.9, weight_decay=1e-6, trust=0.001, eps=1e-8):
        rates = dict(lr=lr, momentum=momentum, weight_decay=weight_decay, trust=trust, eps=eps)
        super().__init__(params, rates)

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            with_grad = [p for p in group["params"] if p.grad is not None]
            for p in with_grad:
                if not self.state[p]:
                    self.state[p]["mu"] = torch.zeros_like(p)
            if MENDED:
                self._all(group, with_grad)
            else:
                for p in with_grad:
                    self._one(group, p)

    def _one(self, group, p):
        p_norm, g_norm = torch.norm(p), torch.norm(p.grad)
        d_p = p.grad.add(p, alpha=group["weight_decay"])
        if p_norm > 0 and g_norm > 0:
            lars_lr = p_norm / (g_norm + p_norm * group["weight_decay"] + group["eps"])
            d_p = d_p * (lars_lr * group["trust"])
        mu = self.state[p]["mu"].mul_(group["momentum"]).add_(d_p)
        p.add_(mu, alpha=-group["lr"])

    def _all(self, group, params):
        grads, mu = [p.grad for p in params], [self.state[p]["mu"] for p in params]
        p_norm, g_norm = (torch.stack(torch._foreach_norm(some)) for some in (params, grads))
        scale = group["trust"] * p_norm / (g_norm + p_norm * group["weight_decay"] + group["eps"])
        scale = torch.where((p_norm > 0) & (g_norm > 0), scale, 1.0)
        d_p = torch._foreach_add(grads, params, alpha=group["weight_decay"])
        torch._foreach_mul_(d_p, list(scale.unbind()))
        torch._foreach_mul_(mu, group["momentum"])
        torch._foreach_add_(mu, d_p)
        torch._foreach_add_(params, mu, alpha=-group["lr"])


class Unit(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.bn = nn.BatchNorm1d(width)
        self.conv1 = nn.Conv1d(width, width // 4, 1)
        self.conv2 = nn.Conv1d(width // 4, width, 1)

    def forward(self, x):
        return x + self.conv2(F.relu(self.conv1(self.bn(x))))


class SpectrumEncoder(nn.Module):
    def __init__(self, width, depth, shared):
        super().__init__()
        self.stem = nn.Conv1d(1, width, 16, stride=8)
        self.units = nn.Sequential(*(Unit(width) for _ in range(depth)))
        self.projector = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, shared))

    def forward(self, flux):
        return self.projector(self.units(self.stem(flux)).mean(dim=2))


def nt_xent(z, temperature=0.2):
    z = F.normalize(z.float(), dim=1)
    scores = (z @ z.t() / temperature).fill_diagonal_(-1e4)
    return F.cross_entropy(scores, torch.arange(len(z), device=z.device).roll(len(z) // 2))


def pretrain(stars, pixels, width, depth, shared, steps, warm):
    encoder = SpectrumEncoder(width, depth, shared).to(DEVICE)
    optimizer = LARS(encoder.parameters(), lr=0.2)
    flux = torch.randn(stars, 1, pixels, device=DEVICE)
    for step in range(steps):
        if step == warm:
            if DEVICE == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        views = torch.cat([flux + 0.1 * torch.randn_like(flux) for _ in range(2)])
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = nt_xent(encoder(views))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    shown = loss.item()
    print(f"step_ms {1000 * (time.perf_counter() - began) / (steps - warm):.3f} loss {shown:.6f}")


if __name__ == "__main__":
    torch.manual_seed(0)
    pretrain(*((256, 1024, 128, 64, 128, 24, 6) if DEVICE == "cuda" else (4, 64, 16, 3, 8, 3, 1)))
