# SPDX-License-Identifier: Apache-2.0
"""How to look inside of one line that has nearly all of the time, as in a program around a library."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np

from profiling_lab.analysis.lines_layers import holds_layers
from profiling_lab.trace.columns import I32, dense
from profiling_lab.trace.trace import Trace

MOST_FRAC = 0.8
"""a line with this fraction of the GPU time says little"""
_PACKAGE = re.compile(r"(?:/(?:site|dist)-packages/|^)([A-Za-z_]\w*)/")
_STANDARD_LIBRARY = re.compile(r"/lib(64)?/python\d(\.\d+)?t?/(?!(site|dist)-packages/)")
_MUCH_FRAC = 0.3


def look_inside(trace: Trace, own_row: I32) -> str:
    """A sentence with the options that divide the line with most time; '' if no line has nearly all."""
    stack, duration = own_row[trace.attribution.stack], trace.operations.duration_ns
    number, rows = dense(stack)
    time_ns = np.bincount(number, weights=duration, minlength=len(rows)) * (rows > 0)
    if not len(rows) or time_ns.max() < MOST_FRAC * max(int(duration.sum()), 1):
        return ""
    library = _library_below(trace, own_row, int(rows[time_ns.argmax()]))
    options = [f"--own {library}"] if library else []
    options += ["--by layer"] if holds_layers(trace.stacks) else []
    options += ["--by range"] if len(trace.ranges) else []
    options = options or ["--by kernel"]
    return f"one line has nearly all of the time; to look inside of it: {', '.join(options)}"


def without_stacks(trace: Trace) -> str:
    """What `lines` can do without any stack."""
    return "--by range and --by kernel need none" if len(trace.ranges) else "--by kernel needs none"


def _library_below(trace: Trace, own_row: I32, line: int) -> str:
    """The package whose code, called by this line, launches a good part of its work; not torch itself."""
    stacks, mine = trace.stacks, np.flatnonzero(own_row[trace.attribution.stack] == line)
    number, rows = dense(trace.attribution.stack[mine])
    time_ns = np.bincount(number, weights=trace.operations.duration_ns[mine], minlength=len(rows))
    found: Counter[str] = Counter()
    for row, ns in zip(rows.tolist(), time_ns.tolist(), strict=True):
        while row > 0 and row != line:
            file = stacks.frames[stacks.frame[row]].file
            package = _PACKAGE.search(file)
            if package and package[1] != "torch" and not _STANDARD_LIBRARY.search(file):
                found[package[1]] += int(ns)
                break
            row = int(stacks.parent[row])
    (name, most_ns), *_ = found.most_common(1) or [("", 0)]
    return name if most_ns >= _MUCH_FRAC * time_ns.sum() else ""
