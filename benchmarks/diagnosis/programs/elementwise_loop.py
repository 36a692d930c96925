# SPDX-License-Identifier: Apache-2.0
"""A loss that is computed sample by sample in a loop."""

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


class Net(nn.Module):
    def __init__(self, width: int, layers: int, classes: int = 64) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.head = nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = F.gelu(layer(x))
        return self.head(x)


def focal_loss(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    log_p = F.log_softmax(logits.float(), dim=-1)
    if MENDED:
        picked = log_p.gather(1, target[:, None])[:, 0]
        return (-((1 - picked.exp()) ** 2) * picked).mean()
    total = torch.zeros((), device=logits.device)
    for row in range(len(log_p)):
        picked = log_p[row].gather(0, target[row : row + 1])[0]
        total = total - (1 - picked.exp()) ** 2 * picked
    return total / len(log_p)


def main() -> None:
    torch.manual_seed(0)
    model = Net(1024, 4).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=DEVICE == "cuda")
    rows = 256 if DEVICE == "cuda" else 16
    x = torch.randn(rows, 1024, device=DEVICE)
    target = torch.randint(0, 64, (rows,), device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        with torch.autocast(DEVICE, torch.bfloat16):
            logits = model(x)
        loss = focal_loss(logits, target)

        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    report(began, loss)


if __name__ == "__main__":
    main()
