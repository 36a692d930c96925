# SPDX-License-Identifier: Apache-2.0
"""The transformer with HeavyLayer once more, with its ops by a flag: PyTorch's, or all of this package's.

Whatever the flag, the parameters are the same and so is the function, up to rounding; a state_dict of one is
one of the other, and without `hidden_norm` one of the exercise's model too.
"""

from __future__ import annotations

from typing import Literal, cast, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from profiling_lab.models.layers import (
    HEAVY,
    HeavyBlock,
    PositionalEncoding,
    TransformerBlock,
    attention_layer,
    feed_forward_layer,
    layer_range,
)
from profiling_lab.ops import flash_attention, layer_norm_gelu
from profiling_lab.ops.heavy_layer import Implementation

Ops = Literal["torch", "fast"]
_SIXTEEN_BITS = (torch.bfloat16, torch.float16)


class Block(TransformerBlock):  # type: ignore[misc]  # torch is untyped here
    """A block with its ops by a flag. With hidden_norm, hidden features are normalised before their GELU."""

    def __init__(self, d_model: int, nhead: int, ops: Ops = "fast", hidden_norm: bool = False) -> None:
        super().__init__(d_model, nhead)
        self.ops: Ops = ops
        self.hidden_norm = nn.LayerNorm(4 * d_model) if hidden_norm else None

    def forward(self, x: Tensor) -> Tensor:
        with layer_range("attention_layer"):
            x = x + self._attention(self.attention_norm(x))
        with layer_range("feed_forward_layer"):
            return x + self._feed_forward(self.feed_forward_norm(x))

    def _attention(self, x: Tensor) -> Tensor:
        if self.ops == "torch":
            return cast(Tensor, attention_layer(x, self.qkv, self.out, self.nhead))
        q, k, v = self.qkv(x).unflatten(-1, (3, self.nhead, -1)).unbind(-3)
        if (
            q.is_cuda and q.dtype not in _SIXTEEN_BITS
        ):  # tensor cores want 16 bits, so there is no kernel for more
            q, k, v = (t.transpose(1, 2) for t in (q, k, v))
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
        else:
            mixed = flash_attention(q, k, v, causal=True)
        return cast(Tensor, self.out(mixed.flatten(2)))

    def _feed_forward(self, x: Tensor) -> Tensor:
        if self.hidden_norm is None:
            return cast(Tensor, feed_forward_layer(x, self.up, self.down))
        hidden, norm = self.up(x), self.hidden_norm
        if self.ops == "torch":
            hidden = F.gelu(norm(hidden))
        else:
            hidden = layer_norm_gelu(hidden, norm.weight, norm.bias, norm.eps)
        return cast(Tensor, self.down(hidden))

    def extra_repr(self) -> str:
        return f"nhead={self.nhead}, ops={self.ops!r}"


class Transformer(nn.Module):  # type: ignore[misc]  # torch is untyped here
    """Token numbers (batch, tokens) in, one score per word of the vocabulary and position out.

    ops:          "fast" runs flash_attention, layer_norm_gelu and heavy_layer's fast implementation; "torch"
                  runs scaled_dot_product_attention, layer_norm and gelu, and the heavy_layer that `heavy`
                  names. flash_attention has kernels for 16 bits, so float32 without autocast keeps torch's on
                  CUDA.
    heavy:        "slow", "loop" or "fast", for ops="torch"; None is what the exercise has.
    hidden_norm:  normalise the hidden features of each feed-forward layer before their GELU. The exercise's
                  model does not, and so has no place for layer_norm_gelu.
    """

    def __init__(
        self,
        vocab_size: int = 10000,
        d_model: int = 512,
        nhead: int = 8,
        num_layers: int = 4,
        *,
        ops: Ops = "fast",
        heavy: Implementation | None = None,
        hidden_norm: bool = False,
    ) -> None:
        super().__init__()
        if ops not in get_args(Ops):
            raise ValueError(f"Transformer: ops is {ops!r}, expected one of {get_args(Ops)}")
        if ops == "fast" and heavy not in (None, "fast"):
            raise ValueError(f"Transformer: heavy is {heavy!r}, but ops='fast' has the fast one")
        self.ops: Ops = ops
        self.embedding = nn.Embedding(vocab_size, d_model)
        self.positional_encoding = PositionalEncoding(d_model)
        self.blocks = nn.ModuleList(Block(d_model, nhead, ops, hidden_norm) for _ in range(num_layers))
        self.heavy = HeavyBlock(d_model, "fast" if ops == "fast" else heavy or HEAVY)
        self.output_norm = nn.LayerNorm(d_model)
        self.output_projection = nn.Linear(d_model, vocab_size)

    def forward(self, tokens: Tensor) -> Tensor:
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
            return cast(Tensor, self.output_projection(self.output_norm(x)))


class TransformerWithHeavyLayer(Transformer):
    """The exercise's model: PyTorch's ops, and the heavy_layer that `heavy` names."""

    def __init__(
        self,
        vocab_size: int = 10000,
        d_model: int = 512,
        nhead: int = 8,
        num_layers: int = 4,
        heavy: Implementation = HEAVY,
    ) -> None:
        super().__init__(vocab_size, d_model, nhead, num_layers, ops="torch", heavy=heavy)
