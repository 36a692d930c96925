# SPDX-License-Identifier: Apache-2.0
"""The lane of a GPU's memory: what torch's allocator had allocated and reserved over time."""

from __future__ import annotations

import numpy as np

from profiling_lab.analysis.memory.devices import DeviceMemory
from profiling_lab.analysis.memory.timeline import curve
from profiling_lab.report import numbers
from profiling_lab.report.html.lane import Lanes, SliceKind
from profiling_lab.trace import Trace
from profiling_lab.trace.columns import full

POINTS = 600
"""intervals of the whole recording; each shows its highest moment"""


def add_memory_lane(trace: Trace, process: int, device: int, out: Lanes) -> None:
    """Add it to the newest group, if the recording has a history of this device."""
    for history in trace.whole.source.memory_history():
        if (history.process, history.device) == (process, device) and len(history):
            _add(DeviceMemory(trace.whole, history, ()), out)


def _add(memory: DeviceMemory, out: Lanes) -> None:
    start, allocated, reserved = curve(memory, POINTS)
    end = np.append(start[1:], int(memory.history.time_ns[-1]) + 1)
    changes = np.append(True, (np.diff(allocated) != 0) | (np.diff(reserved) != 0))
    first = np.flatnonzero(changes)
    start, allocated, reserved = start[first], allocated[first], reserved[first]
    end = end[np.append(first[1:], len(end)) - 1]
    inside = np.flatnonzero((end > out.origin_ns) & (start < out.origin_ns + out.span_ns))
    texts = [
        out.names.add(f"{numbers.size(held)} allocated", f"{numbers.size(held)} allocated, "
                      f"{numbers.size(had)} reserved")
        for held, had in zip(allocated.tolist(), reserved.tolist(), strict=True)
    ]  # fmt: skip
    most = numbers.size(memory.replayed.peak_bytes)
    out.add(
        "memory",
        f"memory, peak {most}",
        inside,
        start,
        end,
        np.array(texts, dtype=np.int32),
        full(len(start), SliceKind.ALLOCATION, np.uint8),
        full(len(start), 0, np.int32),
        allocated=allocated,
        reserved=reserved,
    )
