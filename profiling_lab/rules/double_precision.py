# SPDX-License-Identifier: Apache-2.0
"""Which functions compute in double precision? A tensor made from a NumPy array is float64 by default, and
what is computed with it becomes float64, too.

Matrix multiplications (`f64`, `dgemm`, `d884`), Fourier transforms of cuFFT and torch's elementwise kernels
are recognised by the `double` in their name. GPUs for machine learning compute float64 at a fraction of the
rate of bfloat16. A matrix multiplication in another precision saves nearly all of its time. The other kernels
are limited by memory, and half as many bytes save half of it: the cost is their time, for all but matrix
multiplications half of it. A float64 tensor makes float64 of what the function calls with it: functions that
call each other are one finding, at the line that costs most. At lines that factorise or solve, float64 may be
meant: a finding that is mostly there says so and has medium severity at most. If the program needs double
precision elsewhere, as a simulation may, skip this rule.
"""

from __future__ import annotations

import numpy as np

from profiling_lab.analysis.critical_path.savings import shorter
from profiling_lab.records import replace
from profiling_lab.rules.callers import connected
from profiling_lab.rules.costs import gpu_time
from profiling_lab.rules.factorisations import REMEDY as OF_SOLVES
from profiling_lab.rules.factorisations import mostly_solve
from profiling_lab.rules.finding import RuleResult, Threshold, ms, percent
from profiling_lab.rules.kernel_families import KNOWN, names_tell_little
from profiling_lab.rules.rule import Rule, Time
from profiling_lab.rules.view import View
from profiling_lab.trace.attribution import Phase
from profiling_lab.trace.columns import unique

SHARE = Threshold("share", "kernels in float64", 0.02, "of the GPU time, from", "ours")
PRODUCTS = r"f64f64|dgemm|_d884|d16816|gem[mv]\w*<[^>]*\bdouble\b"
# Many kernels in float32 have parameters in double: only the type of their elements counts.
OTHERS = (
    r"fft\w*<.*\bdouble2?\b|[dDzZ]2[zZdD]_kernel|"
    r"(Functor\w*|Op|Ops|kernel|forward|backward)<(c10::complex<)?double\b|lambda\((c10::complex<)?double\b|"
    # Compiled by torch when they are first called, for 16 bytes at once: two of float64, four of float32.
    r"^((l|di|tri|poly)gamma|zeta|i[01]e?|erfcx|log_ndtr|ndtri|\w*bessel)\w*_vectorized2_kernel"
)
WINS_FRAC = 0.9
REMEDY = "convert to float32 where the tensor is made (torch.from_numpy(a).float(), dtype=torch.float32)"


def check(view: View) -> RuleResult:
    duration = view.operations.duration_ns
    products = view.kernels_named(PRODUCTS)
    double = np.flatnonzero(products | view.kernels_named(OTHERS))
    findings = []
    for mine in connected(view, double):
        total_ns = int(duration[mine].sum())
        if total_ns < view[SHARE] * view.gpu_ns:
            continue
        of_products = mine[products[mine]]
        lines = unique(view.operation_place[mine])
        functions = len(unique(view.function_of_line[lines]))
        of = "one function" if functions == 1 else f"{functions} functions that call each other"
        backward = (view.attribution.phase[mine] == Phase.BACKWARD).any()
        products_ns = gpu_time(view, of_products) if len(of_products) else 0
        solve = mostly_solve(view, mine)
        finding = view.finding(
            f"{len(mine):,} kernels in float64, {len(of_products):,} of them matrix multiplications"
            f"{f', at {len(lines)} lines of {of},' if len(lines) > 1 else ''} take {ms(total_ns)}, "
            f"{percent(total_ns / view.gpu_ns)} of the GPU time"
            f"{', forward and backward' if backward else ''}"
            f"{', mostly at lines that factorise or solve, where it may be meant' if solve else ''}",
            cost_ns=(gpu_time(view, mine) + products_ns) // 2,
            cost_of="GPU time of the matrix multiplications, and half of that of the other kernels",
            place=view.hottest_line(mine, duration[mine]),
            rows=mine,
            weight=duration[mine],
            remedy=OF_SOLVES if solve else REMEDY,
            confidence="low" if solve else "high",
            saving=shorter(mine, np.where(products[mine], 1 - WINS_FRAC, 1 - WINS_FRAC / 2)),
        )
        findings.append(replace(finding, severity_at_most="medium") if solve else finding)
    return findings or names_tell_little(view) or ()


RULE = Rule(
    "double_precision",
    "Which functions compute in double precision?",
    (SHARE, KNOWN),
    check,
    __doc__ or "",
    time=Time.BUSY,
    wins_frac=WINS_FRAC,
)
