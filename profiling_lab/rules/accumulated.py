# SPDX-License-Identifier: Apache-2.0
"""All-reduces of gradients that are not used yet: each micro-batch of an accumulation sends what it has.

DistributedDataParallel sums up the gradients of all GPUs in each backward. Where an optimizer uses them
after several, the last backward can send their sum alone. So an all-reduce need not be if as many follow,
behind the forward of another micro-batch, before the optimizer. One that a layer of a model makes, as with
tensor parallelism, belongs to a node of autograd of its own and is needed.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from profiling_lab.analysis.stats import grouped
from profiling_lab.rules.kernel_families import MATRIX
from profiling_lab.rules.view import Mask, View
from profiling_lab.trace.attribution import Phase
from profiling_lab.trace.columns import I64, numbered
from profiling_lab.trace.phases import LinePhase

OF_ACCUMULATED = (
    "send accumulated gradients once: forward and backward of all micro-batches but the last under "
    "`with model.no_sync():`"
)
_ALL_REDUCES, _GRADIENTS = r"all_?reduce", "AccumulateGrad"


def accumulated(view: View, rows: I64) -> I64:
    """Those among the operations of a GPU that need not be."""
    found, start_ns = view.attribution, view.operations.start_ns
    rows = rows[np.argsort(start_ns[rows], kind="stable")]
    updates = start_ns[rows[found.line_phase[rows] == LinePhase.OPTIMIZER]]
    forward = view.kernels_named(MATRIX)[rows] & (found.phase[rows] == Phase.FORWARD)
    forward &= found.line_phase[rows] != LinePhase.RECOMPUTE
    reduces = rows[view.kernels_named(_ALL_REDUCES)[rows]]
    reduces = reduces[~_of_a_layer(view, reduces)]
    if not (len(updates) and len(reduces)):
        return reduces[:0]
    update = np.searchsorted(updates, start_ns[reduces])
    batch = np.searchsorted(start_ns[rows[forward]], start_ns[reduces])
    parts = [mine for _, mine in grouped(np.arange(len(reduces)), numbered(update, batch))]
    again = [
        reduces[mine]
        for mine, behind in pairwise(parts)
        if update[mine[0]] == update[behind[0]] and len(mine) == len(behind)
    ]
    return np.concatenate([reduces[:0], *again])


def _of_a_layer(view: View, rows: I64) -> Mask:
    """Those that a node of autograd launched which is not that of a gradient."""
    calls, call = view.calls, view.attribution.call[rows]
    gradients = np.array([*(_GRADIENTS in name for name in calls.node_names), True], dtype=bool)
    name = np.append(calls.node_name, -1)[call]
    return np.asarray((name >= 0) & ~gradients[name])
