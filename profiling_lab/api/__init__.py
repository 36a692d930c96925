# SPDX-License-Identifier: Apache-2.0
"""Every table of the command line, one call each: for notebooks and programs. See docs/api.md."""

from __future__ import annotations

from profiling_lab.api.comparisons import collectives, diff, diff_memory, ranks
from profiling_lab.api.row import Row
from profiling_lab.api.table import Table
from profiling_lab.api.trace_tables import TraceTables, open

__all__ = ["Row", "Table", "TraceTables", "collectives", "diff", "diff_memory", "open", "ranks"]
