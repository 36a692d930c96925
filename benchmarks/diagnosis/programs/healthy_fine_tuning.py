# SPDX-License-Identifier: Apache-2.0
"""A text encoder of transformers with a new head, trained in bfloat16 with fused attention."""

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


def main() -> None:
    torch.manual_seed(0)
    rows, length, width, heads, depth, vocabulary = (
        (32, 512, 768, 12, 6, 30528) if DEVICE == "cuda" else (2, 8, 16, 2, 1, 50)
    )
    config = BertConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        num_attention_heads=heads,
        num_hidden_layers=depth,
        intermediate_size=4 * width,
        max_position_embeddings=length,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        num_labels=8,
        attn_implementation="sdpa",
    )
    model = BertForSequenceClassification(config).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5, fused=DEVICE == "cuda")
    tokens = torch.randint(1, vocabulary, (rows, length), device=DEVICE)
    labels = torch.randint(0, 8, (rows,), device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = model(input_ids=tokens, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    report(began, loss)


if __name__ == "__main__":
    main()
