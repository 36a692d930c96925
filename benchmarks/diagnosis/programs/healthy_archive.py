# SPDX-License-Identifier: Apache-2.0
"""An archive of texts is sorted by subject: longest first, as many of a length as fill a batch."""

import sys
import time
from collections.abc import Iterator

import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (30, 6) if DEVICE == "cuda" else (3, 1)


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Subjects(nn.Module):
    def __init__(self, words: int, longest: int, width: int, depth: int, subjects: int) -> None:
        super().__init__()
        self.table = nn.Embedding(words, width)
        self.places = nn.Parameter(0.02 * torch.randn(longest, width))
        self.blocks = nn.Sequential(*(Block(width, max(1, width // 64)) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, subjects)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.blocks(self.table(tokens) + self.places[: tokens.shape[1]])
        return self.head(self.norm(x.mean(dim=1)))


class Archive:
    """Texts as numbers of words. Those of one length lie together, so that none has to be filled up."""

    def __init__(self, lengths: tuple[int, ...], tokens: int, words: int, batches: int) -> None:
        self.piles = []
        for length in lengths:
            texts = torch.randint(0, words, (batches, tokens // length, length), dtype=torch.int32)
            self.piles.append(texts.pin_memory() if DEVICE == "cuda" else texts)

    def __iter__(self) -> Iterator[torch.Tensor]:
        for pile in self.piles:
            yield from pile

    def __len__(self) -> int:
        return sum(pile.shape[0] * pile.shape[1] for pile in self.piles)


class Results:
    """Subjects of all texts. They stay on the GPU until the last one is there, and come in one copy."""

    def __init__(self, texts: int) -> None:
        self.subject = torch.zeros(texts, dtype=torch.int16, device=DEVICE)
        self.sure = torch.zeros(texts, device=DEVICE)
        self.done = 0

    def add(self, scores: torch.Tensor) -> None:
        sure, subject = scores.float().softmax(dim=-1).max(dim=-1)
        place = slice(self.done, self.done + len(scores))
        self.subject[place], self.sure[place] = subject, sure
        self.done = place.stop


@torch.inference_mode()
def main() -> None:
    torch.manual_seed(0)
    lengths, tokens, vocabulary, width, depth, subjects = (
        ((512, 384, 256, 192, 128), 24576, 32000, 1024, 12, 90)
        if DEVICE == "cuda"
        else ((3, 2, 1), 6, 30, 16, 1, 4)
    )
    model = Subjects(vocabulary, lengths[0], width, depth, subjects).to(DEVICE, torch.bfloat16).eval()
    archive = Archive(lengths, tokens, vocabulary, STEPS // len(lengths))
    results = Results(len(archive))
    for step, texts in enumerate(archive):
        if step == WARM:
            began = start_clock()
        results.add(model(texts.to(DEVICE, non_blocking=True)))
    report(began, results.sure.mean())
    assert results.done == len(archive) and int(results.subject.cpu().max()) < subjects


if __name__ == "__main__":
    main()
