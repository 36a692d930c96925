# SPDX-License-Identifier: Apache-2.0
"""A model of piano music, which is a sequence of events (a note begins, a note ends, time goes by)."""

import math
import sys
import time
from dataclasses import dataclass

import torch
import torch.nn as nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (24, 6) if DEVICE == "cuda" else (3, 1)


@dataclass
class MusicConfig:
    block_size: int = 2048 if DEVICE == "cuda" else 12
    vocab_size: int = 512 if DEVICE == "cuda" else 20
    n_layer: int = 6 if DEVICE == "cuda" else 2
    n_head: int = 12 if DEVICE == "cuda" else 2
    n_embd: int = 768 if DEVICE == "cuda" else 16
    batch_size: int = 4 if DEVICE == "cuda" else 2


class CausalSelfAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.n_head = config.n_head
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd)
        past = torch.tril(torch.ones(config.block_size, config.block_size, dtype=torch.bool))
        self.register_buffer("past", past.view(1, 1, config.block_size, config.block_size))

    def attend(self, q, k, v):
        if MENDED:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        length = q.size(-2)
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(~self.past[:, :, :length, :length], float("-inf"))
        att = F.softmax(att, dim=-1)
        return att @ v

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(C, dim=2)
        q, k, v = (part.view(B, T, self.n_head, C // self.n_head).transpose(1, 2) for part in (q, k, v))
        y = self.attend(q, k, v)
        return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(config.n_embd), nn.LayerNorm(config.n_embd)
        self.attn = CausalSelfAttention(config)
        self.mlp = nn.Sequential(
            nn.Linear(config.n_embd, 4 * config.n_embd),
            nn.GELU(),
            nn.Linear(4 * config.n_embd, config.n_embd),
        )

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class MusicModel(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.wpe = nn.Embedding(config.block_size, config.n_embd)
        self.h = nn.ModuleList([Block(config) for _ in range(config.n_layer)])
        self.ln_f = nn.LayerNorm(config.n_embd)
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.register_buffer("pos", torch.arange(config.block_size))

    def forward(self, idx, targets):
        x = self.wte(idx) + self.wpe(self.pos[: idx.size(1)])
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        return F.cross_entropy(logits.float().view(-1, logits.size(-1)), targets.reshape(-1))


class Pieces:
    """All pieces one after the other, as numbers of events."""

    def __init__(self, events, config):
        self.config = config
        self.events = torch.randint(0, config.vocab_size, (events,))
        self.generator = torch.Generator().manual_seed(1)

    def get_batch(self):
        length = self.config.block_size + 1
        starts = torch.randint(
            len(self.events) - length, (self.config.batch_size,), generator=self.generator
        ).tolist()
        rows = torch.stack([self.events[start : start + length] for start in starts])
        if DEVICE == "cuda":
            rows = rows.pin_memory().to(DEVICE, non_blocking=True)
        return rows[:, :-1], rows[:, 1:]


def lr_at(step):
    return 6e-4 * min(1.0, (step + 1) / 10)


def main():
    torch.manual_seed(1337)
    config = MusicConfig()
    model = MusicModel(config).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), fused=DEVICE == "cuda")
    data = Pieces(3_000_000 if DEVICE == "cuda" else 300, config)
    for step in range(STEPS):
        if step == WARM:
            if DEVICE == "cuda":
                torch.cuda.synchronize()
            t0 = time.time()
        for group in optimizer.param_groups:
            group["lr"] = lr_at(step)
        idx, targets = data.get_batch()
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = model(idx, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    last = loss.item()
    print(f"step_ms {1000 * (time.time() - t0) / (STEPS - WARM):.3f} loss {last:.6f}")


if __name__ == "__main__":
    main()
