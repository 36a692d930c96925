# SPDX-License-Identifier: Apache-2.0
"""A language model with LSTM layers as cuDNN runs them, over whole sequences."""

import sys
import time

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


class LanguageModel(nn.Module):
    def __init__(self, words: int, width: int, layers: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.memory = nn.LSTM(width, width, layers)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words)

    def forward(
        self, tokens: torch.Tensor, before: tuple[torch.Tensor, torch.Tensor]
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        hidden, after = self.memory(self.words(tokens), before)
        return self.head(self.norm(hidden)), after


class Truncated:
    """Backpropagation through a piece of the text; what the LSTM remembers goes on to the next piece."""

    def __init__(self, model: LanguageModel, rows: int) -> None:
        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=DEVICE == "cuda")
        shape = (model.memory.num_layers, rows, model.memory.hidden_size)
        self.before = torch.zeros(2, *shape, device=DEVICE).unbind()

    def piece(self, tokens: torch.Tensor) -> torch.Tensor:
        with torch.autocast(DEVICE, torch.bfloat16, enabled=DEVICE == "cuda"):
            logits, after = self.model(tokens[:-1], self.before)
        self.before = tuple(state.detach() for state in after)
        loss = F.cross_entropy(logits.float().flatten(0, 1), tokens[1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0, foreach=DEVICE == "cuda")
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss


def main() -> None:
    torch.manual_seed(0)
    words, width, layers, rows, length = (8192, 1024, 2, 256, 96) if DEVICE == "cuda" else (50, 16, 2, 4, 6)
    training = Truncated(LanguageModel(words, width, layers).to(DEVICE), rows)
    text = torch.randint(0, words, (STEPS, length + 1, rows), device=DEVICE)
    for step, tokens in enumerate(text):
        if step == WARM:
            began = start_clock()
        loss = training.piece(tokens)
    report(began, loss)


if __name__ == "__main__":
    main()
