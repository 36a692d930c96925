# SPDX-License-Identifier: Apache-2.0
"""Stories are told by a decoder that makes words less likely which it has said before."""

import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (32, 8) if DEVICE == "cuda" else (3, 1)


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


class Layer(nn.Module):
    """A decoder's layer, with room for keys and values of a whole story."""

    def __init__(self, width: int, heads: int, rows: int, room: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.register_buffer("keys", torch.zeros(rows, heads, room, width // heads))
        self.register_buffer("values", torch.zeros(rows, heads, room, width // heads))

    def forward(self, x: torch.Tensor, start: int) -> torch.Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        end = start + x.shape[1]
        self.keys[:, :, start:end], self.values[:, :, start:end] = k, v
        # The prompt is read at once and before anything else, so that each word sees those before it.
        y = F.scaled_dot_product_attention(
            q, self.keys[:, :, :end], self.values[:, :, :end], is_causal=start == 0
        )
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Teller(nn.Module):
    def __init__(self, words: int, width: int, depth: int, rows: int, room: int) -> None:
        super().__init__()
        self.table, self.places = nn.Embedding(words, width), nn.Embedding(room, width)
        self.layers = nn.ModuleList(Layer(width, max(1, width // 64), rows, room) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, tokens: torch.Tensor, start: int) -> torch.Tensor:
        x = self.table(tokens) + self.places.weight[start : start + tokens.shape[1]]
        for layer in self.layers:
            x = layer(x, start)
        return self.head(self.norm(x[:, -1])).float()


class RepetitionPenalty:
    def __init__(self, penalty: float) -> None:
        self.penalty = penalty

    def __call__(self, said: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if MENDED:
            old = scores.gather(1, said)
            return scores.scatter(1, said, torch.where(old < 0, old * self.penalty, old / self.penalty))
        for row in range(len(scores)):
            for token in set(said[row].tolist()):
                if scores[row, token] < 0:
                    scores[row, token] *= self.penalty
                else:
                    scores[row, token] /= self.penalty
        return scores


class Temperature:
    def __init__(self, temperature: float) -> None:
        self.temperature = temperature

    def __call__(self, said: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores / self.temperature


@torch.inference_mode()
def main() -> None:
    torch.manual_seed(0)
    rows, length, vocabulary, width, depth = (
        (8, 24, 32000, 1024, 12) if DEVICE == "cuda" else (2, 4, 50, 16, 2)
    )
    model = Teller(vocabulary, width, depth, rows, length + STEPS).to(DEVICE, torch.bfloat16).eval()
    processors = [RepetitionPenalty(1.3), Temperature(0.8)]
    said = torch.zeros(rows, length + STEPS, dtype=torch.int64, device=DEVICE)
    said[:, :length] = torch.randint(0, vocabulary, (rows, length), device=DEVICE)
    scores = model(said[:, :length], 0)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        end = length + step
        for process in processors:
            scores = process(said[:, :end], scores)
        said[:, end] = scores.argmax(dim=-1)
        scores = model(said[:, end : end + 1], end)
    report(began, scores.logsumexp(dim=-1).mean())


if __name__ == "__main__":
    main()
