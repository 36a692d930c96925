# SPDX-License-Identifier: Apache-2.0
"""A GPT-2 as the Hugging Face library lays it out, of torch.nn alone, and its training step in bfloat16."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

WIDTH, HEADS, BLOCKS, VOCABULARY, CONTEXT, BATCH = 256, 4, 2, 1024, 128, 8


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.c_attn = nn.Linear(WIDTH, 3 * WIDTH)
        self.c_proj = nn.Linear(WIDTH, WIDTH)
        self.resid_dropout = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        qkv = self.c_attn(x)  # gpu: forward backward
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in qkv.chunk(3, dim=-1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)  # gpu: forward backward
        projected = self.c_proj(mixed.transpose(1, 2).flatten(-2))  # gpu: forward backward
        return self.resid_dropout(projected)  # gpu: forward backward


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.c_fc = nn.Linear(WIDTH, 4 * WIDTH)
        self.c_proj = nn.Linear(4 * WIDTH, WIDTH)
        self.act = nn.GELU(approximate="tanh")
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.c_fc(x)  # gpu: forward backward
        x = self.act(x)  # gpu: forward backward
        x = self.c_proj(x)  # gpu: forward backward
        return self.dropout(x)  # gpu: forward backward


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(WIDTH)
        self.attn = Attention()
        self.ln_2 = nn.LayerNorm(WIDTH)
        self.mlp = Mlp()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normal = self.ln_1(x)  # gpu: forward backward
        x = x + self.attn(normal)  # gpu: forward backward
        normal = self.ln_2(x)  # gpu: forward backward
        return x + self.mlp(normal)  # gpu: forward backward


class Gpt2(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wte = nn.Embedding(VOCABULARY, WIDTH)
        self.wpe = nn.Embedding(CONTEXT, WIDTH)
        self.drop = nn.Dropout(0.1)
        self.h = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.ln_f = nn.LayerNorm(WIDTH)
        self.lm_head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)  # gpu: forward
        x = self.wte(tokens)  # gpu: forward backward
        x = x + self.wpe(positions)  # gpu: forward backward
        x = self.drop(x)  # gpu: forward backward
        for block in self.h:
            x = block(x)
        x = self.ln_f(x)  # gpu: forward backward
        return self.lm_head(x)  # gpu: forward backward


def build(device: str) -> Callable[[], None]:
    torch.manual_seed(0)
    model = Gpt2().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    tokens = torch.randint(VOCABULARY, (BATCH, CONTEXT + 1), device=device)

    def step() -> None:
        with torch.autocast(device, dtype=torch.bfloat16):
            logits = model(tokens[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())  # gpu: forward backward
        loss.backward()  # gpu: backward
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # gpu: forward
        optimizer.step()  # gpu: optimizer
        optimizer.zero_grad()

    return step
