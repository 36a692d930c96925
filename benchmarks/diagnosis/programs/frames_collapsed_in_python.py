# SPDX-License-Identifier: Apache-2.0
"""Telephone calls are written down letter by letter: a network says for each moment which letter sounds."""

import sys
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (16, 4) if DEVICE == "cuda" else (3, 1)


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


LETTERS = "-abcdefghijklmnopqrstuvwxyz' .,?"
"""the first one means that no letter sounds"""


class Block(nn.Module):
    """Each moment looks at those around it, then by itself."""

    def __init__(self, width: int, reach: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.around = nn.Linear(reach * width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.reach = reach

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        groups = self.norm(x).unflatten(1, (-1, self.reach)).flatten(2)
        x = x + self.around(groups).repeat_interleave(self.reach, dim=1)
        return x + self.down(F.gelu(self.up(x)))


class Listener(nn.Module):
    def __init__(self, pitches: int, width: int, depth: int, reach: int) -> None:
        super().__init__()
        self.into = nn.Linear(pitches, width)
        self.blocks = nn.Sequential(*(Block(width, reach) for _ in range(depth)))
        self.head = nn.Linear(width, len(LETTERS))

    def forward(self, sound: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.into(sound)))


class Text:
    def __init__(self, letters: str, sure: float) -> None:
        self.letters, self.sure = letters, sure


class Decoder:
    """A letter that sounds on is one letter, and moments without one are left out."""

    def __init__(self) -> None:
        self.codes = np.frombuffer(LETTERS.encode(), np.uint8)

    def collapse(self, letters: list[int], sure: list[float]) -> Text:
        last, said, total = 0, [], 0.0
        for letter, likely in zip(letters, sure, strict=True):
            if letter != last and letter != 0:
                said.append(LETTERS[letter])
                total += likely
            last = letter
        return Text("".join(said), total)

    def texts(self, scores: torch.Tensor) -> list[Text]:
        likely, best = scores.float().softmax(dim=-1).max(dim=-1)
        if not MENDED:
            return [self.collapse(*row) for row in zip(best.tolist(), likely.tolist(), strict=True)]
        new = (best != F.pad(best[:, :-1], (1, 0))) & (best != 0)
        sums = (likely * new).sum(dim=1).tolist()
        letters = (best * new).to(torch.uint8).cpu().numpy()
        rows = (self.codes[row[row != 0]].tobytes().decode() for row in letters)
        return [Text(*row) for row in zip(rows, sums, strict=True)]


class Archive:
    def __init__(self) -> None:
        self.texts: list[Text] = []

    def add(self, texts: list[Text]) -> None:
        self.texts += texts

    def mean(self) -> torch.Tensor:
        """How sure the letters are, and how many words there are."""
        letters = sum(len(text.letters) for text in self.texts)
        words = sum(text.letters.count(" ") for text in self.texts)
        return torch.tensor((sum(text.sure for text in self.texts) + words) / max(1, letters))


@torch.inference_mode()
def main() -> None:
    torch.manual_seed(0)
    calls, moments, pitches, width, depth, reach = (
        (256, 1600, 64, 256, 3, 4) if DEVICE == "cuda" else (3, 16, 8, 16, 1, 4)
    )
    listener = Listener(pitches, width, depth, reach).to(DEVICE, torch.bfloat16).eval()
    decoder, archive = Decoder(), Archive()
    sound = torch.randn(2, calls, moments, pitches, dtype=torch.bfloat16)
    if DEVICE == "cuda":
        sound = sound.pin_memory()
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        archive.add(decoder.texts(listener(sound[step % 2].to(DEVICE, non_blocking=True))))
    report(began, archive.mean())


if __name__ == "__main__":
    main()
