# SPDX-License-Identifier: Apache-2.0
"""Where float64 may be meant: factorisations and solves multiply rounding errors by the condition number of
their matrix. Whether float32 would do there is in no recording.
"""

from __future__ import annotations

import numpy as np

from profiling_lab.rules.view import View
from profiling_lab.trace.columns import I64

# LAPACK's names, as cuSOLVER and cuBLAS use them.
SOLVES = r"(?i)(potr[fis]|getr[fis]|geqrf|trs[mv]|trtri|sytr[dfs]|syev|gesv)\w*<[^>]*\bdouble\b"
MOST_FRAC = 0.5
"""of the time, at lines that factorise or solve"""
LEAST_FRAC = 0.1
"""of it in kernels named so (the others multiply blocks): one small solve makes no model meant"""
REMEDY = (
    "if float32 is exact enough for what is factorised or solved, convert to it where the tensor is made; if "
    "not, keep float64 for that alone"
)


def mostly_solve(view: View, rows: I64) -> bool:
    """Whether most of the time of these kernels in float64 is at lines that factorise or solve in it."""
    place, duration = view.operation_place, view.operations.duration_ns
    solves = view.kernels_named(SOLVES) & (place >= 0) & np.isin(place, place[rows])
    there = rows[np.isin(place[rows], place[solves])]
    there_ns, solves_ns, total_ns = (int(duration[part].sum()) for part in (there, solves, rows))
    return there_ns >= MOST_FRAC * total_ns and solves_ns >= LEAST_FRAC * total_ns
