# SPDX-License-Identifier: Apache-2.0
"""A memory snapshot of torch as a trace: it has no GPU operation, only what the allocator did."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from profiling_lab.errors import UnreadableInputError
from profiling_lab.trace.call_stacks import CallTable
from profiling_lab.trace.columns import U8, Operations, Ranges
from profiling_lab.trace.extras import Device
from profiling_lab.trace.facts import Gpu, Recorded, TraceInfo, utc
from profiling_lab.trace.memory_history import MemoryHistory
from profiling_lab.trace.nothing import FLAGS, NUMBERS, TIMES, no_calls, no_ranges
from profiling_lab.trace.process_ids import Registry
from profiling_lab.trace.snapshot.history import SnapshotStacks, histories
from profiling_lab.trace.snapshot.plain_pickle import load_plain
from profiling_lab.trace.source import Recorder, Source, Tables

_HOW = "torch.cuda.memory._record_memory_history() at the start of the program"


class SnapshotSource(Source):
    """A pickle of torch.cuda.memory._snapshot(), read completely. Raises UnreadableInputError."""

    recorder: Recorder = "torch.cuda.memory"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.processes = Registry()
        self.threads = Registry()
        stacks = SnapshotStacks()
        try:
            self._histories = histories(load_plain(path), stacks)
        except UnreadableInputError as error:
            text = str(error)
            raise UnreadableInputError(text if str(path) in text else f"{path}: {text}") from None
        self._stacks = stacks.builder.build()
        self.processes.number(np.zeros(1, dtype=np.int64))

    def why_empty(self) -> str:
        return "it is a memory snapshot of torch, which profiling-lab memory reads"

    def memory_history(self) -> tuple[MemoryHistory, ...]:
        return self._histories

    def operations(self) -> tuple[Operations, dict[str, int]]:
        nothing = Operations(
            FLAGS,
            TIMES,
            TIMES,
            NUMBERS,
            NUMBERS,
            TIMES,
            TIMES,
            NUMBERS,
            TIMES,
            (),
            (),
            FLAGS,
            FLAGS,
        )
        return nothing, {}

    def call_table(self) -> CallTable:
        return no_calls(self._stacks)

    def ranges(self) -> Ranges:
        return no_ranges()

    def info(self, whole: Tables) -> TraceInfo:
        times = [history.time_ns for history in self._histories if len(history)]
        first = min((int(each[0]) for each in times), default=0)
        last = max((int(each[-1]) for each in times), default=0)
        events = sum(map(len, self._histories))
        with_stack = sum(int((history.stack > 0).sum()) for history in self._histories)
        segments = sum(len(history.segments.address) for history in self._histories)
        return TraceInfo(
            path=str(self.path),
            file_bytes=self.path.stat().st_size,
            product="torch.cuda.memory",
            schema="",
            started_utc=utc(first) if first else "",
            duration_ns=last - first if times else None,
            gpus=(),
            driver="",
            processes=(),
            recorded=(
                Recorded("memory_events", "events of the caching allocator", events, _HOW),
                Recorded("python_stacks", "of them with a Python stack", with_stack, _HOW),
                Recorded("segments", "segments at the end", segments, ""),
            ),
            recorder=(),
            options=(),
            method="the caching allocator's own history",
            ranks=(),
            events=None,
            overhead_ns=None,
            warnings=(),
        )

    def gpus(self) -> tuple[Gpu, ...]:
        return ()

    def devices(self, used: Iterable[tuple[int, int]]) -> dict[tuple[int, int], Device]:
        return {}

    def wall_clock(self, whole: Tables) -> int | None:
        return 0

    def range_styles(self, whole: Tables) -> U8:
        return FLAGS
