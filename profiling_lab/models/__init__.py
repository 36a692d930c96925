# SPDX-License-Identifier: Apache-2.0
"""The transformer with HeavyLayer, importable like any other part of the package.

Transformer has its ops by a flag: Transformer(ops="torch"), Transformer(ops="fast").
TransformerWithHeavyLayer is the model of the first exercise.
"""

from __future__ import annotations

from profiling_lab.models.layers import HeavyBlock, PositionalEncoding, TransformerBlock, attention_layer
from profiling_lab.models.transformer import Block, Transformer, TransformerWithHeavyLayer

__all__ = [
    "Block",
    "HeavyBlock",
    "PositionalEncoding",
    "Transformer",
    "TransformerBlock",
    "TransformerWithHeavyLayer",
    "attention_layer",
]
