# SPDX-License-Identifier: Apache-2.0
"""What a slice of the GPU says of itself: its name, its line, its phase and its stack."""

from __future__ import annotations

import json

from profiling_lab.trace import Trace
from profiling_lab.trace.columns import MemoryKind, OperationKind
from profiling_lab.trace.coverage import reason_text, why_no_line
from profiling_lab.trace.lines_groups import own_frames
from profiling_lab.trace.ownership import Ownership
from profiling_lab.trace.phases import LINE_PHASES

_CATEGORIES = {
    OperationKind.KERNEL: "kernel",
    OperationKind.COPY: "gpu_memcpy",
    OperationKind.SET: "gpu_memset",
    OperationKind.GRAPH: "kernel",
}


class OperationArgs:
    """The JSON of operations; what rows have in common is made once."""

    def __init__(self, trace: Trace, own: tuple[str, ...]) -> None:
        self._trace = trace
        self._own_row = trace.stacks.own_rows(Ownership(own))
        self._why = why_no_line(trace, self._own_row)
        self._heads: dict[tuple[int, int, int, int], str] = {}
        self._places: dict[tuple[int, int, int], str] = {}

    def head(self, row: int) -> str:
        """Category and name; copies are named as torch.profiler does, with their kinds of memory."""
        operations = self._trace.operations
        kind = int(operations.kind[row])
        memory = (int(operations.source_memory[row]), int(operations.target_memory[row]))
        key = (kind, int(operations.name[row]), *memory)
        if key not in self._heads:
            name = operations.names[key[1]]
            source, target = (MemoryKind(m).name.replace("_", " ").title() for m in memory)
            if kind == OperationKind.COPY and name.startswith("memcpy "):
                name = f"Memcpy {name.removeprefix('memcpy ')} ({source} -> {target})"
            elif kind == OperationKind.SET:
                name = f"Memset ({target})"
            category = _CATEGORIES[OperationKind(kind)]
            self._heads[key] = f'"cat":"{category}","name":{json.dumps(name)}'
        return self._heads[key]

    def of(self, row: int) -> str:
        """The arguments, without braces."""
        operations, found = self._trace.operations, self._trace.attribution
        size = int(operations.size_bytes[row])
        place = (int(found.stack[row]), int(found.line_phase[row]), int(self._why[row]))
        if place not in self._places:
            self._places[place] = self._place(*place)
        copied = f'"bytes":{size},' if size else ""
        where = f'"device":{int(operations.device[row])},"stream":{int(operations.stream[row])}'
        return f"{where},{copied}{self._places[place]}"

    def _place(self, stack: int, phase: int, why: int) -> str:
        args: dict[str, object] = {"phase": LINE_PHASES[phase]}
        if why:
            args["no line"] = reason_text(self._trace, why)
        elif frames := own_frames(self._trace.stacks, self._own_row, stack):
            args["line"] = f"{frames[0].file}:{frames[0].line}"
            args["function"] = frames[0].function
            args["stack"] = [str(frame) for frame in frames]
        return json.dumps(args)[1:-1]
