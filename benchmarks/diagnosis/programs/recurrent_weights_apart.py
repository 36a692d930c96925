# SPDX-License-Identifier: Apache-2.0
"""Captions are spoken along with a recurrent network, whose averaged weights were put in one by one."""

import sys
import time

import torch
from torch import nn

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


class Speaker(nn.Module):
    """The next word, from the last one and the state of the layers."""

    def __init__(self, words: int, width: int, layers: int) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(words, width), nn.Linear(width, words)
        self.recurrent = nn.LSTM(width, width, layers, batch_first=True)

    def forward(
        self, words: torch.Tensor, state: tuple[torch.Tensor, torch.Tensor]
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        y, state = self.recurrent(self.table(words)[:, None], state)
        return self.head(y[:, 0]), state


class Average:
    """A moving average of weights, with which a model is tried and served."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.values = {name: p.detach().clone() for name, p in model.named_parameters()}

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        for name, p in model.named_parameters():
            self.values[name].lerp_(p, 1 - self.decay)

    @torch.no_grad()
    def put_into(self, model: nn.Module) -> None:
        for name, p in model.named_parameters():
            if MENDED:
                p.copy_(self.values[name])
            else:
                p.data = self.values[name].clone()


@torch.inference_mode()
def spoken(model: Speaker, states: tuple[torch.Tensor, torch.Tensor], count: int) -> torch.Tensor:
    """Greedy words for one picture a row. Returns how sure the model was of each."""
    words = torch.zeros(states[0].shape[1], dtype=torch.long, device=DEVICE)
    sure = []
    for _ in range(count):
        logits, states = model(words, states)
        best, words = logits.max(dim=-1)
        sure.append(best - logits.logsumexp(dim=-1))
    return torch.stack(sure, dim=1)


def main() -> None:
    torch.manual_seed(0)
    rows, words, width, layers, count = (64, 20_000, 2048, 4, 32) if DEVICE == "cuda" else (2, 20, 8, 2, 3)
    torch.backends.cuda.matmul.allow_tf32 = True
    model = Speaker(words, width, layers).to(DEVICE).eval()
    average = Average(model, 0.999)
    average.update(model)
    average.put_into(model)
    pictures = torch.randn(2, layers, rows, width, device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        sure = spoken(model, (pictures[0], pictures[1]), count)
    report(began, -sure.mean())


if __name__ == "__main__":
    main()
