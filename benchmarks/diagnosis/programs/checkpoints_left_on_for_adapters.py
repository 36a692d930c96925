# SPDX-License-Identifier: Apache-2.0
"""Complaints are sorted by a large model of language, of which small matrices alone are trained (LoRA)."""

import math
import sys
import time
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (20, 5) if DEVICE == "cuda" else (3, 1)

model_args: dict[str, int] = (
    {"width": 2048, "layers": 12, "words": 32000, "kinds": 40}
    if DEVICE == "cuda"
    else {"width": 16, "layers": 2, "words": 30, "kinds": 4}
)
lora_args: dict[str, Any] = {"r": 16, "alpha": 32, "targets": ("qkv", "out")}
training_args: dict[str, Any] = {
    "rows": 8 if DEVICE == "cuda" else 2,
    "length": 1024 if DEVICE == "cuda" else 6,
    "lr": 2e-4,
    "gradient_checkpointing": not MENDED,
}


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


class LoraLinear(nn.Module):
    """A frozen layer, and a product of two small matrices that is added to what it gives."""

    def __init__(self, base: nn.Linear, r: int, alpha: int) -> None:
        super().__init__()
        self.base, self.scaling = base, alpha / r
        like: dict[str, Any] = {"device": base.weight.device, "dtype": base.weight.dtype}
        self.lora_A = nn.Parameter(torch.randn(r, base.in_features, **like) / math.sqrt(base.in_features))
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, r, **like))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.add(self.base(x), F.linear(F.linear(x, self.lora_A), self.lora_B), alpha=self.scaling)


class DecoderLayer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = max(1, width // 128)
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class ComplaintClassifier(nn.Module):
    def __init__(self, width: int, layers: int, words: int, kinds: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.layers = nn.ModuleList(DecoderLayer(width) for _ in range(layers))
        self.norm, self.score = nn.RMSNorm(width), nn.Linear(width, kinds)
        self.gradient_checkpointing = False

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            if self.gradient_checkpointing and self.training:
                x = checkpoint(layer, x, use_reentrant=False)
            else:
                x = layer(x)
        return self.score(self.norm(x[:, -1]))


def get_peft_model(model: ComplaintClassifier, r: int, alpha: int, targets: tuple[str, ...]) -> None:
    model.requires_grad_(False)
    for layer in model.layers:
        for name in targets:
            setattr(layer, name, LoraLinear(getattr(layer, name), r, alpha))
    model.score.requires_grad_(True)


class Trainer:
    def __init__(self, model: ComplaintClassifier, args: dict[str, Any]) -> None:
        self.model, model.gradient_checkpointing = model.train(), args["gradient_checkpointing"]
        trained = [p for p in model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(trained, lr=args["lr"], fused=DEVICE == "cuda")

    def training_step(self, ids: torch.Tensor, kinds: torch.Tensor) -> torch.Tensor:
        loss = F.cross_entropy(self.model(ids).float(), kinds)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()

    def train(self, batches: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        for step in range(STEPS):
            if step == WARM:
                began = start_clock()
            loss = self.training_step(*batches[step % len(batches)])
        report(began, loss)


def main() -> None:
    torch.manual_seed(0)
    with torch.device(DEVICE):
        model = ComplaintClassifier(**model_args).to(torch.bfloat16)
        get_peft_model(model, **lora_args)
        shape = (training_args["rows"], training_args["length"])
        ids = [torch.randint(0, model_args["words"], shape) for _ in range(4)]
        kinds = [torch.randint(0, model_args["kinds"], shape[:1]) for _ in range(4)]
    Trainer(model, training_args).train(list(zip(ids, kinds, strict=True)))


if __name__ == "__main__":
    main()
