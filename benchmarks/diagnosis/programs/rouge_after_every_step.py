# SPDX-License-Identifier: Apache-2.0
"""Summaries of articles: an encoder and a decoder learn, and a log shows ROUGE-L of what they would say."""

import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (24, 6) if DEVICE == "cuda" else (3, 1)
EVERY = 500  # steps between two entries of a log that is short


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


class Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = max(1, width // 64)
        self.q, self.kv = nn.Linear(width, width), nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor, seen: torch.Tensor, causal: bool = False) -> torch.Tensor:
        q = self.q(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = self.kv(seen).unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self, width: int, decodes: bool) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3 if decodes else 2))
        self.own, self.other = Attention(width), Attention(width) if decodes else None
        self.ff = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor, article: torch.Tensor | None = None) -> torch.Tensor:
        y = self.norms[0](x)
        x = x + self.own(y, y, causal=article is not None)
        if article is not None and self.other is not None:
            x = x + self.other(self.norms[2](x), article)
        return x + self.ff(self.norms[1](x))


class Summariser(nn.Module):
    def __init__(self, words: int, longest: int, width: int, depth: int) -> None:
        super().__init__()
        self.table, self.places = nn.Embedding(words, width), nn.Embedding(longest, width)
        self.encoder = nn.ModuleList(Layer(width, decodes=False) for _ in range(depth))
        self.decoder = nn.ModuleList(Layer(width, decodes=True) for _ in range(depth))
        self.norm = nn.LayerNorm(width)

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        return self.table(ids) + self.places.weight[: ids.shape[1]]

    def forward(self, articles: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
        seen, x = self.embed(articles), self.embed(before)
        for layer in self.encoder:
            seen = layer(seen)
        for layer in self.decoder:
            x = layer(x, seen)
        return F.linear(self.norm(x), self.table.weight)


def longest_common(one: list[int], two: list[int]) -> int:
    """The length of the longest sequence of words that both have in this order."""
    lengths = [0] * (len(two) + 1)
    for a in one:
        corner = 0
        for j, b in enumerate(two, 1):
            above = lengths[j]
            lengths[j] = corner + 1 if a == b else max(above, lengths[j - 1])
            corner = above
    return lengths[-1]


def rouge_l(said: list[int], wanted: list[int]) -> float:
    common = longest_common(said, wanted)
    precision, recall = common / len(said), common / len(wanted)
    return 2 * precision * recall / max(precision + recall, 1e-9)


class Log:
    def __init__(self) -> None:
        self.entries: list[dict[str, float]] = []

    def compute_metrics(self, scores: torch.Tensor, wanted: torch.Tensor) -> dict[str, float]:
        predictions, references = scores.argmax(dim=-1).tolist(), wanted.tolist()
        rouges = [rouge_l(said, true) for said, true in zip(predictions, references, strict=True)]
        return {"rougeL": sum(rouges) / len(rouges)}

    def on_step(self, step: int, scores: torch.Tensor, wanted: torch.Tensor) -> None:
        if not MENDED or step % EVERY == 0:
            self.entries.append({"step": step, **self.compute_metrics(scores, wanted)})


def main() -> None:
    torch.manual_seed(0)
    rows, words, length, summary, width, depth = (
        (64, 32000, 512, 80, 512, 4) if DEVICE == "cuda" else (3, 30, 8, 5, 16, 1)
    )
    model = Summariser(words, length, width, depth).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4, fused=DEVICE == "cuda")
    articles = torch.randint(0, words, (4, rows, length), device=DEVICE)
    summaries = torch.randint(0, words, (4, rows, summary + 1), device=DEVICE)
    log = Log()
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        before, wanted = summaries[step % 4, :, :-1], summaries[step % 4, :, 1:]
        with torch.autocast(DEVICE, torch.bfloat16):
            scores = model(articles[step % 4], before)
        loss = F.cross_entropy(scores.flatten(0, 1).float(), wanted.flatten(), label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log.on_step(step, scores, wanted)
    report(began, loss)


if __name__ == "__main__":
    main()
