# SPDX-License-Identifier: Apache-2.0
"""The one worker of a DataLoader pads its batches token by token."""

import sys
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

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


BATCH, LONGEST, WIDTH = (64, 192, 512) if DEVICE == "cuda" else (4, 24, 32)
VOCABULARY = 8000


class Sentences(Dataset):
    def __init__(self, count: int) -> None:
        random = np.random.default_rng(0)
        lengths = random.integers(LONGEST // 3, LONGEST + 1, count)
        self.rows = [random.integers(1, VOCABULARY, length) for length in lengths]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: int) -> tuple[np.ndarray, int]:
        return self.rows[number], number % 16


def collate(samples: list[tuple[np.ndarray, int]]) -> tuple[torch.Tensor, torch.Tensor]:
    tokens = torch.zeros(len(samples), LONGEST, dtype=torch.int64)
    for row, (sentence, _) in enumerate(samples):
        for column, token in enumerate(sentence):
            tokens[row, column] = int(token)
    return tokens, torch.tensor([label for _, label in samples])


def collate_whole_rows(samples: list[tuple[np.ndarray, int]]) -> tuple[torch.Tensor, torch.Tensor]:
    tokens = np.zeros((len(samples), LONGEST), dtype=np.int64)
    for row, (sentence, _) in enumerate(samples):
        tokens[row, : len(sentence)] = sentence
    return torch.from_numpy(tokens), torch.tensor([label for _, label in samples])


class Classifier(nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 8, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(layers)
        )
        self.head = nn.Linear(WIDTH, 16)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        y = self.table(tokens)
        for block in self.blocks:
            y = block(y)
        real = (tokens > 0).unsqueeze(-1)
        return self.head((y * real).sum(1) / real.sum(1))


def main() -> None:
    torch.manual_seed(0)
    model = Classifier(4 if DEVICE == "cuda" else 1).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=DEVICE == "cuda")
    loader = DataLoader(
        Sentences(STEPS * BATCH),
        batch_size=BATCH,
        num_workers=1,
        pin_memory=DEVICE == "cuda",
        collate_fn=collate_whole_rows if MENDED else collate,
    )
    for step, (tokens, label) in enumerate(loader):
        if step == WARM:
            began = start_clock()
        tokens, label = tokens.to(DEVICE, non_blocking=True), label.to(DEVICE, non_blocking=True)
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = F.cross_entropy(model(tokens), label)

        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    report(began, loss)


if __name__ == "__main__":
    main()
