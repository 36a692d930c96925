# SPDX-License-Identifier: Apache-2.0
"""Casts that are made only because a product is in float32: without it they are gone, too."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from profiling_lab.rules.kernel_families import rearranging
from profiling_lab.rules.neighbours import right_before, right_behind
from profiling_lab.rules.view import View
from profiling_lab.trace.attribution import Phase
from profiling_lab.trace.columns import I64, unique

NO_CASTS = "; the casts to and from float32 around them, as x.float(), then go"
_TO_16_BITS = r"(bfloat16|half)_copy_kernel"


def casts_around(view: View, products: npt.NDArray[np.integer]) -> I64:
    """Casts at the lines of these products of float32: those of a result to 16 bits right behind them; and
    those of what they read, where backward casts its gradient to 16 bits. So that was the dtype before, and
    the product could be made in it. Of other casts, as of integers, the names do not say what they cast from.
    """
    _, casts = rearranging(view)
    of, behind = right_behind(view, products, casts & view.kernels_named(_TO_16_BITS))
    phase, place = view.attribution.phase, view.operation_place
    lines = unique(place[of[phase[of] == Phase.BACKWARD]])
    read_by, before = right_before(view, products, casts)
    of_input = (phase[read_by] == Phase.FORWARD) & np.isin(place[read_by], lines)
    return unique(np.concatenate([behind, before[of_input]]))
