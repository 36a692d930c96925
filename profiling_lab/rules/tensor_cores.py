# SPDX-License-Identifier: Apache-2.0
"""Do matrix multiplications run without tensor cores? They are several times faster with them.

Matrix multiplications, convolutions and attention are recognised by kernel name, and so is the use of
tensor cores: cuBLAS, cuDNN and CUTLASS put the instruction into the name (`ffma`, `simt` and `sgemm`
against `s16816`, `tensorop`, `gmma`). Kernels of torch's matrix multiplication operators count too, whatever
their name; custom kernels with other names are not seen. Attention of float32 makes each product of three in
TF32, at a sixth of the rate of bfloat16: it counts as without. The cost is all of this time. Casts
that only such products need are saved, too.
"""

from __future__ import annotations

import re

import numpy as np

from profiling_lab.analysis.critical_path.savings import fewer, shorter
from profiling_lab.analysis.operators import launched_by
from profiling_lab.rules.casts_around import NO_CASTS, casts_around
from profiling_lab.rules.costs import gpu_time
from profiling_lab.rules.finding import OPERATORS, Abstain, RuleResult, Threshold, ms, percent, where
from profiling_lab.rules.kernel_families import FLOAT32_ATTENTION, MATRIX, NO_TENSOR_CORES, TENSOR_CORES
from profiling_lab.rules.rule import Rule, Time
from profiling_lab.rules.unaligned_products import unaligned_products
from profiling_lab.rules.view import View
from profiling_lab.trace.operation_classes import OperationClass

SHARE = Threshold("share", "products without them", 0.05, "of the GPU time, at least", "ours: worth it")
FIRST_CAPABILITY = Threshold(
    "capability", "GPUs that have them", 7.0, "compute capability, from", "CUDA: Volta"
)
WINS_FRAC = 0.85
_AMPERE = 8.0  # earlier tensor cores support neither bfloat16 nor TF32
COUNTER = "`ncu` with the metric sm__inst_executed_pipe_tensor.sum"
OF_PRODUCTS = r"^aten::(_?(add|b|badd)?mm|addmv|linear|matmul|_?convolution|conv\dd|cudnn_conv|_scaled_)"
REMEDY = (
    "torch.autocast('cuda', torch.bfloat16), or torch.set_float32_matmul_precision('high') for TF32, "
    "which attention does not use; sizes in multiples of 8"
)
BEFORE_AMPERE = "torch.autocast('cuda', torch.float16) with torch.amp.GradScaler; sizes in multiples of 8"


def check(view: View) -> RuleResult:
    capabilities = [float(gpu.compute) for gpu in view.trace.gpus if re.fullmatch(r"\d+\.\d+", gpu.compute)]
    if capabilities and max(capabilities) < view[FIRST_CAPABILITY]:
        return ()
    # Sharded models gather their weights inside the same operators.
    products = view.kernels_named(MATRIX) | (view.kernels & launched_by(view.trace, OF_PRODUCTS))
    products &= view.classes != OperationClass.COMMUNICATION
    if not products.any():
        if view.knows_python and any(name.startswith("aten::") for name in view.trace.ranges.names):
            return ()
        return Abstain("no kernel name is that of a known matrix multiplication", OPERATORS)
    attention = products & view.kernels_named(FLOAT32_ATTENTION)
    without = (products & view.kernels_named(NO_TENSOR_CORES)) | attention
    unknown = products & ~without & ~view.kernels_named(TENSOR_CORES)
    duration = view.operations.duration_ns
    counted = (products, without, unknown, attention)
    all_ns, without_ns, unknown_ns, attention_ns = (int(duration[rows].sum()) for rows in counted)
    if unknown_ns > all_ns / 2:
        share = percent(unknown_ns / all_ns)
        why = f"the names of kernels with {share} of the matrix multiplication time are not known"
        return Abstain(why, COUNTER)
    least_ns = view[SHARE] * view.gpu_ns
    unaligned = unaligned_products(view, products & ~without, least_ns)
    if without_ns < least_ns:
        return unaligned or ()
    rows = np.flatnonzero(without)
    place, casts = view.hottest_line(rows, duration[rows]), casts_around(view, rows)
    return [
        view.finding(
            f"{ms(without_ns)}, {percent(without_ns / view.gpu_ns)} of the GPU time, are matrix "
            f"multiplications and convolutions without tensor cores, {len(rows):,} kernels"
            f"{f', with {ms(attention_ns)} of attention in float32' * (attention_ns > 0)}"
            f"{where(place, ', most of it on this line')}",
            cost_ns=gpu_time(view, rows),
            cost_of="GPU time of these kernels",
            place=place,
            rows=rows,
            weight=duration[rows],
            remedy=(BEFORE_AMPERE if capabilities and max(capabilities) < _AMPERE else REMEDY)
            + NO_CASTS * bool(len(casts)),
            confidence="medium" if capabilities else "low",
            saving=shorter(rows, 1 - WINS_FRAC) | fewer(casts),
        ),
        *unaligned,
    ]


RULE = Rule(
    "tensor_cores",
    "Do matrix multiplications run without tensor cores?",
    (SHARE, FIRST_CAPABILITY),
    check,
    __doc__ or "",
    time=Time.BUSY,
    wins_frac=WINS_FRAC,
)
