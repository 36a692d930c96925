# SPDX-License-Identifier: Apache-2.0
"""The Python call stacks of the operations of compiled programs, from the metadata of their HLO.

An instruction has the frames that traced it. A fusion without frames of its own has those of its root, the
instruction whose value it computes; the lines of the other instructions in it are not known.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import field
from typing import Any

from profiling_lab.records import dataclass
from profiling_lab.trace.stacks import Frame, StackBuilder
from profiling_lab.trace.xplane.messages import message_class

BACKWARD = "transpose("
"""in the name of an operation that JAX derived for the backward pass"""


@dataclass(frozen=True, slots=True)
class Origin:
    """What an operation was compiled from."""

    stack: int
    """row of the stacks, 0 if its line is unknown"""
    is_backward: bool


UNKNOWN = Origin(0, False)


@dataclass(frozen=True, slots=True)
class _Program:
    name: str
    origins: dict[str, Origin]
    """by name of the operation"""


_NOTHING = _Program("", {})


@dataclass(slots=True)
class Programs:
    """The compiled programs of a file. Each is decoded when one of its operations is first asked for."""

    modules: dict[int, bytes]
    builder: StackBuilder = field(default_factory=StackBuilder)
    damaged: int = 0
    """programs that cannot be read"""
    _known: dict[int, _Program] = field(default_factory=dict)
    _by_name: dict[str, _Program] | None = None

    def origin(self, program: int, module: str, operation: str) -> Origin:
        """Of the operation of that name in the program with this id, or else with this name."""
        known = self._read(program) if program in self.modules else self._named(module)
        return known.origins.get(operation, UNKNOWN)

    def _named(self, name: str) -> _Program:
        """The only program of this name; of several it is not known which is meant."""
        if self._by_name is None:
            every = [self._read(program) for program in self.modules]
            counts = Counter(program.name for program in every)
            self._by_name = {program.name: program for program in every if counts[program.name] == 1}
        return self._by_name.get(name, _NOTHING)

    def _read(self, program: int) -> _Program:
        from google.protobuf.message import DecodeError

        if program not in self._known:
            message = message_class("HloProto")()
            try:
                message.ParseFromString(self.modules[program])
                module = message.hlo_module
                self._known[program] = _Program(module.name, self._origins(module))
            except DecodeError:
                self.damaged += 1
                self._known[program] = _NOTHING
        return self._known[program]

    def _origins(self, module: Any) -> dict[str, Origin]:
        computations = {computation.id: computation for computation in module.computations}
        roots = {
            key: next((one for one in computation.instructions if one.id == computation.root_id), None)
            for key, computation in computations.items()
        }
        out = {}
        for computation in module.computations:
            for instruction in computation.instructions:
                metadata = instruction.metadata
                stack = self._stack(module, metadata)
                for called in instruction.called_computation_ids if not stack else ():
                    if (root := roots.get(called)) is not None and not stack:
                        stack = self._stack(module, root.metadata)
                        metadata = root.metadata
                if stack or metadata.op_name:
                    out[instruction.name] = Origin(stack, BACKWARD in metadata.op_name)
        return out

    def _stack(self, module: Any, metadata: Any) -> int:
        if metadata.stack_frame_id and (frames := _frames(module.stack_frames, metadata.stack_frame_id)):
            return self.builder.add(frames)
        if metadata.source_file and metadata.source_line > 0:
            return self.builder.add([Frame("", metadata.source_file, metadata.source_line)])
        return 0


def _frames(index: Any, frame: int) -> list[Frame]:
    """Innermost first. Ids count from 1; a frame that calls itself is damage."""
    out: list[Frame] = []
    while 0 < frame <= len(index.stack_frames) and len(out) <= len(index.stack_frames):
        link = index.stack_frames[frame - 1]
        if not 0 < link.file_location_id <= len(index.file_locations):
            break
        place = index.file_locations[link.file_location_id - 1]
        file = _at(index.file_names, place.file_name_id)
        out.append(Frame(_at(index.function_names, place.function_name_id), file, place.line))
        frame = link.parent_frame_id
    return out


def _at(texts: Any, number: int) -> str:
    return str(texts[number - 1]) if 0 < number <= len(texts) else ""
