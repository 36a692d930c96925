# SPDX-License-Identifier: Apache-2.0
"""Essays of pupils get grades: a language model is fine-tuned as for a competition, one fold of five."""

import sys
import time
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (30, 8) if DEVICE == "cuda" else (3, 1)


@dataclass
class CFG:
    width: int = 768 if DEVICE == "cuda" else 16
    layers: int = 12 if DEVICE == "cuda" else 2
    heads: int = 12 if DEVICE == "cuda" else 2
    vocab: int = 32000 if DEVICE == "cuda" else 40
    max_len: int = 512 if DEVICE == "cuda" else 6
    batch_size: int = 16 if DEVICE == "cuda" else 3
    targets: int = 6
    amp: bool = MENDED
    encoder_lr: float = 2e-5
    head_lr: float = 1e-4
    layer_decay: float = 0.9


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


class EncoderLayer(nn.Module):
    def __init__(self, cfg: CFG) -> None:
        super().__init__()
        self.heads = cfg.heads
        self.attention_norm, self.output_norm = nn.LayerNorm(cfg.width), nn.LayerNorm(cfg.width)
        self.query_key_value = nn.Linear(cfg.width, 3 * cfg.width)
        self.attention_out = nn.Linear(cfg.width, cfg.width)
        self.intermediate = nn.Linear(cfg.width, 4 * cfg.width)
        self.output = nn.Linear(4 * cfg.width, cfg.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.query_key_value(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = self.attention_norm(x + self.attention_out(attended))
        return self.output_norm(x + self.output(F.gelu(self.intermediate(x))))


class AttentionPooling(nn.Module):
    """A mean of all places, in which some count more."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.attention(x).softmax(dim=1) * x).sum(dim=1)


class EssayModel(nn.Module):
    def __init__(self, cfg: CFG) -> None:
        super().__init__()
        self.words = nn.Embedding(cfg.vocab, cfg.width)
        self.places = nn.Parameter(0.02 * torch.randn(cfg.max_len, cfg.width))
        self.encoder = nn.ModuleList(EncoderLayer(cfg) for _ in range(cfg.layers))
        self.pool, self.fc = AttentionPooling(cfg.width), nn.Linear(cfg.width, cfg.targets)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids) + self.places
        for layer in self.encoder:
            x = layer(x)
        return self.fc(self.pool(x))


class Essays:
    """Windows of essays, all of the same length, and six grades each."""

    def __init__(self, cfg: CFG, windows: int) -> None:
        self.ids = torch.randint(0, cfg.vocab, (windows, cfg.batch_size, cfg.max_len))
        self.grades = torch.randint(2, 11, (windows, cfg.batch_size, cfg.targets)).float() / 2
        if DEVICE == "cuda":
            self.ids, self.grades = self.ids.pin_memory(), self.grades.pin_memory()

    def batch(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        at = step % len(self.ids)
        return self.ids[at].to(DEVICE, non_blocking=True), self.grades[at].to(DEVICE, non_blocking=True)


def get_optimizer(model: EssayModel, cfg: CFG) -> torch.optim.Optimizer:
    """The lower a layer, the less it may change."""
    head = [*model.pool.parameters(), *model.fc.parameters()]
    groups = [{"params": head, "lr": cfg.head_lr}]
    for depth, layer in enumerate(reversed(model.encoder)):
        groups.append({"params": list(layer.parameters()), "lr": cfg.encoder_lr * cfg.layer_decay**depth})
    lowest = [model.words.weight, model.places]
    groups.append({"params": lowest, "lr": cfg.encoder_lr * cfg.layer_decay**cfg.layers})
    return torch.optim.AdamW(groups, fused=DEVICE == "cuda")


def mcrmse(outputs: torch.Tensor, grades: torch.Tensor) -> torch.Tensor:
    return (F.mse_loss(outputs, grades, reduction="none").mean(dim=0) + 1e-9).sqrt().mean()


def train_fn(cfg: CFG, model: EssayModel, essays: Essays, optimizer: torch.optim.Optimizer) -> None:
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        ids, grades = essays.batch(step)
        with torch.autocast(DEVICE, torch.bfloat16, enabled=cfg.amp):
            outputs = model(ids)
        loss = mcrmse(outputs.float(), grades)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    report(began, loss)


def main() -> None:
    torch.manual_seed(0)
    cfg = CFG()
    model = EssayModel(cfg).to(DEVICE)
    train_fn(cfg, model, Essays(cfg, 4), get_optimizer(model, cfg))


if __name__ == "__main__":
    main()
