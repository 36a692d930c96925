# SPDX-License-Identifier: Apache-2.0
"""Continues pieces of music: a trained model is asked for one note after the other."""

import math
import sys
import time
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (12, 3) if DEVICE == "cuda" else (3, 1)

# -----------------------------------------------------------------------------
num_samples = 32 if DEVICE == "cuda" else 2  # pieces at once
prompt_len = 384 if DEVICE == "cuda" else 6
max_new_tokens = 32 if DEVICE == "cuda" else 5
seed = 1337
# -----------------------------------------------------------------------------


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


@dataclass
class GPTConfig:
    block_size: int = prompt_len + max_new_tokens
    vocab_size: int = 1024 if DEVICE == "cuda" else 16
    n_layer: int = 8 if DEVICE == "cuda" else 2
    n_head: int = 16 if DEVICE == "cuda" else 2
    n_embd: int = 1024 if DEVICE == "cuda" else 16


class Cache:
    """Keys and values of what a layer has seen."""

    def __init__(self, config: GPTConfig, rows: int) -> None:
        shape = (2, rows, config.n_head, config.block_size, config.n_embd // config.n_head)
        self.room, self.used = torch.zeros(shape, device=DEVICE, dtype=torch.bfloat16), 0

    def add(self, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        first, self.used = self.used, self.used + k.shape[2]
        self.room[0, :, :, first : self.used], self.room[1, :, :, first : self.used] = k, v
        return self.room[0, :, :, : self.used], self.room[1, :, :, : self.used]


class Block(nn.Module):
    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.n_head = config.n_head
        self.ln_1, self.ln_2 = nn.LayerNorm(config.n_embd), nn.LayerNorm(config.n_embd)
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd)
        self.c_fc = nn.Linear(config.n_embd, 4 * config.n_embd)
        self.mlp_proj = nn.Linear(4 * config.n_embd, config.n_embd)

    def forward(self, x: torch.Tensor, cache: Cache | None) -> torch.Tensor:
        q, k, v = self.c_attn(self.ln_1(x)).unflatten(-1, (3, self.n_head, -1)).permute(2, 0, 3, 1, 4)
        if cache is not None:
            k, v = cache.add(k, v)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=q.shape[2] > 1)
        x = x + self.c_proj(y.transpose(1, 2).flatten(2))
        return x + self.mlp_proj(F.gelu(self.c_fc(self.ln_2(x))))


class GPT(nn.Module):
    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.wpe = nn.Embedding(config.block_size, config.n_embd)
        self.h = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.ln_f = nn.LayerNorm(config.n_embd)
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)

    def forward(self, idx: torch.Tensor, first: int, caches: list[Cache] | None) -> torch.Tensor:
        """Scores of the note after the last one."""
        pos = torch.arange(first, first + idx.shape[1], device=idx.device)
        x = self.wte(idx) + self.wpe(pos)
        for number, block in enumerate(self.h):
            x = block(x, caches[number] if caches else None)
        return self.lm_head(self.ln_f(x[:, -1])).float()

    @torch.inference_mode()
    def generate(self, idx: torch.Tensor, max_new_tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The notes with new ones behind them, and how likely the model found those."""
        caches = [Cache(self.config, len(idx)) for _ in self.h] if MENDED else None
        surprise = torch.zeros(len(idx), device=idx.device)
        seen = 0
        for _ in range(max_new_tokens):
            logits = self(idx[:, seen:], seen, caches)
            best = logits.log_softmax(dim=-1).max(dim=-1)
            surprise -= best.values
            if MENDED:
                seen = idx.shape[1]
            idx = torch.cat((idx, best.indices[:, None]), dim=1)
        return idx, surprise / max_new_tokens


def main() -> None:
    torch.manual_seed(seed)
    config = GPTConfig()
    model = GPT(config).to(DEVICE, torch.bfloat16).eval()
    prompts = torch.randint(0, config.vocab_size, (4, num_samples, prompt_len), device=DEVICE)
    for k in range(STEPS):
        if k == WARM:
            began = start_clock()
        y, surprise = model.generate(prompts[k % 4], max_new_tokens)
    assert y.shape[1] == config.block_size and surprise.max() < 2 * math.log(config.vocab_size)
    report(began, surprise.mean())


if __name__ == "__main__":
    main()
