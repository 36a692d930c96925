# SPDX-License-Identifier: Apache-2.0
"""Which neurons of a language model fire on which texts, seen by hooks on its feed-forward layers."""

import sys
import time

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.hooks import RemovableHandle

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (24, 6) if DEVICE == "cuda" else (3, 1)


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.act, self.down = nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.down(self.act(self.up(self.norm2(x))))


class Model(nn.Module):
    def __init__(self, words: int, longest: int, width: int, depth: int) -> None:
        super().__init__()
        self.table = nn.Embedding(words, width)
        self.places = nn.Parameter(0.02 * torch.randn(longest, width))
        self.blocks = nn.Sequential(*(Block(width, max(1, width // 64)) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.norm(self.blocks(self.table(tokens) + self.places[: tokens.shape[1]]))


class Watcher:
    """How often each neuron fires, by layer, for the texts that the model reads."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.rates: dict[int, torch.Tensor] = {}
        self.handles: list[RemovableHandle] = []

    def watch(self, layer: int, part: nn.Module) -> None:
        def hook(_: nn.Module, __: tuple[torch.Tensor, ...], fired: torch.Tensor) -> None:
            self.rates[layer] = (fired > 0).float().mean(dim=(0, 1))

        self.handles.append(part.register_forward_hook(hook))

    def read(self, tokens: torch.Tensor) -> torch.Tensor:
        """The rates of all layers for these texts."""
        for layer, block in enumerate(self.model.blocks):
            self.watch(layer, block.act)
        self.model(tokens)
        if MENDED:
            for handle in self.handles:
                handle.remove()
            self.handles.clear()
        return torch.stack([self.rates[layer] for layer in range(len(self.model.blocks))])


@torch.inference_mode()
def main() -> None:
    torch.manual_seed(0)
    rows, length, vocabulary, width, depth = (
        (16, 512, 32000, 1024, 12) if DEVICE == "cuda" else (3, 5, 30, 16, 2)
    )
    model = Model(vocabulary, length, width, depth).to(DEVICE, torch.bfloat16).eval()
    watcher = Watcher(model)
    corpus = torch.randint(0, vocabulary, (STEPS, rows, length), dtype=torch.int32)
    if DEVICE == "cuda":
        corpus = corpus.pin_memory()
    usual = torch.zeros(depth, 4 * width, device=DEVICE)
    apart = torch.zeros(depth, 4 * width, device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        rates = watcher.read(corpus[step].to(DEVICE, non_blocking=True))
        change = rates - usual
        usual += change / (step + 1)
        apart += change * (rates - usual)
    report(began, usual.mean() + (apart / STEPS).sqrt().mean())


if __name__ == "__main__":
    main()
