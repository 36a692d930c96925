# SPDX-License-Identifier: Apache-2.0
"""The interface of torch.profiler's key_averages(), with GPU time per Python line."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from profiling_lab.analysis.lines import LinesResult, Sort, lines
from profiling_lab.report.lines.lines import lines_report
from profiling_lab.report.table import write
from profiling_lab.trace import Trace


@dataclass(frozen=True, slots=True)
class Average:
    """GPU time of a Python line in microseconds, under the names of torch.profiler."""

    key: str
    count: int
    """the number of GPU operations: kernels and copies"""
    self_device_time_total: float
    device_time_total: float
    """including callees"""


class Averages:
    """GPU time per line of a recording, the most expensive first. depth: frames per group."""

    def __init__(self, path: Path, depth: int | None = None) -> None:
        self._path = path
        self._depth = depth

    def __iter__(self) -> Iterator[Average]:
        for row in lines_of(self._path, depth=self._depth).rows:
            yield Average(row.key, row.kernels + row.copies, row.gpu_ns / 1e3, row.inclusive_ns / 1e3)

    def table(self, sort_by: str | None = None, row_limit: int = 100, **_: object) -> str:
        """The table of `profiling-lab lines`. CPU time as a sort key means GPU time; a negative row_limit
        shows all rows. Other arguments of torch's table() are ignored.
        """
        wanted = sort_by or ""
        sort: Sort = "kernels" if wanted == "count" else "all"
        if "time" in wanted and not wanted.startswith("self_"):
            sort = "inclusive"
        text = io.StringIO()
        with Trace.open(self._path) as trace:
            limit = row_limit if row_limit > 0 else None
            write(lines_report(trace, lines(trace, depth=self._depth, limit=limit, sort=sort)), "table", text)
        return text.getvalue()


def lines_of(path: Path, limit: int | None = None, depth: int | None = None) -> LinesResult:
    """GPU time per line of a recording. Raises NotEnoughDataError if nothing ran on a GPU."""
    with Trace.open(path) as trace:
        return lines(trace, depth=depth, limit=limit)
