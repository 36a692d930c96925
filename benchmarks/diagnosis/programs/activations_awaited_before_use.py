# SPDX-License-Identifier: Apache-2.0
"""A sparse autoencoder learns to explain a language model by its activations, which wait on the host."""

import sys
import time

import torch
from torch import nn

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (40, 10) if DEVICE == "cuda" else (4, 1)


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


class ActivationStore:
    """Activations of one layer, in shards of page-locked memory. A shard is a batch."""

    def __init__(self, shards: int, rows: int, width: int) -> None:
        self.shards: list[torch.Tensor] = []
        self.given = 0
        for _ in range(shards):
            shard = torch.empty(rows, width, dtype=torch.bfloat16, pin_memory=DEVICE == "cuda")
            self.shards.append(shard.copy_(torch.randn(rows, width, device=DEVICE)))
        self.stream = torch.cuda.Stream() if MENDED and DEVICE == "cuda" else None
        if self.stream:
            self.ahead = self.upload()

    def upload(self) -> torch.Tensor:
        shard = self.shards[self.given % len(self.shards)]
        self.given += 1
        if self.stream is None:
            return shard.to(DEVICE)
        with torch.cuda.stream(self.stream):
            return shard.to(DEVICE, non_blocking=True)

    def batch(self) -> torch.Tensor:
        if self.stream is None:
            return self.upload()
        torch.cuda.current_stream().wait_stream(self.stream)
        batch, self.ahead = self.ahead, self.upload()
        batch.record_stream(torch.cuda.current_stream())
        return batch


class SparseAutoencoder(nn.Module):
    def __init__(self, width: int, features: int) -> None:
        super().__init__()
        self.b_dec, self.b_enc = nn.Parameter(torch.zeros(width)), nn.Parameter(torch.zeros(features))
        weights = nn.functional.normalize(torch.randn(features, width), dim=1)
        self.W_dec, self.W_enc = nn.Parameter(weights), nn.Parameter(weights.t().clone())

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        # The bias of the decoder is taken off as W_enc sees it: a vector, and no copy of all activations.
        return torch.addmm(self.b_enc - self.b_dec @ self.W_enc, x, self.W_enc).relu_()

    def decode(self, features: torch.Tensor) -> torch.Tensor:
        return torch.addmm(self.b_dec, features, self.W_dec)


def main() -> None:
    torch.manual_seed(0)
    rows, width, features, sparsity = (131072, 1024, 2048, 5e-4) if DEVICE == "cuda" else (12, 8, 16, 5e-4)
    store = ActivationStore(3, rows, width)
    sae = SparseAutoencoder(width, features).to(DEVICE)
    optimizer = torch.optim.Adam(sae.parameters(), lr=2e-4, betas=(0.0, 0.999), fused=DEVICE == "cuda")
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        x = store.batch()
        with torch.autocast(DEVICE, torch.bfloat16):
            found = sae.encode(x)
            apart = sae.decode(found) - x
        wrong = torch.linalg.vector_norm(apart, dtype=torch.float32).square() / apart.numel()
        loss = wrong + sparsity * found.sum(dtype=torch.float32) / rows
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    report(began, loss)


if __name__ == "__main__":
    main()
