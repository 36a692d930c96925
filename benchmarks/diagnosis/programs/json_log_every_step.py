# SPDX-License-Identifier: Apache-2.0
"""A log record with thousands of numbers is formatted, checked and hashed in every step."""

import hashlib
import json
import sys
import time
from typing import Any

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


class RunLog:
    """One line of JSON per record, each with the hash of the lines before it."""

    def __init__(self) -> None:
        self.waiting: list[dict[str, Any]] = []
        self.lines = 0
        self.digest = ""

    def add(self, record: dict[str, Any]) -> None:
        if MENDED:
            self.waiting.append(record)
        else:
            self.write(record)

    def write(self, record: dict[str, Any]) -> None:
        line = json.dumps({**record, "previous": self.digest}, sort_keys=True)
        if json.loads(line)["step"] != record["step"]:
            raise ValueError(f"record {record['step']} does not survive JSON")
        self.digest = hashlib.sha256(line.encode()).hexdigest()
        self.lines += 1

    def close(self) -> None:
        for record in self.waiting:
            self.write(record)


class Trainer:
    def __init__(self, width: int, layers: int, samples: int) -> None:
        self.model = nn.Sequential(
            *(nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU()) for _ in range(layers)),
            nn.Linear(width, 64),
        ).to(DEVICE)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=DEVICE == "cuda")
        self.weights = torch.rand(samples, dtype=torch.float64).tolist()  # of the sampler, by sample
        self.log = RunLog()

    def step(self, number: int, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = F.cross_entropy(self.model(x), target)

        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.weights[number] *= 0.5
        self.log.add({"step": number, "rate": 1e-4, "weights": list(self.weights)})
        return loss


def main() -> None:
    torch.manual_seed(0)
    rows, width = (4096, 1024) if DEVICE == "cuda" else (8, 32)
    trainer = Trainer(width, 6, 20_000 if DEVICE == "cuda" else 500)
    x = torch.randn(rows, width, device=DEVICE)
    target = torch.randint(0, 64, (rows,), device=DEVICE)
    for number in range(STEPS):
        if number == WARM:
            began = start_clock()
        loss = trainer.step(number, x, target)
    report(began, loss)
    trainer.log.close()


if __name__ == "__main__":
    main()
