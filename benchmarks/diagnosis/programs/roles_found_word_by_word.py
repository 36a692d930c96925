# SPDX-License-Identifier: Apache-2.0
"""Conversations are chosen to learn from: a small model tells how likely it finds what the assistant says."""

import sys
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (40, 8) if DEVICE == "cuda" else (3, 1)


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


ROLES = {"system": [1, 7, 13], "user": [1, 8, 13], "assistant": [1, 9, 13]}
"""how a turn begins; what follows is text"""


def conversations(words: int, texts: int, turns: int, longest: int) -> list[np.ndarray]:
    """Words of whole conversations, shortest first, so that those of a batch are about as long."""
    random, result = np.random.default_rng(0), []
    for _ in range(texts):
        parts = [ROLES["system"]]
        for turn in range(turns):
            parts.append(random.integers(14, words, random.integers(longest // 2, longest)))
            parts.append(ROLES["assistant" if turn % 2 else "user"])
        result.append(np.concatenate([*parts, random.integers(14, words, longest)]))
    return sorted(result, key=len)


class AssistantOnly:
    """Joins conversations; only what the assistant says has a label."""

    def __init__(self) -> None:
        self.templates = ROLES

    def begins(self, words: list[int], at: int, template: list[int]) -> bool:
        return words[at : at + len(template)] == template

    def role_at(self, words: list[int], at: int) -> str | None:
        for role, template in self.templates.items():
            if self.begins(words, at, template):
                return role
        return None

    def spoken(self, text: np.ndarray) -> np.ndarray:
        """Where the assistant speaks."""
        if MENDED:
            starts = np.full(len(text), -1)
            for number, template in enumerate(self.templates.values()):
                windows = np.lib.stride_tricks.sliding_window_view(text, len(template))
                starts[: len(windows)][(windows == template).all(axis=1)] = number
            last = np.maximum.accumulate(np.where(starts >= 0, np.arange(len(text)), 0))
            return starts[last] == list(self.templates).index("assistant")
        words, speaks, result = text.tolist(), False, []
        for at in range(len(words)):
            role = self.role_at(words, at)
            if role is not None:
                speaks = role == "assistant"
            result.append(speaks)
        return np.array(result)

    def __call__(self, texts: list[np.ndarray]) -> tuple[torch.Tensor, torch.Tensor]:
        longest = max(len(text) for text in texts)
        words = np.zeros((len(texts), longest), np.int64)
        labels = np.full((len(texts), longest), -100)
        for row, text in enumerate(texts):
            words[row, : len(text)] = text
            labels[row, : len(text)] = np.where(self.spoken(text), text, -100)
        return torch.from_numpy(words), torch.from_numpy(labels)


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


class SmallModel(nn.Module):
    def __init__(self, words: int, longest: int, width: int, depth: int) -> None:
        super().__init__()
        self.table, self.places = nn.Embedding(words, width), nn.Embedding(longest, width)
        self.blocks = nn.Sequential(*(Block(width, max(1, width // 64)) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, words: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """How little each conversation was expected."""
        x = self.norm(self.blocks(self.table(words) + self.places.weight[: words.shape[1]]))
        each = F.cross_entropy(self.head(x[:, :-1]).flatten(0, 1), labels[:, 1:].flatten(), reduction="none")
        return each.view(len(words), -1).sum(dim=1) / (labels[:, 1:] != -100).sum(dim=1)


@torch.inference_mode()
def main() -> None:
    torch.manual_seed(0)
    words, rows, turns, longest, width, depth = (
        (8192, 40, 9, 96, 512, 4) if DEVICE == "cuda" else (40, 2, 3, 6, 16, 1)
    )
    model = SmallModel(words, (turns + 1) * (longest + 3), width, depth).to(DEVICE, torch.bfloat16).eval()
    data = conversations(words, STEPS * rows, turns, longest)
    loader = torch.utils.data.DataLoader(data, rows, collate_fn=AssistantOnly(), pin_memory=DEVICE == "cuda")
    found = torch.zeros(STEPS, rows, device=DEVICE)
    for step, batch in enumerate(loader):
        if step == WARM:
            began = start_clock()
        found[step] = model(*(part.to(DEVICE, non_blocking=True) for part in batch))
    report(began, found.mean())


if __name__ == "__main__":
    main()
