# SPDX-License-Identifier: Apache-2.0
"""A fine-tuned language model is evaluated: how often is its likeliest word the right one?"""

import sys
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

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


class Layer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.c_fc, self.c_out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.c_attn(self.ln_1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).flatten(2))
        return x + self.c_out(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class CausalModel(nn.Module):
    def __init__(self, words: int, longest: int, width: int, depth: int) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(words, width), nn.Embedding(longest, width)
        self.h = nn.Sequential(*(Layer(width, max(1, width // 64)) for _ in range(depth)))
        self.ln_f, self.lm_head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.h(self.wte(words) + self.wpe.weight[: words.shape[1]])
        return self.lm_head(self.ln_f(x))


class Questions(torch.utils.data.Dataset):
    """Texts whose first words are a question, which does not count."""

    def __init__(self, texts: int, words: int, length: int) -> None:
        self.texts = torch.randint(0, words, (texts, length))
        self.asked = torch.randint(1, length // 2, (texts, 1))

    def batch(self, number: int, rows: int) -> dict[str, torch.Tensor]:
        some = torch.arange(number * rows, (number + 1) * rows) % len(self.texts)
        words, asked = self.texts[some], self.asked[some]
        labels = words.masked_fill(torch.arange(words.shape[1]) < asked, -100)
        return {"input_ids": words, "labels": labels}


class Accuracy:
    def __init__(self) -> None:
        self.right, self.counted = 0, 0

    def update(self, predictions: np.ndarray, labels: np.ndarray) -> None:
        predictions, labels = predictions[:, :-1], labels[:, 1:]
        counts = labels != -100
        self.right += int(((predictions == labels) & counts).sum())
        self.counted += int(counts.sum())

    def compute(self) -> float:
        return self.right / max(1, self.counted)


class Evaluator:
    def __init__(self, model: nn.Module) -> None:
        self.model, self.accuracy = model, Accuracy()

    def to_device(self, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        if DEVICE == "cuda":
            batch = {name: part.pin_memory() for name, part in batch.items()}
        return {name: part.to(DEVICE, non_blocking=True) for name, part in batch.items()}

    def prediction_step(self, batch: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        logits = self.model(batch["input_ids"])
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten())
        return loss, logits

    def predicted(self, logits: torch.Tensor) -> np.ndarray:
        if MENDED:
            return logits.argmax(dim=-1).cpu().numpy()
        return logits.float().cpu().numpy().argmax(axis=-1)

    def step(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        loss, logits = self.prediction_step(self.to_device(batch))
        self.accuracy.update(self.predicted(logits), batch["labels"].numpy())
        return loss


@torch.inference_mode()
def main() -> None:
    torch.manual_seed(0)
    texts, rows, length, words, width, depth = (
        (96, 6, 256, 32000, 1024, 12) if DEVICE == "cuda" else (8, 2, 8, 30, 16, 1)
    )
    model = CausalModel(words, length, width, depth).to(DEVICE, torch.bfloat16).eval()
    data, evaluator = Questions(texts, words, length), Evaluator(model)
    total = torch.zeros((), device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        total += evaluator.step(data.batch(step, rows))
    report(began, total / STEPS + evaluator.accuracy.compute())


if __name__ == "__main__":
    main()
