# SPDX-License-Identifier: Apache-2.0
"""The density of particle showers is learnt by a normalizing flow of many couplings."""

import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (40, 10) if DEVICE == "cuda" else (3, 1)


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


class Coupling(nn.Module):
    """Scales and moves one half of the features by what a network makes of the other half."""

    def __init__(self, features: int, known: int, width: int) -> None:
        super().__init__()
        self.half = features // 2
        self.into = nn.Linear(self.half + known, width)
        self.mid1, self.mid2 = nn.Linear(width, width), nn.Linear(width, width)
        self.out = nn.Linear(width, 2 * (features - self.half))
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, x: torch.Tensor, beam: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The new features, reversed so that the halves take turns, and the logarithm of the scale."""
        kept, changed = x[:, : self.half], x[:, self.half :]
        y = F.relu(self.into(torch.cat((kept, beam), dim=1)))
        y = self.out(F.relu(self.mid2(F.relu(self.mid1(y)))))
        scale, move = y.float().chunk(2, dim=1)
        scale = 2 * torch.tanh(scale / 2)
        changed = torch.addcmul(move, changed, scale.exp())
        return torch.cat((kept, changed), dim=1).flip(1), scale.sum(dim=1)


class Flow(nn.Module):
    def __init__(self, features: int, known: int, width: int, depth: int) -> None:
        super().__init__()
        self.couplings = nn.ModuleList(Coupling(features, known, width) for _ in range(depth))

    def forward(self, x: torch.Tensor, beam: torch.Tensor) -> torch.Tensor:
        """The negative logarithm of each row's density, up to a constant."""
        stretched = torch.zeros(len(x), device=x.device)
        for coupling in self.couplings:
            x, more = coupling(x, beam)
            stretched = stretched + more
        return 0.5 * x.square().sum(dim=1) - stretched


class Showers:
    """On the host, pinned; the next batch goes up while the GPU learns from this one."""

    def __init__(self, rows: int, features: int, known: int) -> None:
        self.known, self.cells = known, torch.rand(4, rows, known + features)
        self.side = torch.cuda.Stream() if DEVICE == "cuda" else None
        if self.side:
            self.cells = self.cells.pin_memory()

    def start(self, number: int) -> torch.Tensor:
        with torch.cuda.stream(self.side):
            return self.cells[number % 4].to(DEVICE, non_blocking=True)

    def ready(self, cells: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if self.side:
            torch.cuda.current_stream().wait_stream(self.side)
            cells.record_stream(torch.cuda.current_stream())
        beam, energies = cells.split((self.known, cells.shape[1] - self.known), dim=1)
        return torch.logit(energies.clamp(1e-4, 1 - 1e-4)), beam


def main() -> None:
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    rows, features, known, width, depth = (16384, 384, 8, 2048, 12) if DEVICE == "cuda" else (8, 6, 2, 8, 2)
    flow, showers = Flow(features, known, width, depth).to(DEVICE), Showers(rows, features, known)
    optimizer = torch.optim.AdamW(flow.parameters(), lr=2e-4, fused=DEVICE == "cuda")
    coming = showers.start(0)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        x, beam = showers.ready(coming)
        coming = showers.start(step + 1)
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = flow(x, beam).mean() / features
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(flow.parameters(), 1.0)
        optimizer.step()
    report(began, loss)


if __name__ == "__main__":
    main()
