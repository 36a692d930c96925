# SPDX-License-Identifier: Apache-2.0
"""The layers of the transformer with HeavyLayer, each in an NVTX range of its own name.

The first exercise ships the same model in one file, so that a learner has all of it in hand; a test holds
the two together.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from profiling_lab.ops import heavy_layer
from profiling_lab.ops.heavy_layer import Implementation

HEAVY: Implementation = "slow"
"""which implementation of heavy_layer a model gets unless it asks"""
_ON_GPU = torch.cuda.is_available()


def layer_range(name: str) -> AbstractContextManager[object]:
    """An NVTX range around one layer. Without CUDA it does nothing."""
    return cast(AbstractContextManager[object], torch.cuda.nvtx.range(name)) if _ON_GPU else nullcontext()


def attention_layer(x: Tensor, qkv: nn.Linear, out: nn.Linear, nhead: int) -> Tensor:
    """Causal self-attention over x (batch, tokens, d_model): no token sees the ones after it."""
    batch, tokens, d_model = x.shape
    q, k, v = qkv(x).view(batch, tokens, 3, nhead, d_model // nhead).permute(2, 0, 3, 1, 4)
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return out(mixed.transpose(1, 2).reshape(batch, tokens, d_model))


def feed_forward_layer(x: Tensor, up: nn.Linear, down: nn.Linear) -> Tensor:
    """Two matrix multiplications with a GELU in between, applied per token."""
    hidden = F.gelu(up(x))
    return down(hidden)


class PositionalEncoding(nn.Module):  # type: ignore[misc]  # torch is untyped here
    """Adds a fixed pattern of sines and cosines, so that the model can distinguish positions."""

    def __init__(self, d_model: int, max_tokens: int = 4096) -> None:
        super().__init__()
        position = torch.arange(max_tokens).unsqueeze(1)
        rate = torch.exp(torch.arange(0, d_model, 2) * (-math.log(10000.0) / d_model))
        angle = position * rate
        self.register_buffer("pattern", torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(1))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.pattern[: x.shape[1]]


class TransformerBlock(nn.Module):  # type: ignore[misc]  # torch is untyped here
    """Attention, then feed-forward; each on normalised input and added to what came in."""

    def __init__(self, d_model: int, nhead: int) -> None:
        super().__init__()
        self.nhead = nhead
        self.attention_norm = nn.LayerNorm(d_model)
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.out = nn.Linear(d_model, d_model)
        self.feed_forward_norm = nn.LayerNorm(d_model)
        self.up = nn.Linear(d_model, 4 * d_model)
        self.down = nn.Linear(4 * d_model, d_model)

    def forward(self, x: Tensor) -> Tensor:
        with layer_range("attention_layer"):
            x = x + attention_layer(self.attention_norm(x), self.qkv, self.out, self.nhead)
        with layer_range("feed_forward_layer"):
            return x + feed_forward_layer(self.feed_forward_norm(x), self.up, self.down)


class HeavyBlock(nn.Module):  # type: ignore[misc]  # torch is untyped here
    """tanh(x @ w1 @ w2 @ w3 + bias) for x (batch, tokens, d_model), the same for every token; the weights
    are (d_model, d_model). What the exercise's file calls HeavyLayer, with its names and first values.
    """

    def __init__(self, d_model: int, implementation: Implementation = HEAVY) -> None:
        super().__init__()
        self.implementation = implementation
        self.w1 = nn.Parameter(torch.randn(d_model, d_model) * d_model**-0.5)
        self.w2 = nn.Parameter(torch.randn(d_model, d_model) * d_model**-0.5)
        self.w3 = nn.Parameter(torch.randn(d_model, d_model) * d_model**-0.5)
        self.bias = nn.Parameter(torch.zeros(d_model))

    def forward(self, x: Tensor) -> Tensor:
        return heavy_layer(x, self.w1, self.w2, self.w3, self.bias, implementation=self.implementation)
