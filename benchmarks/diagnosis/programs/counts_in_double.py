# SPDX-License-Identifier: Apache-2.0
"""A model of gene counts whose likelihood is computed in double precision, as NumPy gave the counts."""

import sys
import time

import numpy as np
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


EPS = 1e-8


def load_counts(cells: int, genes: int) -> torch.Tensor:
    """How often each gene was read in each cell."""
    counts = np.random.default_rng(0).poisson(1.5, (min(cells, 128), genes)).astype(np.float64)
    counts = torch.from_numpy(np.tile(counts, (cells // len(counts), 1)))
    return counts.to(DEVICE, torch.float32 if MENDED else None)


class NegativeBinomial(nn.Module):
    """The log-likelihood of counts, with a dispersion for each gene."""

    def __init__(self, genes: int) -> None:
        super().__init__()
        self.log_theta = nn.Parameter(torch.zeros(genes))

    def forward(self, mean: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        theta = self.log_theta.exp()
        log_sum = torch.log(theta + mean + EPS)
        shape = theta * (self.log_theta - log_sum) + counts * (torch.log(mean + EPS) - log_sum)
        choose = torch.lgamma(counts + theta) - torch.lgamma(theta) - torch.lgamma(counts + 1)
        return (shape + choose).sum(dim=-1)


class CountModel(nn.Module):
    """A variational autoencoder of single cells."""

    def __init__(self, genes: int, width: int, latent: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(genes, width), nn.SiLU(), nn.Linear(width, 2 * latent))
        self.decoder = nn.Sequential(nn.Linear(latent, width), nn.SiLU(), nn.Linear(width, genes))
        self.likelihood = NegativeBinomial(genes)

    def forward(self, counts: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        inputs = torch.log1p(counts).to(torch.float32)
        with torch.autocast(DEVICE, torch.bfloat16):
            mean, log_var = self.encoder(inputs).float().chunk(2, dim=-1)
            frequency = F.softmax(self.decoder(mean + (log_var / 2).exp() * noise), dim=-1)
        kl = 0.5 * (mean.square() + log_var.exp() - 1 - log_var).sum(dim=-1)
        reads = counts.sum(dim=-1, keepdim=True)
        return (kl - self.likelihood(frequency.float() * reads, counts)).mean() / counts.shape[-1]


def main() -> None:
    torch.manual_seed(0)
    cells, genes, width = (1536, 16384, 512) if DEVICE == "cuda" else (8, 32, 16)
    counts = load_counts(cells, genes)
    model = CountModel(genes, width, latent=32 if DEVICE == "cuda" else 4).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=DEVICE == "cuda")
    noise = torch.randn(cells, 32 if DEVICE == "cuda" else 4, device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        loss = model(counts, noise)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    report(began, loss)


if __name__ == "__main__":
    main()
