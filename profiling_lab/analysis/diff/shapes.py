# SPDX-License-Identifier: Apache-2.0
"""The shapes that a program works on, as far as its kernels show: an elementwise kernel is launched with as
many blocks as its tensor needs, so the same kernel with twice the blocks works on twice the batch.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from profiling_lab.trace.columns import combined
from profiling_lab.trace.trace import Trace

_ELEMENTWISE = re.compile(r"elementwise_kernel|triton_poi")
_SAME_FRAC = 0.01
_MOST_FRAC = 0.5
"""of the launches of kernels that both sides have: with more of them in other sizes, the work is another"""


class ElementwiseShape(NamedTuple):
    """The blocks with which one kernel is launched most often."""

    kernel: str
    """a digest of its name, template arguments included: names are long, and only compared"""
    launches: int
    blocks: int


def elementwise_shapes(trace: Trace) -> tuple[ElementwiseShape, ...]:
    """Of every elementwise kernel; () where the file does not say."""
    found = trace.launch_shapes
    if found is None or not len(found.number):
        return ()
    names = trace.operations.names
    wanted = np.array([*(_ELEMENTWISE.search(name) is not None for name in names), False], dtype=bool)
    rows = np.flatnonzero(wanted[trace.operations.name] & (found.number >= 0))
    blocks = np.array([shape.blocks for shape in found.shapes] or [0], dtype=np.int64)[found.number[rows]]
    number, distinct = combined(trace.operations.name[rows], blocks)
    most: dict[str, ElementwiseShape] = {}
    for (name, size), launches in zip(distinct, np.bincount(number).tolist(), strict=True):
        digest = hashlib.blake2b(names[name].encode(), digest_size=8).hexdigest()
        shape = ElementwiseShape(digest, launches, size)
        most[digest] = max(most.get(digest, shape), shape)
    return tuple(sorted(most.values()))


def same_shapes(
    before: Sequence[ElementwiseShape], after: Sequence[ElementwiseShape]
) -> tuple[bool | None, float, float]:
    """Whether both work on the same shapes, None where unknown; and the blocks of the kernels that both
    have, on average.
    """
    theirs = {shape.kernel: shape for shape in before}
    pairs = [(theirs[ours.kernel], ours) for ours in after if ours.kernel in theirs]
    launches = sum(shape.launches for shape, _ in pairs)
    if not launches:
        return None, 0.0, 0.0
    changed = sum(
        old.launches for old, new in pairs if abs(new.blocks - old.blocks) > _SAME_FRAC * old.blocks
    )
    means = [sum(pair[0].launches * pair[side].blocks for pair in pairs) / launches for side in (0, 1)]
    return changed <= _MOST_FRAC * launches, means[0], means[1]
