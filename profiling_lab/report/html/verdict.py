# SPDX-License-Identifier: Apache-2.0
"""What the analyses say of a trace, in one sentence."""

from __future__ import annotations

from pathlib import PurePath

from profiling_lab.analysis.coverage import Coverage
from profiling_lab.analysis.gaps.gaps import GapRow, GapsResult
from profiling_lab.analysis.lines import LineRow, LinesResult
from profiling_lab.analysis.lines_host import HostLinesResult
from profiling_lab.report import numbers
from profiling_lab.trace import Frame

IDLE_FRAC = 0.2
"""from here on idle time is named before the GPU's work"""


def verdict(gaps: GapsResult, lines: LinesResult | None, of: str = "the recording") -> str:
    """Idle time and its largest cause where there is much of it; else the line that costs most.

    `lines` is None where the trace has none. `of`: what the trace is, in words.
    """
    parts = [_bound(gaps, of)]
    if gaps.idle_frac >= IDLE_FRAC and gaps.rows:
        parts.append(_cause(gaps.rows[0]))
    if lines is not None and lines.rows:
        parts.append(_line(lines.rows[0], lines.coverage))
    elif lines is None:
        parts.append("which lines cost it cannot be told, since the file holds no Python stacks")
    return "; ".join(parts) + "."


def host_verdict(why: str, host: HostLinesResult | None) -> str:
    """Of a trace without GPU work: why there is none, or the line of most samples of the host."""
    if host is None or not host.rows:
        return f"{why}."
    row = host.rows[0]
    at = f"{PurePath(row.file).name}:{row.line}"
    return (
        f"No GPU operation was recorded; {at} {row.function} holds {numbers.share(row.share_frac)} of the "
        f"{numbers.counted(host.samples, 'sample')} of Python stacks."
    )


def _bound(gaps: GapsResult, of: str) -> str:
    share = numbers.share(gaps.parts_ns[_index(gaps)] / gaps.span_ns if gaps.span_ns else 0.0)
    if gaps.bound_by == "idle":
        return f"The GPU is idle for {share} of {of}"
    idle = numbers.share(gaps.idle_frac)
    return f"{gaps.bound_by.capitalize()} takes {share} of {of} and idle time {idle}"


def _index(gaps: GapsResult) -> int:
    return max(range(len(gaps.parts_ns)), key=lambda i: gaps.parts_ns[i])


def _cause(row: GapRow) -> str:
    if row.frame is not None:
        where = f" {'at' if row.exact else 'before'} {_at(row.frame)}"
    else:
        where = f" in {row.what}" if row.what else ""
    return f"most of that is {row.cause}{where}, {numbers.time(row.idle_ns)}"


def _line(row: LineRow, coverage: Coverage) -> str:
    at = f"{PurePath(row.file).name}:{row.line}"
    times = {
        "forward": row.forward_ns,
        "backward": row.backward_ns,
        "recomputed": row.recompute_ns,
        "optimizer": row.optimizer_ns,
    }
    parts = ", ".join(f"{numbers.time(ns)} {phase}" for phase, ns in times.items() if ns)
    cost = f"{at} {row.function} costs {numbers.share(row.share_frac)} of the GPU time ({parts})"
    if coverage.attributed_frac < 0.5:
        return f"{cost}, but only {numbers.share(coverage.attributed_frac)} has a line at all"
    return cost


def _at(frame: Frame) -> str:
    return f"{PurePath(frame.file).name}:{frame.line}"
