# SPDX-License-Identifier: Apache-2.0
"""Gradients of an input that nothing uses: `x.requires_grad_()` before frozen layers.

Backward needs to come no further than to the first parameter that is trained. What it does behind the last
gradient of a parameter is for the input alone. That is so where none of its nodes multiplies for a weight or
sums over rows, as each gradient of a weight, a scale or a bias does, and where it ends with the gradient of
the input of a layer: a parameter before would be looked up, added or joined, and have kernels of its own.
Adversarial examples, saliency and penalties do want it: where a line says `grad`, or two optimizers make
steps, nothing is said.
"""

from __future__ import annotations

import re

import numpy as np

from profiling_lab.analysis.critical_path.savings import fewer
from profiling_lab.analysis.stats import grouped
from profiling_lab.rules.costs import gpu_time
from profiling_lab.rules.finding import Finding, ms, percent
from profiling_lab.rules.kernel_families import MATRIX
from profiling_lab.rules.own_frames import own_frames
from profiling_lab.rules.passes import Passes, of_nodes
from profiling_lab.rules.view import View
from profiling_lab.trace.columns import I64, unique
from profiling_lab.trace.phases import LinePhase

FEWEST, MOSTLY_FRAC = 3, 0.9
"""layers, and of the passes that train something"""
OF_WEIGHTS = r"wgrad|_nt[nt]?(_|$)|::reduce_kernel|gammabeta|embedding|index|scatter"
"""products for a weight contract the rows of both of their matrices: nt in the names of cuBLAS"""
OF_INPUTS = r"dgrad|_[nt]n[nt]?(_|$)"
ENDS = r"(Layer|Group|Batch)NormBackward|ScaledDotProduct\w*AttentionBackward"
LAYERS = r"^(Addmm|Mm|Linear|Convolution|CudnnConvolution)Backward"
USED = re.compile(r"\bgrads?\b")
REMEDY = (
    "no requires_grad_() for what goes into frozen layers, or run them under no_grad(): gradients are "
    "needed from the first parameter on that is trained"
)


def of_inputs(view: View, passes: Passes, least_ns: float) -> list[Finding]:
    rows, duration = _behind_parameters(view, passes), view.operations.duration_ns
    total_ns = int(duration[rows].sum())
    if total_ns < max(least_ns, 1) or _wanted(view):
        return []
    return [
        view.finding(
            "backward goes on behind the last gradient of a parameter, for the gradient of an input that "
            f"nothing seems to use: {ms(total_ns)}, {percent(total_ns / view.gpu_ns)} of the GPU time, in "
            f"{len(rows):,} operations",
            cost_ns=gpu_time(view, rows),
            cost_of="GPU time of this gradient",
            place=view.hottest_line(rows, duration[rows]),
            rows=rows,
            weight=duration[rows],
            remedy=REMEDY,
            confidence="medium",
            saving=fewer(rows),
        )
    ]


def _wanted(view: View) -> bool:
    updates = view.operation_place[view.attribution.line_phase == LinePhase.OPTIMIZER]
    texts = view.trace.source_texts
    says = any(USED.search(texts.get((frame.file, frame.line), "")) for frame in own_frames(view))
    return says or len(unique(updates)) != 1


def _behind_parameters(view: View, passes: Passes) -> I64:
    """What passes that train something launch behind that, if nearly all do."""
    named = {p: view.kernels_named(p)[passes.rows] for p in (MATRIX, OF_WEIGHTS, OF_INPUTS)}
    layer, ends = (of_nodes(view, pattern)[passes.rows] for pattern in (LAYERS, ENDS))
    several = np.bincount(passes.evaluation, weights=named[MATRIX] & layer) > 1
    trains = named[OF_WEIGHTS] | several[passes.evaluation] | of_nodes(view, "^AccumulateGrad")[passes.rows]
    one = named[MATRIX] & layer & ~trains
    found, training = list[I64](), 0
    for _, its in grouped(np.arange(len(passes)), passes.number):
        if trains[its].any():
            training += 1
            tail = its[its > its[trains[its]][-1]]
            last = tail[passes.evaluation[tail] == passes.evaluation[its[-1]]]
            if one[tail].sum() >= FEWEST and (ends[last] | named[OF_INPUTS][last]).any():
                found.append(passes.rows[tail])
    return np.concatenate(found) if found and len(found) >= MOSTLY_FRAC * training else passes.rows[:0]
