# SPDX-License-Identifier: Apache-2.0
"""A server of answers joins all text so far for every token, to see whether it should stop."""

import re
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (12, 4) if DEVICE == "cuda" else (3, 1)


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


NEW = 112 if DEVICE == "cuda" else 5
"""tokens of an answer at most"""


class Answer:
    """What was said to one user, until one of the stop phrases comes."""

    def __init__(self, pieces: list[str], stop: re.Pattern[str], longest: int) -> None:
        self.pieces, self.stop, self.longest = pieces, stop, longest
        self.said: list[int] = []
        self.stopped = False

    def add(self, token: int) -> None:
        self.said.append(token)
        self.stopped = self.stopped or self.stop.search(self.text()) is not None

    def text(self) -> str:
        """What may hold a phrase that has just come."""
        recent = self.said[-self.longest :] if MENDED else self.said
        return "".join([self.pieces[token] for token in recent])


class Layer(nn.Module):
    """Gated recurrence with a perceptron; its state is all that a token needs of those before."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.into, self.out = nn.Linear(width, 2 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        value, gate = self.into(self.norm1(x)).chunk(2, dim=-1)
        state.lerp_(value, gate.sigmoid())
        x = x + self.out(state)
        return x + self.down(F.silu(self.up(self.norm2(x))))


class Model(nn.Module):
    def __init__(self, words: int, width: int, depth: int) -> None:
        super().__init__()
        self.table = nn.Embedding(words, width)
        self.layers = nn.ModuleList(Layer(width) for _ in range(depth))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, tokens: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        x = self.table(tokens)
        for layer, state in zip(self.layers, states, strict=True):
            x = layer(x, state)
        return self.head(self.norm(x))


def serve(model: Model, asked: torch.Tensor, states: torch.Tensor, answers: list[Answer]) -> torch.Tensor:
    tokens = asked
    for _ in range(NEW):
        scores = model(tokens, states)
        tokens = scores.argmax(dim=-1)
        for answer, token in zip(answers, tokens.tolist(), strict=True):
            answer.add(token)
        if all(answer.stopped for answer in answers):
            break
    return scores


@torch.inference_mode()
def main() -> None:
    torch.manual_seed(0)
    users, words, width, depth = (64, 16384, 1024, 6) if DEVICE == "cuda" else (2, 40, 16, 2)
    pieces = [f" w{number:x}" for number in range(words)]
    stop = re.compile(r"User:|###|</s>|\n\nQ:")
    model = Model(words, width, depth).to(DEVICE, torch.bfloat16)
    asked = torch.randint(0, words, (users,), device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        answers = [Answer(pieces, stop, 8) for _ in range(users)]
        states = torch.zeros(depth, users, width, device=DEVICE, dtype=torch.bfloat16)
        scores = serve(model, asked, states, answers)
    report(began, scores.float().logsumexp(dim=-1).mean())


if __name__ == "__main__":
    main()
