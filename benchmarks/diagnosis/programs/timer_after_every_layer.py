# SPDX-License-Identifier: Apache-2.0
"""Hooks that time each layer of a scoring model with events and wait for them."""

import sys
import time
from collections import defaultdict
from functools import partial

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


class LayerTimer:
    """Milliseconds of each layer, measured with a pair of events in its hooks."""

    def __init__(self, model: nn.Module) -> None:
        self.took_ms: dict[str, float] = defaultdict(float)
        self.began, self.ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        for name, layer in model.named_modules():
            if not list(layer.children()):
                layer.register_forward_pre_hook(self.before)
                layer.register_forward_hook(partial(self.after, name))

    def before(self, layer: nn.Module, inputs: tuple) -> None:
        self.began.record()

    def after(self, name: str, layer: nn.Module, inputs: tuple, output: torch.Tensor) -> None:
        self.ended.record()
        self.ended.synchronize()
        self.took_ms[name] += self.began.elapsed_time(self.ended)


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.activation = nn.GELU()
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.activation(self.up(self.norm(x))))


class Scorer:
    def __init__(self, width: int, blocks: int) -> None:
        dtype = torch.bfloat16 if DEVICE == "cuda" else torch.float32
        layers = [*(Block(width) for _ in range(blocks)), nn.Linear(width, 16)]
        self.model = nn.Sequential(*layers).to(DEVICE, dtype).eval()
        if not MENDED and DEVICE == "cuda":
            self.timer = LayerTimer(self.model)

    @torch.inference_mode()
    def score(self, candidates: torch.Tensor) -> torch.Tensor:
        return self.model(candidates).float().logsumexp(dim=-1)


def main() -> None:
    torch.manual_seed(0)
    width, blocks, rows = (1024, 32, 2048) if DEVICE == "cuda" else (32, 4, 8)
    scorer = Scorer(width, blocks)
    candidates = torch.randn(rows, width, device=DEVICE)
    candidates = candidates.to(torch.bfloat16 if DEVICE == "cuda" else torch.float32)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        loss = scorer.score(candidates).mean()
    report(began, loss)


if __name__ == "__main__":
    main()
