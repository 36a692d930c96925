# SPDX-License-Identifier: Apache-2.0
"""The load of a grid is forecast: each block explains a part of the past and leaves the rest."""

import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (40, 10) if DEVICE == "cuda" else (3, 1)


class Block(nn.Module):
    def __init__(self, past: int, ahead: int, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(past if n == 0 else width, width) for n in range(4))
        self.backcast = nn.Linear(width, past)
        self.forecast = nn.Linear(width, ahead)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = x
        for layer in self.layers:
            h = torch.relu_(layer(h))
        return self.backcast(h), self.forecast(h)


class NBeats(nn.Module):
    def __init__(self, blocks: int, past: int, ahead: int, width: int) -> None:
        super().__init__()
        self.blocks, self.ahead = nn.ModuleList(Block(past, ahead, width) for _ in range(blocks)), ahead

    def forward(self, past: torch.Tensor) -> torch.Tensor:
        parts = []
        for block in self.blocks:
            explained, part = block(past)
            past = past - explained
            parts.append(part)
        return torch.stack(parts).sum(dim=0)


class Lion(torch.optim.Optimizer):
    """Steps of one size, in the direction in which the gradient and its mean point."""

    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            lr, (beta1, beta2), decay = group["lr"], group["betas"], group["weight_decay"]
            params = [p for p in group["params"] if p.grad is not None]
            for p in params:
                if not self.state[p]:
                    self.state[p]["exp_avg"] = torch.zeros_like(p)
            if MENDED:
                grads, means = [p.grad for p in params], [self.state[p]["exp_avg"] for p in params]
                torch._foreach_mul_(params, 1 - lr * decay)
                updates = torch._foreach_mul(means, beta1)
                torch._foreach_add_(updates, grads, alpha=1 - beta1)
                torch._foreach_sign_(updates)
                torch._foreach_add_(params, updates, alpha=-lr)
                torch._foreach_mul_(means, beta2)
                torch._foreach_add_(means, grads, alpha=1 - beta2)
                continue
            for p in params:
                grad, exp_avg = p.grad, self.state[p]["exp_avg"]
                p.mul_(1 - lr * decay)
                update = exp_avg.clone().mul_(beta1).add_(grad, alpha=1 - beta1).sign_()
                p.add_(update, alpha=-lr)
                exp_avg.mul_(beta2).add_(grad, alpha=1 - beta2)


class Trainer:
    def __init__(self, model: nn.Module, rows: int, past: int, ahead: int) -> None:
        self.model, self.rows, self.past, self.ahead = model, rows, past, ahead
        self.optimizer = Lion(model.parameters(), lr=1e-5, weight_decay=0.1)
        self.best = torch.full((), torch.inf, device=DEVICE)
        hours = torch.arange(rows + 4 * (past + ahead), device=DEVICE) / 24
        load = 1 + 0.3 * torch.sin(6.2832 * hours) + 0.05 * torch.randn(len(hours), device=DEVICE)
        self.windows = load.unfold(0, past + ahead, 1)

    def on_batch(self, number: int) -> torch.Tensor:
        some = self.windows[number % 4 : number % 4 + self.rows]
        past, future = some.split((self.past, self.ahead), dim=1)
        loss = F.l1_loss(self.model(past), future)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def fit(self, steps: int) -> float:
        for number in range(steps):
            if number == WARM:
                if DEVICE == "cuda":
                    torch.cuda.synchronize()
                began = time.perf_counter()
            self.best = torch.minimum(self.best, self.on_batch(number))
        best = self.best.item()
        print(f"step_ms {1000 * (time.perf_counter() - began) / (steps - WARM):.3f} loss {best:.6f}")
        return best


def main() -> None:
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    rows, blocks, past, ahead, width = (1024, 40, 168, 24, 256) if DEVICE == "cuda" else (6, 2, 6, 2, 8)
    Trainer(NBeats(blocks, past, ahead, width).to(DEVICE), rows, past, ahead).fit(STEPS)


if __name__ == "__main__":
    main()
