# SPDX-License-Identifier: Apache-2.0
"""For how long each device is looked at: what its busy and idle time must add up to."""

from __future__ import annotations

import numpy as np

from profiling_lab import _analysis
from profiling_lab.records import dataclass
from profiling_lab.trace.columns import I32, I64, full
from profiling_lab.trace.operation_classes import device_tracks
from profiling_lab.trace.spans import Spans
from profiling_lab.trace.trace import Trace


@dataclass(frozen=True, slots=True)
class DeviceSpans:
    """From the first to the last operation of each device in the whole recording, without its pauses, as far
    as the window has it: one that begins or ends between two operations holds idle time at its edge.
    """

    devices: tuple[tuple[int, int], ...]
    """(process, device) by number: first those of `device_tracks`, then those without an operation inside"""
    number: I32
    """per span its device; spans of one device are disjoint"""
    start_ns: I64
    end_ns: I64

    def per_device(self, values: I64) -> I64:
        """Sums per device of what is known per span."""
        out = np.zeros((len(self.devices), *values.shape[1:]), dtype=np.int64)
        np.add.at(out, self.number, values)
        return out

    @property
    def span_ns(self) -> I64:
        """Per device."""
        return self.per_device(self.end_ns - self.start_ns)


def device_spans(trace: Trace) -> DeviceSpans:
    """The spans of all devices that a process used. The trace must have an operation."""
    whole, pauses = trace.whole.operations, trace.pauses.spans
    track, devices = device_tracks(whole)
    process = np.array([process for process, _ in devices], dtype=np.int32)
    number = np.arange(len(devices), dtype=np.int32)
    start_ns, end_ns = full(len(devices), np.iinfo(np.int64).max), full(len(devices), np.iinfo(np.int64).min)
    np.minimum.at(start_ns, track, whole.start_ns)
    np.maximum.at(end_ns, track, whole.end_ns)
    if len(pauses):
        # Idle time in a pause of the recording is not known to be any; work is work, and is known.
        idle_start_ns, idle_end_ns, idle, _ = _analysis.gaps_between(whole.start_ns, whole.end_ns, track)
        row, *times = pauses.cut(process[idle], idle_start_ns, idle_end_ns)
        row, start_ns, end_ns = Spans.of(idle[row], *times).cut_out(number, start_ns, end_ns)
        number = row.astype(np.int32)
    if trace.window is None:
        return DeviceSpans(devices, number, start_ns, end_ns)

    row, start_ns, end_ns = trace.window.gpu.cut(process[number], start_ns, end_ns)
    wanted = np.array([not trace.window.devices or device in trace.window.devices for _, device in devices])
    kept = wanted[number[row]] & (end_ns > start_ns)
    number, start_ns, end_ns = number[row[kept]], start_ns[kept], end_ns[kept]
    _, inside = device_tracks(trace.operations)
    order = [*inside, *sorted({devices[i] for i in number.tolist()} - set(inside))]
    renumbered = [order.index(device) if device in order else -1 for device in devices]
    return DeviceSpans(tuple(order), np.array(renumbered, dtype=np.int32)[number], start_ns, end_ns)


def recorded(trace: Trace) -> tuple[I64, I64]:
    """From the first operation of any device to the last; in a window, or a recording that paused, the
    intervals that any device has in it. Sorted and disjoint.
    """
    spans = device_spans(trace)
    if trace.window is None and not len(trace.pauses.spans):
        return spans.start_ns.min(keepdims=True), spans.end_ns.max(keepdims=True)
    start_ns, end_ns = _analysis.merged(spans.start_ns, spans.end_ns)
    return start_ns, end_ns


def span_ns(trace: Trace) -> int:
    """How long `recorded` is in all."""
    if not len(trace.operations):
        return 0
    start_ns, end_ns = recorded(trace)
    return int((end_ns - start_ns).sum())
