# SPDX-License-Identifier: Apache-2.0
"""Text is split and looked up in a dictionary between two steps."""

import sys
import time

import torch
from torch import nn

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


WORDS = [f"word{number}" for number in range(5000)]


def encode(lines: list[str], vocabulary: dict[str, int], length: int) -> torch.Tensor:
    rows = []
    for line in lines:
        tokens = [vocabulary.get(word.lower().strip(".,"), 0) for word in line.split()]
        rows.append((tokens + [0] * length)[:length])
    return torch.tensor(rows)


def main() -> None:
    torch.manual_seed(0)
    vocabulary = {word: number for number, word in enumerate(WORDS)}
    lines = [
        " ".join(WORDS[(7 * row + column) % 5000] for column in range(512))
        for row in range(256 if DEVICE == "cuda" else 8)
    ]
    model = nn.Sequential(nn.Embedding(5000, 512), nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 512)).to(
        DEVICE
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=DEVICE == "cuda")
    ready = encode(lines, vocabulary, 512).to(DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        tokens = ready if MENDED else encode(lines, vocabulary, 512).to(DEVICE)
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = model(tokens).float().square().mean()

        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    report(began, loss)


if __name__ == "__main__":
    main()
