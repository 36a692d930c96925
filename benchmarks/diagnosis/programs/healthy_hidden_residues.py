# SPDX-License-Identifier: Apache-2.0
"""A language model of proteins: some residues of each chain are hidden and guessed from the others."""

import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv  # nothing to mend
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (24, 6) if DEVICE == "cuda" else (3, 1)
RESIDUES = 32  # twenty, some rare ones, and signs
HIDDEN = 31


class ProteinModel(nn.Module):
    def __init__(self, length: int, width: int, heads: int, depth: int) -> None:
        super().__init__()
        self.residue, self.place = nn.Embedding(RESIDUES, width), nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, depth, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, RESIDUES))

    def forward(self, chains: torch.Tensor, asked: torch.Tensor) -> torch.Tensor:
        """What the residues may be at the places that are asked for."""
        x = self.encoder(self.residue(chains) + self.place.weight[: chains.shape[1]])
        return self.head(x.gather(1, asked[:, :, None].expand(-1, -1, x.shape[2])))


class Chains:
    """Bytes in pinned memory; the next batch is sent while the GPU works on this one."""

    def __init__(self, batches: int, rows: int, length: int) -> None:
        self.store = torch.randint(0, HIDDEN, (batches, rows, length), dtype=torch.uint8)
        if DEVICE == "cuda":
            self.store, self.side = self.store.pin_memory(), torch.cuda.Stream()
        self.next = self.send(0)

    def send(self, number: int) -> torch.Tensor:
        batch = self.store[number % len(self.store)]
        if DEVICE == "cpu":
            return batch
        with torch.cuda.stream(self.side):
            return batch.to(DEVICE, non_blocking=True)

    def take(self, number: int) -> torch.Tensor:
        now = self.next
        if DEVICE == "cuda":
            torch.cuda.current_stream().wait_stream(self.side)
            now.record_stream(torch.cuda.current_stream())
        self.next = self.send(number + 1)
        return now.long()


def hide(chains: torch.Tensor, number: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The chains without what is to be guessed, its places, and what was there: as much in each chain."""
    asked = torch.rand(chains.shape, device=chains.device).topk(number, dim=1).indices
    return chains.scatter(1, asked, HIDDEN), asked, chains.gather(1, asked)


def main() -> None:
    torch.manual_seed(0)
    rows, length, width, heads, depth = (64, 256, 1024, 16, 8) if DEVICE == "cuda" else (3, 8, 16, 2, 1)
    model = ProteinModel(length, width, heads, depth).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=DEVICE == "cuda")
    chains = Chains(4, rows, length)
    losses = torch.zeros(STEPS, device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            if DEVICE == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        visible, asked, truth = hide(chains.take(step), length * 15 // 100)
        with torch.autocast(DEVICE, torch.bfloat16):
            guess = model(visible, asked)
        loss = F.cross_entropy(guess.float().flatten(0, 1), truth.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses[step] = loss.detach()
    mean = losses[WARM:].mean().item()
    print(f"step_ms {1000 * (time.perf_counter() - began) / (STEPS - WARM):.3f} loss {mean:.6f}")


if __name__ == "__main__":
    main()
