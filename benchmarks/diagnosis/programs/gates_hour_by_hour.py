# SPDX-License-Identifier: Apache-2.0
"""Tomorrow's demand for electricity at each substation, from a week of hours, by a recurrent network."""

import sys
import time
from typing import NamedTuple

import torch
from torch import Tensor, nn

MENDED = "--mended" in sys.argv
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ON_GPU = DEVICE.type == "cuda"


class Sizes(NamedTuple):
    stations: int
    hours: int
    signals: int
    hidden: int
    ahead: int
    rounds: int
    first: int


SIZES = Sizes(1024, 168, 24, 256, 24, 20, 5) if ON_GPU else Sizes(5, 6, 3, 8, 2, 3, 1)


class GRU(nn.Module):
    """Gated recurrent unit (Cho et al., 2014), written out to see what the gates do."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        bound = hidden_size**-0.5
        self.w_input = nn.Parameter(torch.empty(3 * hidden_size, input_size).uniform_(-bound, bound))
        self.w_hidden = nn.Parameter(torch.empty(3 * hidden_size, hidden_size).uniform_(-bound, bound))
        self.b_input = nn.Parameter(torch.zeros(3 * hidden_size))
        self.b_hidden = nn.Parameter(torch.zeros(3 * hidden_size))

    def forward(self, x: Tensor, h: Tensor) -> Tensor:
        """x: hours, stations, signals."""
        if MENDED:
            flat = [self.w_input, self.w_hidden, self.b_input, self.b_hidden]
            return torch.gru(x, h[None], flat, True, 1, 0.0, self.training, False, False)[1][0]
        inputs = nn.functional.linear(x, self.w_input, self.b_input)
        for hour in inputs:
            hidden = nn.functional.linear(h, self.w_hidden, self.b_hidden)
            r_in, z_in, n_in = hour.chunk(3, dim=1)
            r_hid, z_hid, n_hid = hidden.chunk(3, dim=1)
            reset = torch.sigmoid(r_in + r_hid)
            update = torch.sigmoid(z_in + z_hid)
            new = torch.tanh(n_in + reset * n_hid)
            h = (1 - update) * new + update * h
        return h


class DemandModel(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.start = nn.Embedding(sizes.stations, sizes.hidden)
        self.encoder = GRU(sizes.signals, sizes.hidden)
        self.decoder = nn.Sequential(
            nn.Linear(sizes.hidden, 4 * sizes.hidden), nn.SiLU(), nn.Linear(4 * sizes.hidden, 3 * sizes.ahead)
        )

    def forward(self, station: Tensor, week: Tensor) -> Tensor:
        """Of each hour the quantiles 0.1, 0.5 and 0.9."""
        return self.decoder(self.encoder(week, self.start(station))).unflatten(1, (3, -1))


def pinball(found: Tensor, true: Tensor, quantiles: Tensor) -> Tensor:
    less = true[:, None] - found
    return torch.maximum(quantiles * less, (quantiles - 1) * less).mean()


def main() -> None:
    torch.manual_seed(11)
    torch.set_float32_matmul_precision("high")
    s = SIZES
    model = DemandModel(s).to(DEVICE)
    optim = torch.optim.RAdam(model.parameters(), lr=1e-3, foreach=ON_GPU)
    station = torch.arange(s.stations, device=DEVICE)
    history = torch.randn(3, s.hours, s.stations, s.signals, device=DEVICE)
    demand = torch.randn(3, s.stations, s.ahead, device=DEVICE)
    quantiles = torch.tensor([0.1, 0.5, 0.9], device=DEVICE)[:, None]
    for number in range(s.rounds):
        if number == s.first:
            if ON_GPU:
                torch.cuda.synchronize()
            t = time.perf_counter()
        loss = pinball(model(station, history[number % 3]), demand[number % 3], quantiles)
        loss.backward()
        optim.step()
        optim.zero_grad()
    shown = loss.item()
    print(f"step_ms {(time.perf_counter() - t) / (s.rounds - s.first) * 1000:.3f} loss {shown:.6f}")


if __name__ == "__main__":
    main()
