# SPDX-License-Identifier: Apache-2.0
"""The transformer with HeavyLayer, importable like any other part of the package.

Its source stays with the exercise that teaches with it: a learner copies that folder and has the whole
model in hand.
"""

from __future__ import annotations

from profiling_lab.exercises.e17_python_backtrace.model import (
    HeavyLayer,
    PositionalEncoding,
    TransformerBlock,
    TransformerWithHeavyLayer,
    attention_layer,
)

__all__ = [
    "HeavyLayer",
    "PositionalEncoding",
    "TransformerBlock",
    "TransformerWithHeavyLayer",
    "attention_layer",
]
