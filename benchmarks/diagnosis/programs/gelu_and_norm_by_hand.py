# SPDX-License-Identifier: Apache-2.0
"""A language model of proteins learns what stands behind the masks, in the manner of the first ones."""

import math
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (20, 6) if DEVICE == "cuda" else (3, 1)


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


def gelu(x: torch.Tensor) -> torch.Tensor:
    """The exact form of the paper, in full precision."""
    if MENDED:
        return F.gelu(x)
    wide = x.float()
    return (wide * 0.5 * (1.0 + torch.erf(wide / math.sqrt(2.0)))).type_as(x)


class ProteinLayerNorm(nn.Module):
    """With epsilon inside of the square root, as TensorFlow has it."""

    def __init__(self, width: int, eps: float = 1e-12) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if MENDED:
            return F.layer_norm(x, x.shape[-1:], self.weight, self.bias, self.eps)
        wide = x.float()
        apart = wide - wide.mean(-1, keepdim=True)
        spread = torch.sqrt(apart.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * (apart / spread) + self.bias


class TransformerLayer(nn.Module):
    def __init__(self, embed_dim: int, ffn_embed_dim: int, attention_heads: int) -> None:
        super().__init__()
        self.attention_heads = attention_heads
        self.self_attn_layer_norm = ProteinLayerNorm(embed_dim)
        self.in_proj, self.out_proj = nn.Linear(embed_dim, 3 * embed_dim), nn.Linear(embed_dim, embed_dim)
        self.final_layer_norm = ProteinLayerNorm(embed_dim)
        self.fc1, self.fc2 = nn.Linear(embed_dim, ffn_embed_dim), nn.Linear(ffn_embed_dim, embed_dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        qkv = self.in_proj(self.self_attn_layer_norm(x)).unflatten(-1, (3, self.attention_heads, -1))
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        x = x + self.out_proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.fc2(gelu(self.fc1(self.final_layer_norm(x))))


class ProteinBert(nn.Module):
    def __init__(self, alphabet: int, longest: int, embed_dim: int, layers: int) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(alphabet, embed_dim)
        self.embed_positions = nn.Parameter(0.02 * torch.randn(longest, embed_dim))
        self.layers = nn.Sequential(
            *(TransformerLayer(embed_dim, 4 * embed_dim, max(1, embed_dim // 64)) for _ in range(layers))
        )
        self.emb_layer_norm_after = ProteinLayerNorm(embed_dim)
        self.lm_head = nn.Linear(embed_dim, alphabet)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = (self.embed_tokens(tokens) + self.embed_positions).to(torch.bfloat16)
        return self.lm_head(self.emb_layer_norm_after(self.layers(x)))


def main() -> None:
    torch.manual_seed(0)
    alphabet, mask, rows, length, width, depth = (
        (32, 31, 24, 1024, 512, 6) if DEVICE == "cuda" else (32, 31, 2, 8, 16, 2)
    )
    model = ProteinBert(alphabet, length, width, depth).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-4, weight_decay=0.01, fused=DEVICE == "cuda")
    proteins = torch.randint(0, mask, (4, rows, length), dtype=torch.uint8)
    if DEVICE == "cuda":
        proteins = proteins.pin_memory()
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        tokens = proteins[step % 4].to(DEVICE, non_blocking=True).long()
        hidden = torch.rand(tokens.shape, device=DEVICE) < 0.15
        targets = tokens.masked_fill(~hidden, -100)
        with torch.autocast(DEVICE, torch.bfloat16):
            logits = model(tokens.masked_fill(hidden, mask))
        loss = F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    report(began, loss)


if __name__ == "__main__":
    main()
