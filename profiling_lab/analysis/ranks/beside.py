# SPDX-License-Identifier: Apache-2.0
"""Kernels that took longer because a collective waited next to them.

NCCL's kernels poll while they wait: they hold SMs, and the kernels of the other streams share the rest. When
the late rank is in time they need not wait, and the kernels next to them take no longer than on that rank.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from profiling_lab.analysis.critical_path.kinds import Kind
from profiling_lab.analysis.ranks.joint_path import JointPath

_NEXT_TO_FRAC = 0.5
"""of a kernel's time, during which a collective waits"""
_LEAST = 0.5
"""a kernel with all SMs to itself takes no less than this part of its time"""


def beside_waits(path: JointPath) -> npt.NDArray[np.bool_]:
    """Which parts of the graph are kernels next to a collective of their rank that waits for another rank."""
    graph = path.graph
    edge = graph.parts.edge
    start_ns, end_ns = graph.time_ns[graph.source[edge]], graph.time_ns[graph.targets(edge)]
    waiting, first_ns, last_ns = path.waits()
    out = np.zeros(len(edge), dtype=np.bool_)
    for rank in range(len(path.ranks)):
        mine = (path.rank_of_part == rank) & (graph.parts.kind == Kind.KERNEL) & (end_ns > start_ns)
        rows = np.flatnonzero(mine)
        of_rank = waiting == rank
        waited = _waited(first_ns[of_rank], last_ns[of_rank], start_ns[rows], end_ns[rows])
        out[rows] = waited >= _NEXT_TO_FRAC * (end_ns[rows] - start_ns[rows])
    return out


def _waited(
    first_ns: npt.NDArray[np.int64],
    last_ns: npt.NDArray[np.int64],
    start_ns: npt.NDArray[np.int64],
    end_ns: npt.NDArray[np.int64],
) -> npt.NDArray[np.float64]:
    """How much of each span start_ns to end_ns lies in any of the waits first_ns to last_ns."""
    if not len(first_ns):
        return np.zeros(len(start_ns))
    order = np.argsort(first_ns, kind="stable")
    first, last = first_ns[order], np.maximum.accumulate(last_ns[order])
    first = np.maximum(first, np.concatenate([first[:1], last[:-1]]))  # each begins behind the one before
    last = np.maximum(first, last)
    times = np.column_stack([first, last]).ravel()
    passed = np.column_stack([np.zeros(len(first), dtype=np.int64), last - first]).ravel().cumsum()
    return np.asarray(np.interp(end_ns, times, passed) - np.interp(start_ns, times, passed))


def alone(mine_ns: float, its_ns: float, beside_ns: float) -> float:
    """The factor of kernels next to a wait, so that a line takes as long as on a rank where none waits.

    mine_ns, its_ns: of the line there, and here; beside_ns: of those kernels.
    """
    return float(max(1 - (its_ns - mine_ns) / beside_ns, mine_ns / its_ns, _LEAST))
