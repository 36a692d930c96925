# SPDX-License-Identifier: Apache-2.0
"""A text classifier whose batches are all filled up to the longest text that the model could read."""

import random
import sys
import time

import torch
from transformers import BertConfig, BertForSequenceClassification

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


def reviews(count: int, shortest: int, longest: int, vocabulary: int) -> list[dict[str, object]]:
    """Texts of many lengths, as a tokenizer gives them."""
    draw = random.Random(0)
    lengths = [draw.randint(shortest, longest) for _ in range(count)]
    return [
        {"input_ids": [draw.randrange(1, vocabulary) for _ in range(length)], "label": draw.randrange(4)}
        for length in lengths
    ]


class Collator:
    def __init__(self, limit: int) -> None:
        self.limit = limit

    def __call__(self, rows: list[dict[str, object]]) -> dict[str, torch.Tensor]:
        texts = [row["input_ids"] for row in rows]
        length = max(len(text) for text in texts) if MENDED else self.limit
        tokens = torch.tensor([text + [0] * (length - len(text)) for text in texts])
        labels = torch.tensor([row["label"] for row in rows])
        return {"input_ids": tokens, "attention_mask": (tokens != 0).long(), "labels": labels}


def classifier(limit: int, width: int, heads: int, depth: int, vocabulary: int) -> torch.nn.Module:
    config = BertConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        num_attention_heads=heads,
        num_hidden_layers=depth,
        intermediate_size=4 * width,
        max_position_embeddings=limit,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        num_labels=4,
        attn_implementation="sdpa",
    )
    return BertForSequenceClassification(config).to(DEVICE)


def batches(texts: list[dict[str, object]], rows: int) -> list[list[dict[str, object]]]:
    return [texts[first : first + rows] for first in range(0, len(texts), rows)]


def main() -> None:
    torch.manual_seed(0)
    rows, limit, shortest, longest, width, heads, depth, vocabulary = (
        (64, 512, 20, 120, 768, 12, 12, 30528) if DEVICE == "cuda" else (3, 32, 2, 7, 16, 2, 2, 50)
    )
    model, collate = classifier(limit, width, heads, depth, vocabulary), Collator(limit)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5, fused=DEVICE == "cuda")
    texts = reviews(rows * STEPS, shortest, longest, vocabulary)
    for step, picked in enumerate(batches(texts, rows)):
        if step == WARM:
            began = start_clock()
        batch = {name: column.to(DEVICE) for name, column in collate(picked).items()}
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    report(began, loss)


if __name__ == "__main__":
    main()
