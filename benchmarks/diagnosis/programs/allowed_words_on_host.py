# SPDX-License-Identifier: Apache-2.0
"""A server of forms to be filled in: its model may only say what the grammar of a form allows next."""

import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (100, 12) if DEVICE == "cuda" else (3, 1)


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


class Layer(nn.Module):
    def __init__(self, width: int, rows: int, places: int) -> None:
        super().__init__()
        self.heads = max(1, width // 64)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.register_buffer("past", torch.zeros(2, rows, self.heads, places, width // self.heads))

    def forward(self, x: torch.Tensor, place: int) -> torch.Tensor:
        qkv = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        self.past[:, :, :, place : place + 1] = qkv[1:]
        k, v = self.past[:, :, :, : place + 1]
        x = x + self.out(F.scaled_dot_product_attention(qkv[0], k, v).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Decoder(nn.Module):
    def __init__(self, words: int, width: int, depth: int, rows: int, places: int) -> None:
        super().__init__()
        self.table, self.places = nn.Embedding(words, width), nn.Embedding(places, width)
        self.layers = nn.ModuleList(Layer(width, rows, places) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, word: torch.Tensor, place: int) -> torch.Tensor:
        x = self.table(word)[:, None] + self.places.weight[place]
        for layer in self.layers:
            x = layer(x, place)
        return self.head(self.norm(x[:, 0])).float()


class Grammar:
    """An automaton over words: some of its states allow a single word, such as a bracket, and some most."""

    def __init__(self, states: int, words: int) -> None:
        self.states, self.words = states, words
        sizes = [1 + words * (number % 8) // 10 for number in range(states)]
        self.allowed = [torch.randperm(words)[:size].sort().values for size in sizes]
        if MENDED:
            table = torch.full((states, words), float("-inf"))
            for state, allowed in enumerate(self.allowed):
                table[state, allowed] = 0
            self.table = table.to(DEVICE)

    def mask(self, states: list[int]) -> torch.Tensor:
        """To be added to the scores: nothing for words that are allowed."""
        if MENDED:
            return self.table.index_select(0, torch.tensor(states).to(DEVICE))
        mask = torch.full((len(states), self.words), float("-inf"))
        for row, state in enumerate(states):
            mask[row, self.allowed[state]] = 0
        return mask.to(DEVICE)

    def after(self, state: int, word: int) -> int:
        return (7 * state + word) % self.states


class Server:
    def __init__(self, model: Decoder, grammar: Grammar, rows: int) -> None:
        self.model, self.grammar = model, grammar
        self.states = list(range(rows))
        self.texts: list[list[int]] = [[] for _ in range(rows)]
        self.word = torch.zeros(rows, dtype=torch.int64, device=DEVICE)

    def step(self, place: int) -> torch.Tensor:
        """One word more for each form, and how the model liked them."""
        scores = self.model(self.word, place) + self.grammar.mask(self.states)
        liked, self.word = scores.max(dim=1)
        for row, word in enumerate(self.word.tolist()):
            self.texts[row].append(word)
            self.states[row] = self.grammar.after(self.states[row], word)
        return liked


@torch.inference_mode()
def main() -> None:
    torch.manual_seed(0)
    torch.backends.cuda.enable_cudnn_sdp(False)  # it would plan anew for every length
    rows, words, states, width, depth = (64, 128256, 160, 1024, 12) if DEVICE == "cuda" else (2, 40, 6, 16, 1)
    model = Decoder(words, width, depth, rows, STEPS).to(DEVICE, torch.bfloat16).eval()
    server = Server(model, Grammar(states, words), rows)
    liked = torch.zeros(STEPS, rows, device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        liked[step] = server.step(step)
    report(began, liked.mean())


if __name__ == "__main__":
    main()
