# SPDX-License-Identifier: Apache-2.0
"""Which Fourier transforms have a length with a large prime factor?

cuFFT is fast for lengths that are products of 2, 3, 5 and 7. For others it uses Bluestein's algorithm: two
transforms of more than twice the length, in complex numbers also where the input is real. That is four to
eight times the work. The algorithm is in the kernel's name. Lines of one function are one finding, at the
line that costs most.
"""

from __future__ import annotations

import numpy as np

from profiling_lab.rules.finding import RuleResult, Threshold
from profiling_lab.rules.kernel_families import KNOWN, names_tell_little
from profiling_lab.rules.layout_copies import by_function
from profiling_lab.rules.rule import Rule, Time
from profiling_lab.rules.view import View

SHARE = Threshold("share", "such transforms of a function", 0.03, "of the GPU time, from", "as layout_copies")
BLUESTEIN = r"bluestein"
WINS_FRAC = 0.8
REMEDY = (
    "pad to a length that is a product of 2, 3, 5 and 7: 8192 instead of 8191; a "
    "convolution needs at least the sum of both lengths less one, and longer does no harm"
)


def check(view: View) -> RuleResult:
    slow = view.kernels_named(BLUESTEIN)
    saved = np.full(len(view.operations), WINS_FRAC)
    what = "Fourier transforms have a length with a large prime factor"
    return by_function(view, slow, view[SHARE], what, REMEDY, saved) or names_tell_little(view) or ()


RULE = Rule(
    "slow_fourier",
    "Which Fourier transforms have a slow length?",
    (SHARE, KNOWN),
    check,
    __doc__ or "",
    time=Time.BUSY,
    wins_frac=WINS_FRAC,
)
