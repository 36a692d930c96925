# SPDX-License-Identifier: Apache-2.0
"""Fine-tunes a deep encoder to tell what letters to a bank are about; a callback watches the gradients."""

import sys
import time
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (26, 6) if DEVICE == "cuda" else (3, 1)


class EncoderLayer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.output, self.norm1 = nn.Linear(width, width), nn.LayerNorm(width)
        self.up, self.down, self.norm2 = (
            nn.Linear(width, 4 * width),
            nn.Linear(4 * width, width),
            nn.LayerNorm(width),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            part(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        x = self.norm1(x + self.output(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)))
        return self.norm2(x + self.down(F.gelu(self.up(x))))


class LetterClassifier(nn.Module):
    def __init__(self, words: int, length: int, width: int, depth: int, subjects: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Parameter(0.02 * torch.randn(length, width))
        self.norm = nn.LayerNorm(width)
        self.layers = nn.Sequential(*(EncoderLayer(width, max(1, width // 64)) for _ in range(depth)))
        self.pooler, self.head = nn.Linear(width, width), nn.Linear(width, subjects)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.layers(self.norm(self.words(words) + self.places))
        return self.head(self.pooler(x[:, 0]).tanh())


class Logger:
    """Keeps what it is given, and would send it off at times."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def log(self, step: int, **values: Any) -> None:
        self.rows.append({"step": step, **values})


def norms_of(model: nn.Module) -> dict[str, Any]:
    """How large the gradient of each parameter is, and the parameter itself."""
    named = [(name, p) for name, p in model.named_parameters() if p.grad is not None]
    if MENDED:
        params = [p.detach() for _, p in named]
        grads = [p.grad for _, p in named]
        names = [f"{kind}/{name}" for kind in ("weight", "grad") for name, _ in named]
        return {
            "names": names,
            "norms": torch.stack(torch._foreach_norm(params) + torch._foreach_norm(grads)),
        }
    norms = {}
    for name, p in named:
        norms[f"weight/{name}"] = p.detach().norm().item()
        norms[f"grad/{name}"] = p.grad.norm().item()
    return norms


class GradientWatch:
    def __init__(self, logger: Logger) -> None:
        self.logger = logger

    def on_before_optimizer_step(self, step: int, model: nn.Module) -> None:
        self.logger.log(step, **norms_of(model))


class Trainer:
    def __init__(self, model: nn.Module, callbacks: list[GradientWatch]) -> None:
        self.model, self.callbacks = model, callbacks
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5, fused=DEVICE == "cuda")

    def training_step(self, words: torch.Tensor, subject: torch.Tensor) -> torch.Tensor:
        with torch.autocast(DEVICE, torch.bfloat16):
            scores = self.model(words)
        return F.cross_entropy(scores.float(), subject)

    def fit_batch(self, step: int, words: torch.Tensor, subject: torch.Tensor) -> torch.Tensor:
        loss = self.training_step(words, subject)
        self.optimizer.zero_grad()
        loss.backward()
        for callback in self.callbacks:
            callback.on_before_optimizer_step(step, self.model)
        self.optimizer.step()
        return loss.detach()


def main() -> None:
    torch.manual_seed(0)
    rows, length, vocabulary, width, depth, subjects = (
        (32, 128, 8000, 512, 24, 77) if DEVICE == "cuda" else (2, 6, 30, 16, 2, 4)
    )
    logger, model = Logger(), LetterClassifier(vocabulary, length, width, depth, subjects).to(DEVICE)
    trainer = Trainer(model, [GradientWatch(logger)])
    letters = torch.randint(0, vocabulary, (STEPS, rows, length))
    about = torch.randint(0, subjects, (STEPS, rows))
    if DEVICE == "cuda":
        letters, about = letters.pin_memory(), about.pin_memory()
    for step in range(STEPS):
        if step == WARM:
            if DEVICE == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        batch = (part[step].to(DEVICE, non_blocking=True) for part in (letters, about))
        loss = trainer.fit_batch(step, *batch)
    last = loss.item()
    print(f"step_ms {1000 * (time.perf_counter() - began) / (STEPS - WARM):.3f} loss {last:.6f}")
    assert len(logger.rows) == STEPS


if __name__ == "__main__":
    main()
