# SPDX-License-Identifier: Apache-2.0
"""Training with an evaluation every five steps, whose counts stay on the GPU until the end."""

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


ROWS, LENGTH, WIDTH, HEAD, LAYERS = (32, 256, 768, 64, 6) if DEVICE == "cuda" else (2, 8, 32, 16, 1)
VOCABULARY = 8192 if DEVICE == "cuda" else 64


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.before(x)).unflatten(-1, (3, WIDTH // HEAD, HEAD)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.between(x))))


class Evaluation:
    """Accuracy over a few batches, added up on the GPU."""

    def __init__(self, batches: torch.Tensor) -> None:
        self.batches = batches
        self.right = torch.zeros((), dtype=torch.int64, device=DEVICE)
        self.seen = 0

    @torch.inference_mode()
    def run(self, model: nn.Module) -> None:
        model.eval()
        for tokens in self.batches:
            with torch.autocast(DEVICE, torch.bfloat16):
                best = model(tokens[:, :-1]).argmax(-1)
            self.right += (best == tokens[:, 1:]).sum()
            self.seen += best.numel()
        model.train()


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Embedding(VOCABULARY, WIDTH), *(Block() for _ in range(LAYERS)), nn.Linear(WIDTH, VOCABULARY)
    ).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=DEVICE == "cuda")
    batches = torch.randint(0, VOCABULARY, (4, ROWS, LENGTH + 1), device=DEVICE)
    evaluation = Evaluation(batches[2:])
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        tokens = batches[step % 2]
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())

        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

        if step % 5 == 4:
            evaluation.run(model)
    report(began, loss)
    print(f"accuracy {evaluation.right.item() / max(evaluation.seen, 1):.5f}")


if __name__ == "__main__":
    main()
