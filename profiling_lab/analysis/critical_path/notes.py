# SPDX-License-Identifier: Apache-2.0
"""What a critical path could not know."""

from __future__ import annotations

import numpy as np

from profiling_lab.analysis.critical_path.graph import Graph
from profiling_lab.analysis.critical_path.kinds import Kind
from profiling_lab.analysis.critical_path.walk import Segments
from profiling_lab.trace.ownership import Ownership
from profiling_lab.trace.platform import in_words_of
from profiling_lab.trace.trace import Trace

_MUCH_FRAC = 0.05


def notes_of(trace: Trace, graph: Graph, segments: Segments, processes: int) -> tuple[str, ...]:
    """Sentences for people, about the whole trace and this path."""
    out = []
    total = max(int(segments.ns.sum()), 1)
    missing = int((trace.attribution.call < 0).sum())
    if missing:
        out.append(
            f"the launches of {missing:,} of {len(trace.operations):,} operations were not recorded: what "
            "these waited for on the host is unknown"
        )
    if (segments.kind == Kind.EVENT_WAIT).any():
        out.append(
            "which operation an event stands for is not recorded: it is taken to be the last of another "
            "stream that was launched before the wait and had ended"
        )
    between = [number for number, site in enumerate(graph.sites) if site.between]
    untold = int(segments.ns[np.isin(segments.site, between)].sum())
    if untold > _MUCH_FRAC * total and not len(trace.samples(Ownership())):
        how = "record --sample-python, or nsys with --python-sampling=true"
        out.append(
            f"samples of Python's stacks tell the lines of the time between calls: {in_words_of(trace, how)}"
        )
    if processes > 1 or (segments.kind == Kind.COLLECTIVE).any():
        out.append("one process alone: what a collective waits for in other ranks counts as the collective")
    return tuple(out)
