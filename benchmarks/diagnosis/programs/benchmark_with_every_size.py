# SPDX-License-Identifier: Apache-2.0
"""Images of another size in each step, for which cuDNN tries all of its algorithms anew."""

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


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(width, width, 3, padding=1), nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.second(F.relu(self.first(x)))


class Restorer(nn.Module):
    """Removes the noise of photographs of any size."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.into, self.out = nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width, 3, 3, padding=1)
        self.body = nn.Sequential(*(Residual(width) for _ in range(depth)))

    def forward(self, noisy: torch.Tensor) -> torch.Tensor:
        return noisy - self.out(self.body(self.into(noisy)))


def photographs(rows: int, sizes: list[int]) -> list[torch.Tensor]:
    """One batch for each size."""
    order = torch.randperm(len(sizes)).tolist()
    batches = [torch.rand(rows, 3, sizes[number], sizes[number], device=DEVICE) for number in order]
    return [batch.to(memory_format=torch.channels_last) for batch in batches]


def main() -> None:
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = not MENDED
    rows, least, width, depth = (16, 160, 128, 6) if DEVICE == "cuda" else (2, 8, 8, 2)
    model = Restorer(width, depth).to(DEVICE, memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=DEVICE == "cuda")
    for step, clean in enumerate(photographs(rows, [least + 8 * number for number in range(STEPS)])):
        if step == WARM:
            began = start_clock()
        noisy = clean + 0.1 * torch.randn_like(clean)
        with torch.autocast(DEVICE, torch.bfloat16):
            restored = model(noisy)
        loss = F.l1_loss(restored.float(), clean)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    report(began, loss)


if __name__ == "__main__":
    main()
