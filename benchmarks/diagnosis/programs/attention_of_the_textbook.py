# SPDX-License-Identifier: Apache-2.0
"""Bases of a genome that were hidden are guessed from those around them; reads are not all of one length."""

import math
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (20, 6) if DEVICE == "cuda" else (3, 1)
HIDDEN_BASE, BASES = 4, 5


def attention(query, key, value, mask=None):
    """Scaled dot products, as in the paper."""
    if MENDED:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    d_k = query.size(-1)
    scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(d_k)
    if mask is not None:
        scores = scores.masked_fill(mask == 0, -1e9)
    p_attn = scores.softmax(dim=-1)
    return torch.matmul(p_attn, value)


class MultiHeadedAttention(nn.Module):
    def __init__(self, h, d_model):
        super().__init__()
        self.d_k, self.h = d_model // h, h
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.out = nn.Linear(d_model, d_model)

    def forward(self, x, mask):
        nbatches = x.size(0)
        query, key, value = (
            part.view(nbatches, -1, self.h, self.d_k).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1)
        )
        x = attention(query, key, value, mask=mask)
        return self.out(x.transpose(1, 2).reshape(nbatches, -1, self.h * self.d_k))


class EncoderLayer(nn.Module):
    def __init__(self, h, d_model):
        super().__init__()
        self.self_attn = MultiHeadedAttention(h, d_model)
        self.feed_forward = nn.Sequential(
            nn.Linear(d_model, 4 * d_model), nn.ReLU(inplace=True), nn.Linear(4 * d_model, d_model)
        )
        self.norm1, self.norm2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)

    def forward(self, x, mask):
        x = x + self.self_attn(self.norm1(x), mask)
        return x + self.feed_forward(self.norm2(x))


class GenomeEncoder(nn.Module):
    def __init__(self, n_layers, h, d_model, longest):
        super().__init__()
        self.embed = nn.Embedding(BASES, d_model)
        self.position = nn.Parameter(0.02 * torch.randn(longest, d_model))
        self.layers = nn.ModuleList(EncoderLayer(h, d_model) for _ in range(n_layers))
        self.norm, self.generator = nn.LayerNorm(d_model), nn.Linear(d_model, BASES)

    def forward(self, src, src_mask):
        x = self.embed(src) + self.position[: src.size(1)]
        for layer in self.layers:
            x = layer(x, src_mask)
        return self.generator(self.norm(x))


def hide(reads, inside):
    """Some of the bases, and the weights of the loss, which counts those alone."""
    hidden = (torch.rand(reads.shape, device=reads.device) < 0.15) & inside
    return torch.where(hidden, HIDDEN_BASE, reads), hidden.float()


def main():
    torch.manual_seed(0)
    batch, longest, n_layers, h, d_model = (4, 3072, 6, 8, 512) if DEVICE == "cuda" else (2, 8, 1, 2, 16)
    model = GenomeEncoder(n_layers, h, d_model, longest).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=DEVICE == "cuda")
    reads = torch.randint(0, 4, (4, batch, longest), device=DEVICE)
    lengths = torch.randint(longest // 2, longest + 1, (4, batch, 1), device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            if DEVICE == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        tgt = reads[step % 4]
        inside = torch.arange(longest, device=DEVICE) < lengths[step % 4]
        src, counted = hide(tgt, inside)
        with torch.autocast(DEVICE, torch.bfloat16):
            logits = model(src, inside[:, None, None, :])
        losses = F.cross_entropy(logits.float().flatten(0, 1), tgt.flatten(), reduction="none")
        loss = (losses * counted.flatten()).sum() / counted.sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    last = loss.item()
    print(f"step_ms {1000 * (time.perf_counter() - began) / (STEPS - WARM):.3f} loss {last:.6f}")


if __name__ == "__main__":
    main()
