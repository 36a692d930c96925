# SPDX-License-Identifier: Apache-2.0
"""The header of every table: how much GPU time it speaks about, and why the rest has no line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from profiling_lab.report import numbers
from profiling_lab.trace import Trace
from profiling_lab.trace.coverage import Coverage


def coverage_header(trace: Trace, coverage: Coverage) -> tuple[str, ...]:
    """Lines for people; indented ones belong to the line above them."""
    idle = f"busy {numbers.time(coverage.busy_ns)} of {numbers.time(coverage.span_ns)}"
    if coverage.devices > 1:
        idle = f"{coverage.devices} devices together busy {numbers.time(coverage.busy_ns)}, {numbers.time(coverage.span_ns)} from first to last"
    lines = [
        f"{Path(trace.path).name}: {numbers.time(coverage.gpu_ns)} of GPU time in {numbers.count(coverage.operations)} "
        f"operations (sum of their durations); {idle}",
        f"{numbers.share(coverage.attributed_frac)} has a line of your code"
        + (f"; {numbers.share(coverage.linked_ns / coverage.gpu_ns)} is backward joined with its forward line" if coverage.linked_ns else "")
        + (f" ({numbers.share(coverage.inferred_ns / coverage.gpu_ns)} inferred from neighbouring launches)" if coverage.inferred_ns else ""),
    ]  # fmt: skip
    lines += [
        f"  {numbers.share(part.ns / coverage.gpu_ns if coverage.gpu_ns else 0.0)} without a line: {part.reason}"
        for part in coverage.unattributed
    ]
    return (*lines, *(f"  note: {note}" for note in coverage.notes))


def coverage_data(coverage: Coverage) -> dict[str, Any]:
    """The same for machines."""
    return {
        "gpu_ns": coverage.gpu_ns,
        "busy_ns": coverage.busy_ns,
        "span_ns": coverage.span_ns,
        "operations": coverage.operations,
        "kernels": coverage.kernels,
        "devices": coverage.devices,
        "attributed_ns": coverage.attributed_ns,
        "attributed_frac": round(coverage.attributed_frac, 6),
        "linked_ns": coverage.linked_ns,
        "inferred_ns": coverage.inferred_ns,
        "unattributed": [
            {"reason": part.reason, "gpu_ns": part.ns, "operations": part.kernels} for part in coverage.unattributed
        ],
        "notes": list(coverage.notes),
    }
