# SPDX-License-Identifier: Apache-2.0
"""Beam search whose hypotheses are Python objects, extended, sorted and cut on the host for every token."""

import sys
import time
from dataclasses import dataclass

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


CONTEXT, BEAMS = 8, 8


class NextWord(nn.Module):
    """Scores the next word from the words before it."""

    def __init__(self, words: int, width: int, layers: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width // CONTEXT)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.head = nn.Linear(width, words)

    def forward(self, context: torch.Tensor) -> torch.Tensor:
        x = self.words(context).flatten(-2)
        for layer in self.layers:
            x = x + F.gelu(layer(x))
        return F.log_softmax(self.head(x).float(), dim=-1)


@dataclass
class Hypothesis:
    words: list[int]
    score: float


class PythonSearch:
    def __init__(self, starts: torch.Tensor) -> None:
        self.kept = [[Hypothesis(start, 0.0)] * BEAMS for start in starts.tolist()]

    def context(self) -> torch.Tensor:
        newest = [[hypothesis.words[-CONTEXT:] for hypothesis in hypotheses] for hypotheses in self.kept]
        return torch.tensor(newest, device=DEVICE)

    def advance(self, scores: torch.Tensor, words: torch.Tensor) -> None:
        choices = torch.stack((scores.double(), words.double()), dim=-1).tolist()
        for sentence, hypotheses in enumerate(self.kept):
            longer = []
            for hypothesis, pairs in zip(hypotheses, choices[sentence], strict=True):
                for score, word in pairs:
                    longer.append(Hypothesis([*hypothesis.words, int(word)], hypothesis.score + score))
            longer.sort(key=lambda hypothesis: hypothesis.score, reverse=True)
            self.kept[sentence] = longer[:BEAMS]

    def best(self) -> torch.Tensor:
        return torch.tensor([hypotheses[0].score for hypotheses in self.kept]).mean()


class TensorSearch:
    def __init__(self, starts: torch.Tensor) -> None:
        self.words = starts.to(DEVICE)[:, None].expand(-1, BEAMS, -1)
        self.scores = torch.zeros(len(starts), BEAMS, device=DEVICE)

    def context(self) -> torch.Tensor:
        return self.words[..., -CONTEXT:]

    def advance(self, scores: torch.Tensor, words: torch.Tensor) -> None:
        self.scores, picked = (self.scores[..., None] + scores).flatten(1).topk(BEAMS)
        parents = (picked // words.shape[-1])[..., None].expand_as(self.words)
        newest = words.flatten(1).gather(1, picked)[..., None]
        self.words = torch.cat((self.words.gather(1, parents), newest), dim=-1)

    def best(self) -> torch.Tensor:
        return self.scores[:, 0].mean()


def main() -> None:
    torch.manual_seed(0)
    words, width, layers, sentences = (8192, 2048, 8, 64) if DEVICE == "cuda" else (64, 32, 2, 2)
    model = NextWord(words, width, layers).to(DEVICE)
    starts = torch.randint(0, words, (sentences, CONTEXT))
    search = TensorSearch(starts) if MENDED else PythonSearch(starts)
    with torch.inference_mode(), torch.autocast(DEVICE, torch.bfloat16):
        for step in range(STEPS):
            if step == WARM:
                began = start_clock()
            search.advance(*model(search.context()).topk(2 * BEAMS))
    report(began, search.best())


if __name__ == "__main__":
    main()
