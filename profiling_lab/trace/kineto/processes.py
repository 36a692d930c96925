# SPDX-License-Identifier: Apache-2.0
"""The process and thread of torch.profiler's events. The file contains them only for host events."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from profiling_lab import _analysis
from profiling_lab.trace.columns import I32, I64, NO_SEQUENCE, full, unique
from profiling_lab.trace.kineto.events import ChromeEvents, Table
from profiling_lab.trace.process_ids import Registry, process_part

_HOST = ("calls", "operators", "python")
_MASK = 0xFFFFFF
_SHARED = "GPU operations whose correlation id several processes use (assigned to the latest launch before)"
_SHORTENED = "threads whose id is too large (shown with another id)"


class Processes:
    """Numbers the processes and threads of a file in the registries of its source."""

    def __init__(self, events: ChromeEvents, processes: Registry, threads: Registry) -> None:
        self._events, self._processes, self._threads = events, processes, threads
        self._main_pid = self._first_host_pid()
        self._ids, moved = self._global_ids()
        if moved:
            events.repairs[_SHORTENED] = moved

    def of_slices(self, table: Table) -> tuple[I32, I32]:
        """The process and thread of host events."""
        ids = self._ids[table["thread"]]
        return self._processes.number(process_part(ids)), self._threads.number(ids)

    def of_operations(
        self,
        table: Table,
        call_process: I32,
        call_correlation: I64,
        call_start_ns: I64,
        repairs: dict[str, int],
    ) -> I32:
        """The process of GPU events: that of their call, else the main process.

        In a file merged from several processes, several calls may have the same correlation id. Then the
        latest call before the operation is used.
        """
        main = int(self._processes.number(np.array([(self._main_pid & _MASK) << 24], dtype=np.int64))[0])
        numbers = unique(call_process).tolist()
        out = full(len(table["thread"]), main, np.int32)
        if len(numbers) < 2:
            return out
        launched = full(len(out), NO_SEQUENCE)
        users = np.zeros(len(out), dtype=np.int32)
        for number in numbers:
            call = _analysis.call_of(
                full(len(out), number, np.int32),
                table["correlation"],
                call_process,
                call_correlation,
                call_start_ns,
            )
            users += call >= 0
            start_ns = np.append(call_start_ns, NO_SEQUENCE)[call]
            # A launch after the operation is used only if there is no other.
            rank = np.where(start_ns <= table["start_ns"], start_ns, -np.abs(start_ns >> 1))
            nearer = (call >= 0) & ((launched == NO_SEQUENCE) | (rank > launched))
            out[nearer], launched[nearer] = number, rank[nearer]
        if shared := int((users > 1).sum()):
            repairs[_SHARED] = shared
        return out

    def device(self, table: Table) -> I32:
        """The device of a GPU event: its argument, else its pid, which is the device number."""
        pid = self._events.pids[table["thread"]]
        device = np.where(table["device"] == NO_SEQUENCE, np.where(pid < -(2**31), 0, pid), table["device"])
        return np.clip(device, -(2**31), 2**31 - 1).astype(np.int32)

    def _first_host_pid(self) -> int:
        for kind in _HOST:
            threads = self._events[kind]["thread"]
            if len(threads):
                return int(self._events.pids[threads[0]])
        return 0

    def _global_ids(self) -> tuple[I64, int]:
        """Per thread of the file its global id (24 bits each for process and thread), and the number of
        threads that got a free number because theirs is too large.
        """
        taken: set[int] = set()
        spare = _spare_numbers()
        moved = 0
        out = full(len(self._events.pids), 0)
        for row, (pid, tid) in enumerate(
            zip(self._events.pids.tolist(), self._events.tids.tolist(), strict=True)
        ):
            # The profiler's own events have a negative pid: they delay the process that it runs in.
            process = ((pid if pid >= 0 else self._main_pid) & _MASK) << 24
            wanted = process | (tid & _MASK)
            if wanted in taken:
                moved += 1
                wanted = next(i for i in (process | number for number in spare) if i not in taken)
            taken.add(wanted)
            out[row] = wanted
        return out, moved


def _spare_numbers() -> Iterator[int]:
    """Unused thread numbers, from the largest downwards."""
    while True:
        yield from range(_MASK, -1, -1)
