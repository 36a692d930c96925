# SPDX-License-Identifier: Apache-2.0
"""A small language model. One of its layers costs far more GPU time than it should: which, and why?

Every layer opens an NVTX range of its own name, so that any profiler shows where it begins and ends. What
launched a kernel inside of a range only a Python stack can tell.
"""

import math
from contextlib import nullcontext

import torch
import torch.nn as nn
import torch.nn.functional as F

from profiling_lab.ops import heavy_layer

HEAVY = "slow"  # which implementation of HeavyLayer a model gets unless it asks: slow, loop or fast
ON_GPU = torch.cuda.is_available()


def layer_range(name):
    """An NVTX range around one layer. Without CUDA it does nothing."""
    return torch.cuda.nvtx.range(name) if ON_GPU else nullcontext()


def attention_layer(x, qkv, out, nhead):
    """Causal self-attention over x (batch, tokens, d_model): no token sees the ones after it."""
    batch, tokens, d_model = x.shape
    q, k, v = qkv(x).view(batch, tokens, 3, nhead, d_model // nhead).permute(2, 0, 3, 1, 4)
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return out(mixed.transpose(1, 2).reshape(batch, tokens, d_model))


def feed_forward_layer(x, up, down):
    """Two matrix multiplications with a GELU in between, applied per token."""
    hidden = F.gelu(up(x))
    return down(hidden)


class PositionalEncoding(nn.Module):
    """Adds a fixed pattern of sines and cosines, so that the model can distinguish positions."""

    def __init__(self, d_model, max_tokens=4096):
        super().__init__()
        position = torch.arange(max_tokens).unsqueeze(1)
        rate = torch.exp(torch.arange(0, d_model, 2) * (-math.log(10000.0) / d_model))
        angle = position * rate
        self.register_buffer("pattern", torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(1))

    def forward(self, x):
        return x + self.pattern[: x.shape[1]]


class TransformerBlock(nn.Module):
    """Attention, then feed-forward; each on normalised input and added to what came in."""

    def __init__(self, d_model, nhead):
        super().__init__()
        self.nhead = nhead
        self.attention_norm = nn.LayerNorm(d_model)
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.out = nn.Linear(d_model, d_model)
        self.feed_forward_norm = nn.LayerNorm(d_model)
        self.up = nn.Linear(d_model, 4 * d_model)
        self.down = nn.Linear(4 * d_model, d_model)

    def forward(self, x):
        with layer_range("attention_layer"):
            x = x + attention_layer(self.attention_norm(x), self.qkv, self.out, self.nhead)
        with layer_range("feed_forward_layer"):
            return x + feed_forward_layer(self.feed_forward_norm(x), self.up, self.down)


class HeavyLayer(nn.Module):
    """tanh(x @ w1 @ w2 @ w3 + bias) for x (batch, tokens, d_model), the same for every token; the weights
    are (d_model, d_model)."""

    def __init__(self, d_model, implementation=HEAVY):
        super().__init__()
        self.implementation = implementation
        self.w1 = nn.Parameter(torch.randn(d_model, d_model) * d_model**-0.5)
        self.w2 = nn.Parameter(torch.randn(d_model, d_model) * d_model**-0.5)
        self.w3 = nn.Parameter(torch.randn(d_model, d_model) * d_model**-0.5)
        self.bias = nn.Parameter(torch.zeros(d_model))

    def forward(self, x):
        return heavy_layer(x, self.w1, self.w2, self.w3, self.bias, implementation=self.implementation)


class TransformerWithHeavyLayer(nn.Module):
    """Token numbers (batch, tokens) in, one score per word of the vocabulary and position out."""

    def __init__(self, vocab_size=10000, d_model=512, nhead=8, num_layers=4, heavy=HEAVY):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, d_model)
        self.positional_encoding = PositionalEncoding(d_model)
        self.blocks = nn.ModuleList(TransformerBlock(d_model, nhead) for _ in range(num_layers))
        self.heavy = HeavyLayer(d_model, implementation=heavy)
        self.output_norm = nn.LayerNorm(d_model)
        self.output_projection = nn.Linear(d_model, vocab_size)

    def forward(self, tokens):
        with layer_range("embedding"):
            x = self.embedding(tokens)
        with layer_range("positional_encoding"):
            x = self.positional_encoding(x)
        for index, block in enumerate(self.blocks):
            with layer_range(f"transformer_block_{index}"):
                x = block(x)
        with layer_range("HeavyLayer"):
            x = x + self.heavy(x)
        with layer_range("output_projection"):
            return self.output_projection(self.output_norm(x))
