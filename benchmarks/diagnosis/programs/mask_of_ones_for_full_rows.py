# SPDX-License-Identifier: Apache-2.0
"""A language model learns to read longer texts: rows are filled with books, and padded where a book ends."""

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


class Books:
    """Rows of words with the mask that a tokenizer makes: 1 for words, 0 for padding at the end."""

    def __init__(self, words: int, length: int, lengths: list[int]) -> None:
        self.length, self.lengths = length, lengths
        self.rows = [torch.randint(1, words, (size + 1,)) for size in lengths]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        row = F.pad(self.rows[number], (0, self.length - self.lengths[number]))
        mask = torch.arange(self.length) < self.lengths[number]
        return {
            "input_ids": row[:-1],
            "labels": row[1:].masked_fill(~mask, -100),
            "attention_mask": mask.long(),
        }


def collate(rows: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


def uploaded(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    if MENDED and batch["attention_mask"].all():  # still on the host
        batch = {name: part for name, part in batch.items() if name != "attention_mask"}
    if DEVICE == "cuda":
        batch = {name: part.pin_memory() for name, part in batch.items()}
    return {name: part.to(DEVICE, non_blocking=True) for name, part in batch.items()}


def causal_mask(attention_mask: torch.Tensor) -> torch.Tensor:
    """(rows, 1, length, length): True where a word may look."""
    length = attention_mask.shape[1]
    causal = torch.ones(length, length, dtype=torch.bool, device=attention_mask.device).tril()
    return causal[None, None] & attention_mask.bool()[:, None, None, :]


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv_proj, self.o_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        q, k, v = self.qkv_proj(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attn_output = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        return self.o_proj(attn_output.transpose(1, 2).flatten(2))


class DecoderLayer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.self_attn = Attention(width, heads)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        x = x + self.self_attn(self.norm1(x), mask)
        return x + self.mlp(self.norm2(x))


class Reader(nn.Module):
    def __init__(self, words: int, length: int, width: int, depth: int) -> None:
        super().__init__()
        self.embed, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.layers = nn.ModuleList(DecoderLayer(width, max(1, width // 64)) for _ in range(depth))
        self.norm, self.lm_head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(
        self, input_ids: torch.Tensor, labels: torch.Tensor, attention_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        x = self.embed(input_ids) + self.places.weight[: input_ids.shape[1]]
        mask = None if attention_mask is None else causal_mask(attention_mask)
        for layer in self.layers:
            x = layer(x, mask)
        return F.cross_entropy(self.lm_head(self.norm(x)).flatten(0, 1).float(), labels.flatten())


def main() -> None:
    torch.manual_seed(0)
    rows, length, words, width, depth = (1, 10240, 8192, 1024, 5) if DEVICE == "cuda" else (2, 12, 30, 16, 2)
    lengths = [length - 3 if number == 2 * rows else length for number in range(STEPS * rows)]
    books = Books(words, length, lengths)
    loader = torch.utils.data.DataLoader(books, batch_size=rows, collate_fn=collate)
    model = Reader(words, length, width, depth).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=DEVICE == "cuda")
    for step, batch in enumerate(loader):
        if step == WARM:
            began = start_clock()
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = model(**uploaded(batch))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    report(began, loss)


if __name__ == "__main__":
    main()
