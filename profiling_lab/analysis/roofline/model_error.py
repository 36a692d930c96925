# SPDX-License-Identifier: Apache-2.0
"""How far the counted bytes and FLOPs are from what ncu measures, by kind of operator.

model_error.json is made from benchmarks/results/roofline_accuracy.jsonl by tools/roofline_error.py.
"""

from __future__ import annotations

import json
from functools import lru_cache
from importlib.resources import files

from profiling_lab.records import dataclass

_LOOSE_FRAC = 0.2


@dataclass(frozen=True, slots=True)
class KindError:
    """Medians of |counted - measured| / measured over the pairs of a kind."""

    pairs: int
    bytes_frac: float
    flops_frac: float | None
    """None: its FLOPs are not counted"""

    @property
    def is_loose(self) -> bool:
        return self.bytes_frac > _LOOSE_FRAC or (self.flops_frac or 0) > _LOOSE_FRAC


def loose() -> float:
    """From here on a kind is named as inexact."""
    return _LOOSE_FRAC


@lru_cache(maxsize=1)
def errors() -> dict[str, KindError]:
    """By kind; a kind that was not measured is absent."""
    text = (files("profiling_lab.analysis.roofline") / "model_error.json").read_text(encoding="utf-8")
    return {kind: KindError(*values) for kind, values in json.loads(text)["kinds"].items()}
