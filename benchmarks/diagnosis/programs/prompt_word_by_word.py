# SPDX-License-Identifier: Apache-2.0
"""A chat model that reads the prompt through its decoding loop, one word at a time."""

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


class Layer(nn.Module):
    """A decoder's layer, with room for the keys and values of a whole conversation."""

    def __init__(self, width: int, heads: int, rows: int, room: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.register_buffer("cache", torch.zeros(2, rows, heads, room, width // heads))

    def forward(self, x: torch.Tensor, start: int, allowed: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        end = start + x.shape[1]
        self.cache[0, :, :, start:end] = k
        self.cache[1, :, :, start:end] = v
        y = F.scaled_dot_product_attention(q, *self.cache[:, :, :, :end], attn_mask=allowed)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Chat(nn.Module):
    def __init__(self, words: int, width: int, heads: int, depth: int, rows: int, room: int) -> None:
        super().__init__()
        self.table, self.places = nn.Embedding(words, width), nn.Embedding(room, width)
        self.layers = nn.ModuleList(Layer(width, heads, rows, room) for _ in range(depth))
        self.head = nn.Linear(width, words, bias=False)
        self.register_buffer("causal", torch.ones(room, room, dtype=torch.bool).tril())

    def forward(self, tokens: torch.Tensor, start: int) -> torch.Tensor:
        """Scores of the word after the last of `tokens`, which stand at `start` and after it."""
        end = start + tokens.shape[1]
        x = self.table(tokens) + self.places.weight[start:end]
        for layer in self.layers:
            x = layer(x, start, self.causal[start:end, :end])
        return self.head(x[:, -1])

    def read(self, prompt: torch.Tensor) -> torch.Tensor:
        if MENDED:
            return self(prompt, 0)
        for place in range(prompt.shape[1]):
            scores = self(prompt[:, place : place + 1], place)
        return scores

    def answer(self, prompt: torch.Tensor, words: int) -> torch.Tensor:
        scores, said = self.read(prompt), []
        for place in range(prompt.shape[1], prompt.shape[1] + words):
            said.append(scores.argmax(dim=-1, keepdim=True))
            scores = self(said[-1], place)
        return scores


@torch.inference_mode()
def main() -> None:
    torch.manual_seed(0)
    rows, length, new, vocabulary, width, depth = (
        (8, 128, 24, 16384, 1024, 8) if DEVICE == "cuda" else (2, 6, 2, 50, 16, 2)
    )
    model = Chat(vocabulary, width, width // 16, depth, rows, length + new).to(DEVICE, torch.bfloat16)
    prompts = torch.randint(0, vocabulary, (STEPS, rows, length), device=DEVICE)
    for step, prompt in enumerate(prompts):
        if step == WARM:
            began = start_clock()
        scores = model.answer(prompt, new)
    report(began, scores.float().logsumexp(dim=-1).mean())


if __name__ == "__main__":
    main()
