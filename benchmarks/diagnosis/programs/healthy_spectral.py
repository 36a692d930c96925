# SPDX-License-Identifier: Apache-2.0
"""A Fourier neural operator: convolutions over a whole grid by transforms in fp32, the rest in TF32."""

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


class GlobalConvolution(nn.Module):
    """Multiplies the lowest frequencies by weights and drops the others."""

    def __init__(self, width: int, modes: int) -> None:
        super().__init__()
        self.modes = modes
        self.weight = nn.Parameter(torch.randn(2 * modes * modes, width, width, 2) / width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        low, size = self.modes, x.shape[-2:]
        spectrum = torch.fft.rfft2(x, norm="ortho")
        kept = torch.cat((spectrum[:, :, :low, :low], spectrum[:, :, -low:, :low]), dim=2)
        mixed = torch.bmm(kept.flatten(2).permute(2, 0, 1), torch.view_as_complex(self.weight))
        top, bottom = mixed.permute(1, 2, 0).unflatten(2, (2, low, low)).unbind(2)
        middle = top.new_zeros(*top.shape[:2], size[0] - 2 * low, low)
        return torch.fft.irfft2(torch.cat((top, middle, bottom), dim=2), s=size, norm="ortho")


class Layer(nn.Module):
    def __init__(self, width: int, modes: int) -> None:
        super().__init__()
        self.everywhere, self.here = GlobalConvolution(width, modes), nn.Conv2d(width, width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.gelu(self.everywhere(x) + self.here(x))


class Operator(nn.Module):
    """From the permeability of the ground to the pressure of the water in it."""

    def __init__(self, width: int, modes: int, depth: int) -> None:
        super().__init__()
        self.into, self.out = nn.Conv2d(3, width, 1), nn.Conv2d(width, 1, 1)
        self.layers = nn.Sequential(*(Layer(width, modes) for _ in range(depth)))

    def forward(self, ground: torch.Tensor) -> torch.Tensor:
        return self.out(self.layers(self.into(ground)))


def relative_error(guess: torch.Tensor, pressure: torch.Tensor) -> torch.Tensor:
    return ((guess - pressure).flatten(1).norm(dim=1) / pressure.flatten(1).norm(dim=1)).mean()


def main() -> None:
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    rows, size, width, modes, depth = (32, 128, 64, 16, 4) if DEVICE == "cuda" else (2, 16, 4, 3, 2)
    model = Operator(width, modes, depth).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=DEVICE == "cuda")
    ground = torch.randn(rows, 3, size, size, device=DEVICE)
    pressure = torch.randn(rows, 1, size, size, device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        loss = relative_error(model(ground), pressure)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    report(began, loss)


if __name__ == "__main__":
    main()
