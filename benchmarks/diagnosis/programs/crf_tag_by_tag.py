# SPDX-License-Identifier: Apache-2.0
"""A tagger with a conditional random field, whose forward algorithm takes one tag after the other."""

import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (14, 4) if DEVICE == "cuda" else (3, 1)


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


class Field(nn.Module):
    """A linear chain over tags: how well they follow each other, and how well each fits its word."""

    def __init__(self, tags: int) -> None:
        super().__init__()
        self.transitions = nn.Parameter(0.1 * torch.randn(tags, tags))
        self.start, self.end = nn.Parameter(torch.zeros(tags)), nn.Parameter(torch.zeros(tags))

    def after(self, so_far: torch.Tensor, fit: torch.Tensor) -> torch.Tensor:
        """Log weights of all ways that end in each tag, one word later."""
        if MENDED:
            return torch.logsumexp(so_far[:, :, None] + self.transitions, dim=1) + fit
        ends = []
        for tag in range(fit.shape[1]):
            ways = so_far + self.transitions[:, tag] + fit[:, tag].unsqueeze(1)
            ends.append(torch.logsumexp(ways, dim=1))
        return torch.stack(ends, dim=1)

    def partition(self, fits: torch.Tensor) -> torch.Tensor:
        so_far = self.start + fits[:, 0]
        for fit in fits[:, 1:].unbind(1):
            so_far = self.after(so_far, fit)
        return torch.logsumexp(so_far + self.end, dim=1)

    def score(self, fits: torch.Tensor, tags: torch.Tensor) -> torch.Tensor:
        fit = fits.gather(2, tags[:, :, None])[..., 0].sum(dim=1)
        follow = self.transitions.flatten()[tags[:, :-1] * len(self.start) + tags[:, 1:]].sum(dim=1)
        return fit + follow + self.start[tags[:, 0]] + self.end[tags[:, -1]]

    def forward(self, fits: torch.Tensor, tags: torch.Tensor) -> torch.Tensor:
        return (self.partition(fits) - self.score(fits, tags)).mean()


class Tagger(nn.Module):
    def __init__(self, words: int, tags: int, width: int) -> None:
        super().__init__()
        self.table = nn.Embedding(words, width)
        self.recurrent = nn.LSTM(width, width, num_layers=2, bidirectional=True, batch_first=True)
        self.fit = nn.Linear(2 * width, tags)
        self.field = Field(tags)

    def forward(self, words: torch.Tensor, tags: torch.Tensor) -> torch.Tensor:
        x, _ = self.recurrent(F.dropout(self.table(words), 0.1))
        return self.field(self.fit(x), tags)


def main() -> None:
    torch.manual_seed(0)
    rows, length, words, tags, width = (256, 48, 30000, 9, 512) if DEVICE == "cuda" else (2, 6, 20, 4, 8)
    torch.set_float32_matmul_precision("high")
    model = Tagger(words, tags, width).to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=DEVICE == "cuda")
    text = torch.randint(words, (STEPS, rows, length), device=DEVICE)
    for step, sentence in enumerate(text):
        if step == WARM:
            began = start_clock()
        loss = model(sentence, sentence % tags)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        optimizer.zero_grad()
    report(began, loss)


if __name__ == "__main__":
    main()
