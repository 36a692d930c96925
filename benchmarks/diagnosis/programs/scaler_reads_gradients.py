# SPDX-License-Identifier: Apache-2.0
"""A loss scaler of its own that reads from each gradient whether it is finite."""

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
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(-2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


def is_finite(gradient: torch.Tensor) -> bool:
    return bool(torch.isfinite(gradient).all())


class LossScaler:
    """Scales the loss for fp16; halves the scale and skips the step when a gradient overflows."""

    def __init__(self, scale: float) -> None:
        self.factor = scale
        self.overflowed = False

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        return loss * self.factor

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"]]
        self.overflowed = not all(is_finite(gradient) for gradient in gradients)
        if not self.overflowed:
            torch._foreach_mul_(gradients, 1 / self.factor)
            optimizer.step()

    def update(self) -> None:
        if self.overflowed:
            self.factor /= 2


def main() -> None:
    torch.manual_seed(0)
    width, heads, length, blocks = (768, 12, 512, 12) if DEVICE == "cuda" else (32, 2, 8, 2)
    half = torch.float16 if DEVICE == "cuda" else torch.bfloat16
    model = nn.Sequential(*(Block(width, heads) for _ in range(blocks))).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=DEVICE == "cuda")
    scaler = torch.amp.GradScaler(DEVICE, init_scale=4096.0) if MENDED else LossScaler(4096.0)
    x = torch.randn(8, length, width, device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        with torch.autocast(DEVICE, half):
            loss = model(x).float().square().mean()

        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    report(began, loss)


if __name__ == "__main__":
    main()
