# SPDX-License-Identifier: Apache-2.0
"""A data set that decompresses a whole file of it for each row that is read."""

import sys
import tempfile
import time
from pathlib import Path

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


BATCH, LENGTH, ROWS, SHARDS = (32, 512, 512, 4) if DEVICE == "cuda" else (4, 16, 8, 2)
WORDS = 4096


def write(folder: Path) -> list[Path]:
    """Compressed files with rows of tokens."""
    random = np.random.default_rng(0)
    paths = [folder / f"shard{number}.npz" for number in range(SHARDS)]
    for path in paths:
        np.savez_compressed(path, tokens=random.integers(0, WORDS, (ROWS, LENGTH + 1), dtype=np.int32))
    return paths


class Sharded(Dataset):
    def __init__(self, paths: list[Path]) -> None:
        self.paths = paths
        self.opened: dict[Path, np.ndarray] = {}

    def __len__(self) -> int:
        return ROWS * len(self.paths)

    def tokens(self, path: Path) -> np.ndarray:
        if not MENDED:
            return np.load(path)["tokens"]
        if path not in self.opened:
            self.opened[path] = np.load(path)["tokens"]
        return self.opened[path]

    def __getitem__(self, number: int) -> torch.Tensor:
        shard, row = divmod(number, ROWS)
        return torch.from_numpy(self.tokens(self.paths[shard])[row].astype(np.int64))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Language(nn.Module):
    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, width)
        self.blocks = nn.Sequential(*(Block(width, width // 16) for _ in range(depth)))
        self.head = nn.Linear(width, WORDS, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.table(tokens)))


def main() -> None:
    torch.manual_seed(0)
    model = Language(*((512, 6) if DEVICE == "cuda" else (32, 1))).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=DEVICE == "cuda")
    with tempfile.TemporaryDirectory() as folder:
        data = Sharded(write(Path(folder)))
        order = torch.randperm(len(data))[: STEPS * BATCH].tolist()
        loader = DataLoader(data, BATCH, sampler=order, num_workers=2, pin_memory=DEVICE == "cuda")
        for step, tokens in enumerate(loader):
            if step == WARM:
                began = start_clock()
            tokens = tokens.to(DEVICE, non_blocking=True)
            with torch.autocast(DEVICE, torch.bfloat16):
                logits = model(tokens[:, :-1])
            loss = F.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        report(began, loss)


if __name__ == "__main__":
    main()
