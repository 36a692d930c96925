# SPDX-License-Identifier: Apache-2.0
"""A handwritten AdamW that loops over the parameters of a deep, narrow network."""

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


class Adam(torch.optim.Optimizer):
    """Adam with decoupled weight decay, as in the paper."""

    def __init__(self, parameters, lr: float) -> None:
        super().__init__(parameters, {"lr": lr, "betas": (0.9, 0.999), "eps": 1e-8, "decay": 0.01})
        self.steps = 0

    @torch.no_grad()
    def step(self) -> None:
        self.steps += 1
        for group in self.param_groups:
            for p in group["params"]:
                self.update(p, group)

    def update(self, p: torch.Tensor, group: dict) -> None:
        beta1, beta2 = group["betas"]
        state = self.state[p]
        if not state:
            state["mean"], state["square"] = torch.zeros_like(p), torch.zeros_like(p)
        state["mean"].mul_(beta1).add_(p.grad, alpha=1 - beta1)
        state["square"].mul_(beta2).addcmul_(p.grad, p.grad, value=1 - beta2)
        spread = (state["square"] / (1 - beta2**self.steps)).sqrt_().add_(group["eps"])
        p.data.mul_(1 - group["lr"] * group["decay"])
        p.data.addcdiv_(state["mean"], spread, value=-group["lr"] / (1 - beta1**self.steps))


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.linear = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + F.gelu(self.linear(self.norm(x)))


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    if MENDED:
        return torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=DEVICE == "cuda")
    return Adam(model.parameters(), lr=1e-4)


def main() -> None:
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    width, blocks, rows = (256, 48, 512) if DEVICE == "cuda" else (16, 4, 8)
    model = nn.Sequential(*(Block(width) for _ in range(blocks)), nn.Linear(width, 64)).to(DEVICE)
    optimizer = make_optimizer(model)
    x = torch.randn(rows, width, device=DEVICE)
    target = torch.randint(0, 64, (rows,), device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        loss = F.cross_entropy(model(x), target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    report(began, loss)


if __name__ == "__main__":
    main()
