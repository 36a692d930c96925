# SPDX-License-Identifier: Apache-2.0
"""The ranks of one job compared: which rank waits for which, and why (spread.py draws the plan)."""

from __future__ import annotations

from profiling_lab.analysis.ranks.job import JobResult, ranks, ranks_in
from profiling_lab.analysis.ranks.options import Options
from profiling_lab.analysis.ranks.pools import DaskPool, LocalPool, Pool
from profiling_lab.analysis.ranks.summary import RankSummary, summarize

__all__ = [
    "DaskPool",
    "JobResult",
    "LocalPool",
    "Options",
    "Pool",
    "RankSummary",
    "ranks",
    "ranks_in",
    "summarize",
]
