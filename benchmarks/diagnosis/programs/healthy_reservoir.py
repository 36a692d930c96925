# SPDX-License-Identifier: Apache-2.0
"""A network of fixed neurons echoes a chaotic signal, step by step; what foretells it is fitted to the echo.

Each moment needs the one before, so that kernels are short and many: they are replayed as one CUDA graph.
"""

import time

import torch

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
DTYPE = torch.bfloat16
NEURONS, SERIES, MOMENTS = (1024, 512, 1024) if CUDA else (32, 3, 8)
PIECES, UNTIMED, WASHOUT = (40, 10, 32) if CUDA else (4, 2, 2)


def lorenz(series: int, moments: int) -> torch.Tensor:
    """Signals of three numbers from different beginnings: moments, series, 3."""
    state = torch.randn(series, 3, dtype=torch.float64) * 5 + torch.tensor([0.0, 0.0, 25.0])
    seen = []
    for _ in range(moments):
        x, y, z = state.unbind(1)
        state = state + 0.01 * torch.stack([10 * (y - x), x * (28 - z) - y, x * y - 8 / 3 * z], dim=1)
        seen.append(state)
    return torch.stack(seen).sub(torch.tensor([0.0, 0.0, 25.0])).div(10).float()


class Reservoir:
    """Static memory and, on a GPU, one graph which plays a whole piece of the signal."""

    def __init__(self) -> None:
        inner = torch.randn(NEURONS, NEURONS, device=DEVICE) * (0.9 / NEURONS**0.5)
        self.inner = inner.to(DTYPE)
        self.outer = torch.randn(3, NEURONS, device=DEVICE).mul(0.5).to(DTYPE)
        self.signal = torch.zeros(MOMENTS, SERIES, 3, device=DEVICE, dtype=DTYPE)
        self.states = torch.zeros(MOMENTS, SERIES, NEURONS, device=DEVICE, dtype=DTYPE)
        self.last = torch.zeros(SERIES, NEURONS, device=DEVICE, dtype=DTYPE)
        self.graph = torch.cuda.CUDAGraph() if CUDA else None
        if self.graph:
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                self.play()
            torch.cuda.current_stream().wait_stream(side)
            with torch.cuda.graph(self.graph):
                self.play()
            self.last.zero_()

    def play(self) -> None:
        torch.matmul(self.signal, self.outer, out=self.states)
        state = self.last
        for now in self.states:
            state = now.addmm_(state, self.inner).tanh_()
        self.last.copy_(state)

    def __call__(self, signal: torch.Tensor) -> torch.Tensor:
        self.signal.copy_(signal)
        self.graph.replay() if self.graph else self.play()
        return self.states


class Readout:
    """Ridge regression, from sums that grow piece by piece."""

    def __init__(self) -> None:
        self.square = torch.zeros(NEURONS, NEURONS, device=DEVICE)
        self.cross = torch.zeros(NEURONS, 3, device=DEVICE)

    def add(self, states: torch.Tensor, target: torch.Tensor) -> None:
        states = states[WASHOUT:].flatten(0, 1)
        self.square += states.t() @ states
        self.cross += states.t() @ target[WASHOUT:].flatten(0, 1).to(DTYPE)

    def solve(self, ridge: float) -> torch.Tensor:
        eye = torch.eye(NEURONS, device=DEVICE)
        return torch.linalg.solve(self.square + ridge * self.square.trace() / NEURONS * eye, self.cross)


@torch.no_grad()
def main() -> None:
    torch.manual_seed(0)
    signal = lorenz(SERIES, 3 * MOMENTS + 1).to(DEVICE, DTYPE)
    reservoir, readout = Reservoir(), Readout()
    for piece in range(PIECES):
        if piece == UNTIMED:
            if CUDA:
                torch.cuda.synchronize()
            began = time.perf_counter()
        first = piece % 3 * MOMENTS
        states = reservoir(signal[first : first + MOMENTS])
        readout.add(states, signal[first + 1 : first + 1 + MOMENTS])
    if CUDA:
        torch.cuda.synchronize()
    took_ms = 1000 * (time.perf_counter() - began) / (PIECES - UNTIMED)
    foretold = states[-1].float() @ readout.solve(1e-3)
    error = (foretold - signal[first + MOMENTS].float()).square().mean().item()
    print(f"step_ms {took_ms:.3f} loss {error:.6f}")


if __name__ == "__main__":
    main()
