# SPDX-License-Identifier: Apache-2.0
"""A language model learns which of two answers people like, by small matrices next to its frozen weights."""

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


class LoraLinear(nn.Linear):
    """What it was trained to do, and what is learnt now: a product of two thin matrices."""

    def __init__(self, into: int, out: int, rank: int) -> None:
        super().__init__(into, out, bias=False)
        self.lora_a = nn.Parameter(torch.randn(rank, into) / into**0.5)
        self.lora_b = nn.Parameter(torch.zeros(out, rank))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight) + F.linear(F.linear(x, self.lora_a), self.lora_b)


class Block(nn.Module):
    def __init__(self, width: int, heads: int, rank: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = LoraLinear(width, 3 * width, rank) if rank else nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class LanguageModel(nn.Module):
    def __init__(self, words: int, length: int, width: int, depth: int, rank: int = 0) -> None:
        super().__init__()
        self.table, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, max(1, width // 64), rank) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.blocks(self.table(ids) + self.places.weight[: ids.shape[1]])))


def with_adapters(weights: dict[str, torch.Tensor], sizes: tuple[int, ...], rank: int) -> LanguageModel:
    model = LanguageModel(*sizes, rank)
    model.load_state_dict(weights, strict=False)
    model = model.to(DEVICE, torch.bfloat16)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("lora_" in name)
    return model


def as_it_was(weights: dict[str, torch.Tensor], sizes: tuple[int, ...]) -> LanguageModel:
    model = LanguageModel(*sizes)
    model.load_state_dict(weights)
    model = model.to(DEVICE, torch.bfloat16).eval()
    return model.requires_grad_(False) if MENDED else model


class Pairs:
    """Rows of words: answers that people liked, then as many that they did not like as much."""

    def __init__(self, words: int, rows: int, length: int) -> None:
        self.ids = torch.randint(0, words, (2 * rows, length + 1), device=DEVICE)
        asked = torch.randint(1, length // 2, (rows, 1), device=DEVICE).repeat(2, 1)
        self.mask = (torch.arange(length, device=DEVICE) >= asked).float()


class PreferenceTrainer:
    def __init__(self, policy: LanguageModel, reference: LanguageModel) -> None:
        self.policy, self.reference, self.beta = policy, reference, 0.1
        learnt = [parameter for parameter in policy.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.AdamW(learnt, lr=1e-3, fused=DEVICE == "cuda")

    def logps(self, model: LanguageModel, pairs: Pairs) -> torch.Tensor:
        logits = model(pairs.ids[:, :-1])
        each = F.cross_entropy(logits.flatten(0, 1).float(), pairs.ids[:, 1:].flatten(), reduction="none")
        return -(each.view_as(pairs.mask) * pairs.mask).sum(dim=1)

    def loss(self, pairs: Pairs) -> torch.Tensor:
        change = self.logps(self.policy, pairs) - self.logps(self.reference, pairs)
        liked, other = change.chunk(2)
        return -F.logsigmoid(self.beta * (liked - other)).mean()

    def step(self, pairs: Pairs) -> torch.Tensor:
        loss = self.loss(pairs)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss


def main() -> None:
    torch.manual_seed(0)
    words, rows, length, width, depth, rank = (
        (8192, 14, 512, 1024, 10, 16) if DEVICE == "cuda" else (30, 2, 8, 16, 1, 2)
    )
    sizes = (words, length, width, depth)
    weights = LanguageModel(*sizes).state_dict()
    trainer = PreferenceTrainer(with_adapters(weights, sizes, rank), as_it_was(weights, sizes))
    pairs = [Pairs(words, rows, length) for _ in range(3)]
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        loss = trainer.step(pairs[step % 3])
    report(began, loss)


if __name__ == "__main__":
    main()
