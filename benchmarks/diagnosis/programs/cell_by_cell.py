# SPDX-License-Identifier: Apache-2.0
"""A recurrent layer written as a loop over an LSTMCell."""

import sys
import time

import torch
from torch import nn

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


class Recurrent(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(width, width)
        self.whole = nn.LSTM(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if MENDED:
            return self.whole(x)[0]
        h = c = x.new_zeros(x.shape[1], x.shape[2])
        outs = []
        for now in x:
            h, c = self.cell(now, (h, c))
            outs.append(h)
        return torch.stack(outs)


def main() -> None:
    torch.manual_seed(0)
    model = Recurrent(256).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=DEVICE == "cuda")
    x = torch.randn(256 if DEVICE == "cuda" else 8, 32, 256, device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        loss = model(x).square().mean()

        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    report(began, loss)


if __name__ == "__main__":
    main()
