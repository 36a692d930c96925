# SPDX-License-Identifier: Apache-2.0
"""Copies to a layout that cuDNN converts at once: one layout throughout needs neither."""

from __future__ import annotations

import numpy as np

from profiling_lab.analysis.critical_path.savings import fewer
from profiling_lab.records import replace
from profiling_lab.rules.chains import by_stream
from profiling_lab.rules.finding import Finding
from profiling_lab.rules.kernel_families import CONVERTING
from profiling_lab.rules.view import View
from profiling_lab.trace.attribution import Phase
from profiling_lab.trace.columns import I64

ALL_CONVERTED = (
    "cuDNN converts at once what is copied here: convert model and input once to channels_last, and drop "
    "contiguous(), so that neither is needed"
)


def with_conversions(view: View, finding: Finding) -> Finding:
    """A finding about copies, with the conversions that their layout asks for."""
    saving = finding.saving
    if saving is None or not len(rows := _converted_at_once(view, saving.operations)):
        return finding
    return replace(finding, remedy=ALL_CONVERTED, saving=saving | fewer(rows))


def _converted_at_once(view: View, copies: I64) -> I64:
    """The conversions for cuDNN, forward and backward, at lines where most of what forward converts first is
    what one of these copies wrote right before.
    """
    order, begins = by_stream(view)
    place, converts = view.operation_place, view.kernels_named(CONVERTING)
    before = np.where(begins, -1, np.roll(order, 1))
    first = converts[order] & (view.attribution.phase[order] == Phase.FORWARD) & (place[order] >= 0)
    first &= (before < 0) | (place[before] != place[order])
    of_copies = first & np.isin(before, copies)
    all_first, its = (np.bincount(place[order[each]], minlength=view.lines) for each in (first, of_copies))
    return np.flatnonzero(converts & np.isin(place, np.flatnonzero(2 * its > all_first)))
