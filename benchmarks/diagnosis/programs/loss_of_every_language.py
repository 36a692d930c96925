# SPDX-License-Identifier: Apache-2.0
"""A language model is pre-trained on a mix of a hundred languages; a log tells how well each is learnt."""

import sys
import time

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
    def __init__(self, width: int, heads: int, inner: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.wqkv, self.wo = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.w13, self.w2 = nn.Linear(width, 2 * inner, bias=False), nn.Linear(inner, width, bias=False)

    def attention(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.wqkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return self.wo(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        gate, up = self.w13(self.norm2(x)).chunk(2, dim=-1)
        return x + self.w2(F.silu(gate) * up)


class Model(nn.Module):
    def __init__(self, words: int, length: int, width: int, depth: int) -> None:
        super().__init__()
        self.embed, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.layers = nn.Sequential(
            *(Layer(width, max(1, width // 64), 8 * width // 3) for _ in range(depth))
        )
        self.norm, self.output = nn.RMSNorm(width), nn.Linear(width, words, bias=False)
        nn.init.normal_(self.output.weight, std=0.02)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.embed(words) + self.places.weight[: words.shape[1]]
        return self.output(self.norm(self.layers(x)))


class Mixture:
    """Rows of text with the number of the language that each is in, as the sampler draws them."""

    def __init__(self, words: int, languages: int, rows: int, length: int) -> None:
        self.text = torch.randint(0, words, (4, rows, length + 1))
        self.language = torch.randint(0, languages, (4, rows))
        if DEVICE == "cuda":
            self.text, self.language = self.text.pin_memory(), self.language.pin_memory()

    def batch(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        parts = self.text[step % 4], self.language[step % 4]
        text, language = (part.to(DEVICE, non_blocking=True) for part in parts)
        return text, language


class LanguageLog:
    """Mean loss per language since the log began."""

    def __init__(self, languages: int) -> None:
        self.languages = languages
        self.total = torch.zeros(languages, device=DEVICE)
        self.rows = torch.zeros(languages, device=DEVICE)
        self.sums, self.counts = [0.0] * languages, [0] * languages

    def add(self, losses: torch.Tensor, language: torch.Tensor) -> None:
        if MENDED:
            self.total.index_add_(0, language, losses)
            self.rows.index_add_(0, language, torch.ones_like(losses))
            return
        for number in range(self.languages):
            mine = language == number
            if mine.any():
                self.sums[number] += losses[mine].sum().item()
                self.counts[number] += int(mine.sum())

    def means(self) -> torch.Tensor:
        if MENDED:
            return self.total / self.rows.clamp(min=1)
        return torch.tensor(self.sums) / torch.tensor(self.counts).clamp(min=1)


class Trainer:
    def __init__(self, model: Model, log: LanguageLog) -> None:
        self.model, self.log = model, log
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=DEVICE == "cuda")

    def loss(self, text: torch.Tensor, language: torch.Tensor) -> torch.Tensor:
        with torch.autocast(DEVICE, torch.bfloat16):
            logits = self.model(text[:, :-1])
        losses = F.cross_entropy(logits.flatten(0, 1).float(), text[:, 1:].flatten(), reduction="none")
        losses = losses.view(len(text), -1).mean(dim=1)
        self.log.add(losses.detach(), language)
        return losses.mean()

    def step(self, text: torch.Tensor, language: torch.Tensor) -> torch.Tensor:
        loss = self.loss(text, language)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss


def main() -> None:
    torch.manual_seed(0)
    words, languages, rows, length, width, depth = (
        (16384, 108, 64, 128, 768, 6) if DEVICE == "cuda" else (30, 3, 4, 6, 16, 1)
    )
    trainer = Trainer(Model(words, length, width, depth).to(DEVICE), LanguageLog(languages))
    data = Mixture(words, languages, rows, length)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        loss = trainer.step(*data.batch(step))
    report(began, loss + 0.01 * trainer.log.means().mean().to(DEVICE))


if __name__ == "__main__":
    main()
