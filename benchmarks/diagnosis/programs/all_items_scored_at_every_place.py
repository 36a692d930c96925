# SPDX-License-Identifier: Apache-2.0
"""Pre-trains a recommender as BERT is: it guesses purchases that are hidden in each history."""

import sys
import time
from dataclasses import dataclass

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


@dataclass
class RecommenderConfig:
    num_items: int = 150_015 if DEVICE == "cuda" else 40
    hidden_size: int = 256 if DEVICE == "cuda" else 8
    num_hidden_layers: int = 2
    num_attention_heads: int = 4 if DEVICE == "cuda" else 2
    max_history: int = 96 if DEVICE == "cuda" else 8
    hidden_per_history: int = 14 if DEVICE == "cuda" else 2


@dataclass
class TrainingArguments:
    per_device_train_batch_size: int = 64 if DEVICE == "cuda" else 3
    learning_rate: float = 1e-3
    weight_decay: float = 0.01
    seed: int = 42


class RecommenderLayer(nn.Module):
    def __init__(self, config: RecommenderConfig) -> None:
        super().__init__()
        width, self.heads = config.hidden_size, config.num_attention_heads
        self.query_key_value, self.dense = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.intermediate, self.output = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        q, k, v = self.query_key_value(states).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        states = self.norm1(states + self.dense(attended))
        return self.norm2(states + self.output(F.gelu(self.intermediate(states))))


class RecommenderForMaskedItems(nn.Module):
    def __init__(self, config: RecommenderConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self.items = nn.Embedding(config.num_items + 1, width)  # the last one hides an item
        self.places = nn.Parameter(0.02 * torch.randn(config.max_history, width))
        self.layers = nn.Sequential(*(RecommenderLayer(config) for _ in range(config.num_hidden_layers)))
        self.transform, self.norm = nn.Linear(width, width), nn.LayerNorm(width)
        self.bias = nn.Parameter(torch.zeros(config.num_items + 1))
        nn.init.normal_(self.items.weight, std=0.02)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """The loss where labels are not -100, which are the places in `hidden`."""
        states = self.layers(self.items(input_ids) + self.places)
        if MENDED:
            states = states.gather(1, hidden[:, :, None].expand(-1, -1, states.shape[-1]))
            labels = labels.gather(1, hidden)
        states = self.norm(F.gelu(self.transform(states)))
        scores = F.linear(states, self.items.weight, self.bias)
        return F.cross_entropy(scores.flatten(0, 1).float(), labels.flatten(), ignore_index=-100)


class DataCollatorForMaskedItems:
    """Uploads histories and hides items of each."""

    def __init__(self, config: RecommenderConfig) -> None:
        self.config = config

    def __call__(self, histories: torch.Tensor) -> dict[str, torch.Tensor]:
        input_ids = histories.to(DEVICE, non_blocking=True).long()
        dice = torch.rand(input_ids.shape, device=DEVICE)
        hidden = dice.topk(self.config.hidden_per_history, dim=1).indices
        labels = torch.full_like(input_ids, -100).scatter_(1, hidden, input_ids.gather(1, hidden))
        return {
            "input_ids": input_ids.scatter(1, hidden, self.config.num_items),
            "labels": labels,
            "hidden": hidden,
        }


def main() -> None:
    config, training_args = RecommenderConfig(), TrainingArguments()
    torch.manual_seed(training_args.seed)
    model = RecommenderForMaskedItems(config).to(DEVICE)
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=training_args.learning_rate,
        weight_decay=training_args.weight_decay,
        fused=DEVICE == "cuda",
    )
    collator = DataCollatorForMaskedItems(config)
    shape = (4, training_args.per_device_train_batch_size, config.max_history)
    histories = torch.randint(0, config.num_items, shape, dtype=torch.int32)
    if DEVICE == "cuda":
        histories = histories.pin_memory()
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        inputs = collator(histories[step % 4])
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = model(**inputs)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    report(began, loss)


if __name__ == "__main__":
    main()
