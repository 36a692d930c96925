# SPDX-License-Identifier: Apache-2.0
"""Time the steps of a running loop without synchronising it: a wait in each step would change the loop."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from profiling_lab.measure.calls import event_ns


@dataclass(slots=True)
class LoopStep:
    """The times of one step, in nanoseconds. Those of the GPU are None until it has reached the step's end,
    and on the CPU.
    """

    data_ns: int
    """the host waited for the batch"""
    between_ns: int
    """on the host, since the end of the step before, with data_ns in it"""
    host_ns: int
    """on the host, in the step"""
    gpu_span_ns: int | None = None
    """between CUDA events at the start and the end of the step"""
    gpu_between_ns: int | None = None
    """between the CUDA event at the end of the step before and that at the start of this one: nearly 0 where
    the GPU still had work, otherwise its idle time and the copies that were launched there"""
    host_ahead: bool | None = None
    """when the host had ended the step, the GPU had not yet begun it"""


class LoopClock:
    """Notes the times of a loop on `device`. One thread, one stream: the current one of each step.

    Call `waiting(fetch)` for a batch, `begin()` and `end()` around a step, or `abandon()` instead of end().
    """

    def __init__(self, device: str) -> None:
        self.device = device
        self.steps: list[LoopStep] = []
        self._data_ns = 0
        self._last_end_ns: int | None = None
        self._start_ns = 0
        self._begin_event: Any = None
        self._last_end_event: Any = None
        self._pending: list[tuple[LoopStep, Any, Any, Any]] = []

    def waiting(self, fetch: Callable[[], Any]) -> Any:
        """Call `fetch` and count its time as waiting for data; its exceptions are passed on."""
        start_ns = time.perf_counter_ns()
        try:
            return fetch()
        finally:
            self._data_ns += time.perf_counter_ns() - start_ns

    def begin(self) -> None:
        self._begin_event = self._event()
        self._start_ns = time.perf_counter_ns()

    def end(self) -> None:
        end_ns = time.perf_counter_ns()
        # Before the first step, only the wait for its batch belongs to the loop.
        between_ns = self._data_ns if self._last_end_ns is None else self._start_ns - self._last_end_ns
        step = LoopStep(self._data_ns, between_ns, end_ns - self._start_ns)
        if self._begin_event is None:  # on the CPU, or the program began to use the GPU in this step
            self._last_end_event = None
        else:
            step.host_ahead = not self._begin_event.query()
            event = self._event()
            self._pending.append((step, self._last_end_event, self._begin_event, event))
            self._last_end_event = event
            self._read_reached()
        self.steps.append(step)
        self._data_ns, self._last_end_ns = 0, end_ns

    def abandon(self) -> None:
        """The step failed: neither it nor the way to the next one is a sample."""
        self._data_ns, self._last_end_ns, self._last_end_event = 0, None, None

    def finish(self) -> None:
        """Wait for the GPU to reach the end of the last step, and complete the times of all steps."""
        if self._pending:
            self._pending[-1][3].synchronize()
            self._read_reached()

    def _event(self) -> Any:
        if not self.device.startswith("cuda"):
            return None
        import torch

        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.device))
        return event

    def _read_reached(self) -> None:
        """Read the events that the GPU has reached, so that a long run does not collect them."""
        while self._pending and self._pending[0][3].query():
            step, last_end, begin, end = self._pending.pop(0)
            step.gpu_span_ns = event_ns(begin, end)
            step.gpu_between_ns = None if last_end is None else event_ns(last_end, begin)
