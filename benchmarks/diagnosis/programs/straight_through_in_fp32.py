# SPDX-License-Identifier: Apache-2.0
"""A heart-beat classifier learns with weights of four bits, because a wearable has to run it."""

import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (20, 5) if DEVICE == "cuda" else (3, 1)


class FakeQuantizedLinear(torch.autograd.Function):
    """Rounds the weights on the way forward; their gradient is that of the weights before rounding."""

    @staticmethod
    def forward(ctx, x, weight, levels):
        step = weight.abs().amax(dim=1, keepdim=True) / levels
        rounded = (weight / step).round_().mul_(step).to(x.dtype)
        ctx.save_for_backward(x, rounded)
        return x @ rounded.t()

    @staticmethod
    def backward(ctx, grad_output):
        x, rounded = ctx.saved_tensors
        grad = grad_output
        if not MENDED:
            # the estimator is noisy enough: no rounding in here
            x, rounded, grad = x.float(), rounded.float(), grad_output.float()
        grad_x = grad @ rounded
        grad_weight = grad.flatten(0, -2).t() @ x.flatten(0, -2)
        return grad_x.to(grad_output.dtype), grad_weight.float(), None


class QuantLinear(nn.Module):
    def __init__(self, wide: int, out: int, bits: int = 4) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(out, wide) * wide**-0.5)
        self.levels = 2 ** (bits - 1) - 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return FakeQuantizedLinear.apply(x, self.weight, self.levels)


class Block(nn.Module):
    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.norm1 = nn.LayerNorm(dim, dtype=torch.bfloat16)
        self.norm2 = nn.LayerNorm(dim, dtype=torch.bfloat16)
        self.qkv = nn.Linear(dim, 3 * dim, bias=False, dtype=torch.bfloat16)
        self.proj = nn.Linear(dim, dim, bias=False, dtype=torch.bfloat16)
        self.fc1, self.fc2 = QuantLinear(dim, 4 * dim), QuantLinear(4 * dim, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class BeatNet(nn.Module):
    def __init__(self, leads: int, patch: int, dim: int, depth: int, rhythms: int) -> None:
        super().__init__()
        self.embed = nn.Conv1d(leads, dim, patch, stride=patch, dtype=torch.bfloat16)
        self.blocks = nn.Sequential(*(Block(dim, max(1, dim // 64)) for _ in range(depth)))
        self.norm = nn.LayerNorm(dim, dtype=torch.bfloat16)
        self.head = nn.Linear(dim, rhythms, dtype=torch.bfloat16)

    def forward(self, ecg: torch.Tensor) -> torch.Tensor:
        x = self.blocks(self.embed(ecg).transpose(1, 2).contiguous())
        return self.head(self.norm(x).mean(dim=1)).float()


def main() -> None:
    torch.manual_seed(0)
    cfg = dict(leads=12, patch=10, dim=1024, depth=6, rhythms=27)
    batch, patches = 16, 1024
    if DEVICE == "cpu":
        cfg, batch, patches = dict(leads=2, patch=2, dim=16, depth=2, rhythms=5), 2, 6
    model = BeatNet(**cfg).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=DEVICE == "cuda")
    ecg = torch.randn(4, batch, cfg["leads"], patches * cfg["patch"], device=DEVICE, dtype=torch.bfloat16)
    rhythm = torch.randint(0, cfg["rhythms"], (4, batch), device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            if DEVICE == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        loss = F.cross_entropy(model(ecg[step % 4]), rhythm[step % 4])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    final = loss.item()
    print(f"step_ms {1000 * (time.perf_counter() - began) / (STEPS - WARM):.3f} loss {final:.6f}")


if __name__ == "__main__":
    main()
