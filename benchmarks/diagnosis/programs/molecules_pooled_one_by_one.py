# SPDX-License-Identifier: Apache-2.0
"""The solubility of molecules is learned: bonds carry messages, then some atoms speak for all."""

import sys
import time
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (24, 6) if DEVICE == "cuda" else (3, 1)


@dataclass(frozen=True)
class MoleculeBatch:
    element: Tensor  # of each atom
    bonds: Tensor  # from which atom to which
    molecule: Tensor  # to which each atom belongs
    atoms: list[int]  # in each molecule
    solubility: Tensor

    @classmethod
    def random(cls, molecules: int, elements: int) -> "MoleculeBatch":
        atoms = torch.randint(8, 40, (molecules,))
        molecule = torch.arange(molecules).repeat_interleave(atoms)
        first = (atoms.cumsum(0) - atoms)[molecule]
        here = torch.arange(len(molecule)).repeat(2)
        there = first.repeat(2) + (torch.rand(2 * len(molecule)) * atoms[molecule].repeat(2)).long()
        bonds = torch.stack((torch.cat((here, there)), torch.cat((there, here))))
        element, solubility = torch.randint(0, elements, (len(molecule),)), torch.randn(molecules)
        on_device = (part.to(DEVICE) for part in (element, bonds, molecule))
        return cls(*on_device, atoms.tolist(), solubility.to(DEVICE))


class Messages(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.ReLU(), nn.Linear(2 * dim, dim))
        self.norm = nn.LayerNorm(dim)

    def forward(self, x: Tensor, bonds: Tensor) -> Tensor:
        heard = x.index_add(0, bonds[1], x.index_select(0, bonds[0]))
        return x + F.relu(self.norm(self.mlp(heard)))


class AttentivePool(nn.Module):
    """The mean of a molecule's atoms, each of which has a weight that is learned."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.score = nn.Linear(dim, 1)

    def forward(self, x: Tensor, batch: MoleculeBatch) -> Tensor:
        score = self.score(x)
        if MENDED:
            return self.all_at_once(x, score, batch.molecule, len(batch.atoms))
        pooled = []
        for part, part_score in zip(x.split(batch.atoms), score.split(batch.atoms), strict=True):
            weight = torch.softmax(part_score, dim=0)
            pooled.append((weight * part).sum(dim=0))
        return torch.stack(pooled)

    @staticmethod
    def all_at_once(x: Tensor, score: Tensor, molecule: Tensor, molecules: int) -> Tensor:
        highest = torch.full((molecules,), -torch.inf, device=x.device)
        highest.scatter_reduce_(0, molecule, score.detach()[:, 0], "amax")
        weight = (score - highest.index_select(0, molecule)[:, None]).exp()
        total = x.new_zeros(molecules, 1).index_add(0, molecule, weight)
        return x.new_zeros(molecules, x.shape[1]).index_add(0, molecule, weight * x) / total


class SolubilityNet(nn.Module):
    def __init__(self, elements: int, dim: int, rounds: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(elements, dim)
        self.rounds = nn.ModuleList(Messages(dim) for _ in range(rounds))
        self.pool = AttentivePool(dim)
        self.readout = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, 1))

    def forward(self, batch: MoleculeBatch) -> Tensor:
        x = self.embed(batch.element)
        for messages in self.rounds:
            x = messages(x, batch.bonds)
        return self.readout(self.pool(x, batch))[:, 0]


def main() -> None:
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    molecules, elements, dim, rounds = (768, 32, 128, 4) if DEVICE == "cuda" else (6, 4, 8, 1)
    batches = [MoleculeBatch.random(molecules, elements) for _ in range(4)]
    net = SolubilityNet(elements, dim, rounds).to(DEVICE)
    adam = torch.optim.Adam(net.parameters(), lr=5e-4, fused=DEVICE == "cuda")
    for step in range(STEPS):
        if step == WARM:
            if DEVICE == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        batch = batches[step % len(batches)]
        loss = F.smooth_l1_loss(net(batch), batch.solubility)
        adam.zero_grad()
        loss.backward()
        adam.step()
    final = loss.item()
    print(f"step_ms {1000 * (time.perf_counter() - began) / (STEPS - WARM):.3f} loss {final:.6f}")


if __name__ == "__main__":
    main()
