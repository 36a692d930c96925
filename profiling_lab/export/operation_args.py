# SPDX-License-Identifier: Apache-2.0
"""The arguments of a GPU slice: name, line, phase and stack."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import numpy as np

from profiling_lab.analysis.coverage import reason_text, why_no_line
from profiling_lab.analysis.lines_groups import own_frames
from profiling_lab.trace import Trace
from profiling_lab.trace.columns import I32, I64, MemoryKind, OperationKind, dense
from profiling_lab.trace.ownership import Ownership
from profiling_lab.trace.phases import LINE_PHASES

_CATEGORIES = {
    OperationKind.KERNEL: "kernel",
    OperationKind.COPY: "gpu_memcpy",
    OperationKind.SET: "gpu_memset",
    OperationKind.GRAPH: "kernel",
}
_MEMORY = {int(kind): kind.name.replace("_", " ").title() for kind in MemoryKind}


class OperationArgs:
    """The JSON of operations. Most differ only in their times, so each distinct text is created once."""

    def __init__(self, trace: Trace, own: tuple[str, ...]) -> None:
        self._trace = trace
        self._own_row = trace.stacks.own_rows(Ownership(own))
        operations, found = trace.operations, trace.attribution
        self._head = _texts(
            self._head_of,
            (operations.name, 32),
            (operations.kind, 4),
            (operations.source_memory, 4),
            (operations.target_memory, 4),
        )
        why = why_no_line(trace, self._own_row)
        self._place = _texts(self._place_of, (found.stack, 32), (found.line_phase, 4), (why, 4))
        self._device, self._stream = operations.device, operations.stream
        self._size_bytes = operations.size_bytes

    def of(self, rows: I64) -> Iterator[tuple[str, str]]:
        """Per row its category and name, and the arguments without braces."""
        (head, heads), (place, places) = self._head, self._place
        columns = (head, place, self._device, self._stream, self._size_bytes)
        for h, p, device, stream, size in zip(*(column[rows].tolist() for column in columns), strict=True):
            copied = f',"bytes":{size}' if size else ""
            yield heads[h], f'"device":{device},"stream":{stream}{copied},{places[p]}'

    def _head_of(self, name: int, kind: int, source: int, target: int) -> str:
        """Copies have names with memory kinds, as in torch.profiler."""
        text = self._trace.operations.names[name]
        memory = [_MEMORY.get(number, "Unknown") for number in (source, target)]
        if kind == OperationKind.COPY and text.startswith("memcpy "):
            text = f"Memcpy {text.removeprefix('memcpy ')} ({memory[0]} -> {memory[1]})"
        elif kind == OperationKind.SET:
            text = f"Memset ({memory[1]})"
        return f'"cat":"{_CATEGORIES[OperationKind(kind)]}","name":{json.dumps(text)}'

    def _place_of(self, stack: int, phase: int, why: int) -> str:
        args: dict[str, object] = {"phase": LINE_PHASES[phase]}
        if why:
            args["no line"] = reason_text(self._trace, why)
        elif frames := own_frames(self._trace.stacks, self._own_row, stack):
            args["line"] = f"{frames[0].file}:{frames[0].line}"
            args["function"] = frames[0].function
            args["stack"] = [str(frame) for frame in frames]
        return json.dumps(args)[1:-1]


def _texts(make: Callable[..., str], *columns: tuple[np.ndarray, int]) -> tuple[I32, list[str]]:
    """Per row the number of its text, and the texts; columns are given with their bit widths."""
    packed = np.zeros(len(columns[0][0]), dtype=np.int64)
    for column, bits in columns:
        packed = packed << bits | column.astype(np.int64)
    number, distinct = dense(packed)
    texts = []
    for value in distinct.tolist():
        parts = []
        for _, bits in reversed(columns):
            parts.append(value & (1 << bits) - 1)
            value >>= bits
        texts.append(make(*reversed(parts)))
    return number, texts
