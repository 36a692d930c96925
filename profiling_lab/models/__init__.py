# SPDX-License-Identifier: Apache-2.0
"""The transformer with HeavyLayer, importable like any other part of the package.

TransformerWithHeavyLayer and its parts are the exercise's: a learner copies that folder and has the whole
model in hand. Transformer is the same model with its ops by a flag: Transformer(ops="torch"),
Transformer(ops="fast").
"""

from __future__ import annotations

from profiling_lab.exercises.e17_python_backtrace.model import (
    HeavyLayer,
    PositionalEncoding,
    TransformerBlock,
    TransformerWithHeavyLayer,
    attention_layer,
)
from profiling_lab.models.transformer import Block, Transformer

__all__ = [
    "Block",
    "HeavyLayer",
    "PositionalEncoding",
    "Transformer",
    "TransformerBlock",
    "TransformerWithHeavyLayer",
    "attention_layer",
]
