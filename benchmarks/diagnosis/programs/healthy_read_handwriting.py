# SPDX-License-Identifier: Apache-2.0
"""Lines of handwriting are read. How many letters are wrong, the host counts while the GPU learns on."""

import sys
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

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


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = max(1, width // 64)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class LineReader(nn.Module):
    """A line is cut into narrow columns. Next to them stand the letters, which ask what they are."""

    def __init__(
        self, high: int, wide: int, piece: int, width: int, depth: int, letters: int, most: int
    ) -> None:
        super().__init__()
        self.piece, self.most, self.stem = piece, most, nn.Linear(high * piece, width)
        self.places = nn.Parameter(0.02 * torch.randn(wide // piece, width))
        self.asked = nn.Parameter(0.02 * torch.randn(most, width))
        self.blocks = nn.Sequential(*(Block(width) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, letters)

    def forward(self, lines: torch.Tensor) -> torch.Tensor:
        pieces = lines.unfold(2, self.piece, self.piece).transpose(1, 2).flatten(2)
        seen = self.stem(pieces.to(torch.bfloat16) / 255) + self.places
        x = self.blocks(torch.cat((seen, self.asked.expand(len(lines), -1, -1)), dim=1))
        return self.head(self.norm(x[:, -self.most :]))


def edit_distance(one: list[int], two: list[int]) -> int:
    row = list(range(len(two) + 1))
    for i, a in enumerate(one, 1):
        corner, row[0] = row[0], i
        for j, b in enumerate(two, 1):
            corner, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, corner + (a != b))
    return row[-1]


class LetterErrors:
    """Counts for some lines of each batch, a step late: what was read then has long been copied."""

    def __init__(self, some: int, letters: int) -> None:
        self.rooms = [torch.zeros(some, letters, dtype=torch.int64) for _ in range(2)]
        if DEVICE == "cuda":
            self.rooms = [room.pin_memory() for room in self.rooms]
        self.copied = [torch.cuda.Event() for _ in self.rooms] if DEVICE == "cuda" else []
        self.wrong = self.all = 0

    def send(self, step: int, scores: torch.Tensor) -> None:
        room = self.rooms[step % 2]
        room.copy_(scores[: len(room)].argmax(dim=-1), non_blocking=True)
        if self.copied:
            self.copied[step % 2].record()

    def count(self, step: int, texts: np.ndarray) -> None:
        if self.copied:
            self.copied[step % 2].synchronize()
        for read, text in zip(self.rooms[step % 2].tolist(), texts.tolist(), strict=False):
            self.wrong += edit_distance(read, text)
            self.all += len(text)


def main() -> None:
    torch.manual_seed(0)
    rows, high, wide, piece, width, depth, letters, most, some = (
        (192, 64, 1024, 8, 768, 12, 96, 48, 24) if DEVICE == "cuda" else (3, 4, 8, 2, 16, 1, 7, 4, 2)
    )
    model = LineReader(high, wide, piece, width, depth, letters, most).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=DEVICE == "cuda")
    lines = torch.randint(0, 256, (3, rows, high, wide), dtype=torch.uint8)
    texts = np.random.default_rng(0).integers(1, letters, (3, rows, most))
    on_gpu = torch.from_numpy(texts).to(DEVICE)
    if DEVICE == "cuda":
        lines = lines.pin_memory()
    errors = LetterErrors(some, most)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        at = step % 3
        with torch.autocast(DEVICE, torch.bfloat16):
            scores = model(lines[at].to(DEVICE, non_blocking=True))
        loss = F.cross_entropy(scores.flatten(0, 1).float(), on_gpu[at].flatten())
        errors.send(step, scores)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step:
            errors.count(step - 1, texts[(step - 1) % 3])
    report(began, loss.detach() + errors.wrong / errors.all)


if __name__ == "__main__":
    main()
