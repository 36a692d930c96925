# SPDX-License-Identifier: Apache-2.0
"""Why memory is copied, where the kernel's name or autograd's node tells, and what to do then.

Autograd cannot change a gradient in place: where forward changed a view in place, it copies all of the base's
gradient, the view's part of it, and the result back (its node CopySlices). `F.relu(linear(x), inplace=True)`
is such a change if x has more than two dimensions, because a linear layer returns a view then. Out of place,
forward does as much and backward copies nothing.
"""

from __future__ import annotations

import numpy as np

from profiling_lab.rules.view import Mask, View

WINDOWS = r"im2col|col2im"
OF_WINDOWS = "unfold copies each window: F.conv2d, a pooling or a view (x.unfold) reads them where they are"
CHANGED_VIEWS, OF_THEIR_BASES = ("CopySlices",), ("AsStridedBackward0",)
OF_CHANGED_VIEWS = (
    "backward copies whole gradients, because a view is changed in place here (CopySlices), such as what a "
    "linear layer returns: do it out of place (no inplace=True, no add_), or change the tensor itself"
)


def of_changed_views(view: View) -> Mask:
    """Operations of backward that would not be, were no view changed in place."""
    changed, place = _of_nodes(view, CHANGED_VIEWS), view.operation_place
    at_their_lines = (place >= 0) & np.isin(place, place[changed])
    return changed | (_of_nodes(view, OF_THEIR_BASES) & at_their_lines)


def reasons(view: View) -> tuple[tuple[Mask, str], ...]:
    """Operations that are copies for a reason of their own, each with the remedy."""
    return (view.kernels_named(WINDOWS), OF_WINDOWS), (of_changed_views(view), OF_CHANGED_VIEWS)


def _of_nodes(view: View, names: tuple[str, ...]) -> Mask:
    """Operations that these nodes of autograd launched."""
    calls, call = view.calls, view.attribution.call
    known = [number for number, name in enumerate(calls.node_names) if name.split("::")[-1] in names]
    return np.asarray((call >= 0) & np.append(np.isin(calls.node_name, known), False)[call])
