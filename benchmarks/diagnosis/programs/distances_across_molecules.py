# SPDX-License-Identifier: Apache-2.0
"""Energies of drug-like molecules, many at a time, by a graph network over atoms that are near."""

import sys
import time

import torch
from torch import nn

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (24, 6) if DEVICE == "cuda" else (3, 1)


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


CUTOFF = 5.0


class Interaction(nn.Module):
    """Each atom hears from those near it, through a filter that depends on the distance."""

    def __init__(self, width: int, rings: int) -> None:
        super().__init__()
        self.filter = nn.Sequential(nn.Linear(rings, width), nn.SiLU(), nn.Linear(width, width))
        self.said = nn.Linear(width, width, bias=False)
        self.heard = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))

    def forward(
        self, x: torch.Tensor, edges: torch.Tensor, near: torch.Tensor, fade: torch.Tensor
    ) -> torch.Tensor:
        said = self.said(x).index_select(0, edges[1]) * self.filter(near) * fade
        heard = torch.zeros(x.shape, device=DEVICE).index_add_(0, edges[0], said.float())
        return x + self.heard(heard.to(x.dtype))


class Energy(nn.Module):
    def __init__(self, kinds: int, width: int, rings: int, depth: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype
        self.kinds = nn.Embedding(kinds, width)
        self.layers = nn.ModuleList(Interaction(width, rings) for _ in range(depth))
        self.head = nn.Sequential(nn.Linear(width, width // 2), nn.SiLU(), nn.Linear(width // 2, 1))
        self.to(DEVICE, dtype)
        self.rings = torch.linspace(0, CUTOFF, rings, device=DEVICE)

    def forward(self, kinds: torch.Tensor, places: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        """Of each atom."""
        apart = (places.index_select(0, edges[0]) - places.index_select(0, edges[1])).norm(
            dim=1, keepdim=True
        )
        near = torch.exp(-4 * (apart - self.rings).square()).to(self.dtype)
        fade = (0.5 + 0.5 * (apart * (torch.pi / CUTOFF)).cos()).to(self.dtype)
        x = self.kinds(kinds)
        for layer in self.layers:
            x = layer(x, edges, near, fade)
        return self.head(x)[:, 0].float()


class Molecules:
    """A batch of them, one atom after the other."""

    def __init__(self, count: int, atoms: int, kinds: int) -> None:
        self.count, self.atoms = count, atoms
        self.kinds = torch.randint(0, kinds, (count * atoms,), device=DEVICE)
        self.places = 2.2 * torch.randn(count * atoms, 3, device=DEVICE)
        self.molecule = torch.arange(count, device=DEVICE).repeat_interleave(atoms)

    def edges(self) -> torch.Tensor:
        """Both ends of each pair of atoms of a molecule that are near each other."""
        if MENDED:
            places = self.places.unflatten(0, (self.count, self.atoms))
            near = torch.cdist(places, places) < CUTOFF
            near.diagonal(dim1=1, dim2=2).fill_(False)
            molecule, one, other = near.nonzero().unbind(dim=1)
            return torch.stack((one, other)) + self.atoms * molecule
        near = torch.cdist(self.places, self.places) < CUTOFF
        near &= self.molecule[:, None] == self.molecule
        near.fill_diagonal_(False)
        return near.nonzero().t().contiguous()


@torch.inference_mode()
def main() -> None:
    torch.manual_seed(0)
    count, atoms, kinds, width, rings, depth = (
        (1024, 32, 10, 128, 32, 3) if DEVICE == "cuda" else (4, 6, 4, 16, 4, 2)
    )
    model = Energy(kinds, width, rings, depth, torch.bfloat16 if DEVICE == "cuda" else torch.float32).eval()
    batches = [Molecules(count, atoms, kinds) for _ in range(3)]
    energies = torch.zeros(STEPS, count, device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        batch = batches[step % 3]
        each = model(batch.kinds, batch.places, batch.edges())
        energies[step] = each.unflatten(0, (count, atoms)).sum(dim=1)
    report(began, energies.mean())


if __name__ == "__main__":
    main()
