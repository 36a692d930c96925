# SPDX-License-Identifier: Apache-2.0
"""A recurrent decoder learns to translate: it looks at the source before each word that it says."""

import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (30, 8) if DEVICE == "cuda" else (3, 1)


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


class Decoder(nn.Module):
    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.table, self.cell = nn.Embedding(words, width), nn.GRUCell(2 * width, width)
        self.join, self.head = nn.Linear(2 * width, width), nn.Linear(width, words)

    def look(self, state: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        """The parts of the source that fit to the state."""
        fit = torch.bmm(source, state.unsqueeze(2)) * state.shape[1] ** -0.5
        return torch.bmm(fit.softmax(dim=1).mT, source).squeeze(1)

    def forward(self, source: torch.Tensor, said: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        """The mean loss of the words, each of which is told the true ones before it."""
        state = source.mean(dim=1)
        seen, ready, losses = self.look(state, source), [], []
        for word, truth in zip(self.table(said).unbind(1), wanted.unbind(1), strict=True):
            state = self.cell(torch.cat((word, seen), dim=1), state)
            seen = self.look(state, source)
            out = torch.tanh(self.join(torch.cat((state, seen), dim=1)))
            if MENDED:
                ready.append(out)
            else:
                losses.append(F.cross_entropy(self.head(out), truth))
        if MENDED:
            scores = self.head(torch.stack(ready, dim=1))
            return F.cross_entropy(scores.flatten(0, 1), wanted.flatten())
        return torch.stack(losses).mean()


class Translator(nn.Module):
    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.table = nn.Embedding(words, width)
        self.encoder = nn.GRU(width, width // 2, batch_first=True, bidirectional=True)
        self.decoder = Decoder(words, width)

    def forward(self, texts: torch.Tensor, said: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        source, _state = self.encoder(self.table(texts))
        return self.decoder(source, said, wanted)


def main() -> None:
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    rows, length, words, width = (32, 40, 128_000, 1024) if DEVICE == "cuda" else (3, 4, 20, 8)
    model = Translator(words, width).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=DEVICE == "cuda")
    texts = torch.randint(0, words, (4, rows, length), device=DEVICE)
    speech = torch.randint(0, words, (4, rows, length + 1), device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        said, wanted = speech[step % 4, :, :-1], speech[step % 4, :, 1:]
        loss = model(texts[step % 4], said, wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    report(began, loss)


if __name__ == "__main__":
    main()
