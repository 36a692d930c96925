# SPDX-License-Identifier: Apache-2.0
"""Which nn.Module a stack is in, and in which that one is.

torch.profiler notes each call of a module with the number of the instance (`Linear_3`). Those of one class at
one place of the model are one layer, unless instances are asked for. Any other Python stack shows the class
whose `forward` runs and the line that called it: two instances called from two lines are two layers, those
called from one line in a loop are one. A `forward` that is called without its module
(`self.layer.forward(x)`) is no layer.
"""

from __future__ import annotations

import re
from pathlib import PurePath

from profiling_lab.records import dataclass
from profiling_lab.trace.stacks import Frame, Stacks

OUTSIDE = "outside of every module"
FOLDED_NOTE = "modules of one class within one layer are one row; --by instance distinguishes them"
ONE_LINE_NOTE = "modules that one line calls, as in a loop, are one layer: stacks show calls, not instances"

_CALL = ("_call_impl", "_wrapped_call_impl", "__call__")
_MODULE = "torch/nn/modules/module.py"
_NUMBER = re.compile(r"_\d+$")
_LIBRARY = re.compile(r"(^|/)torch/")


@dataclass(frozen=True, slots=True)
class ModuleCall:
    """One nn.Module of a path, and the line that called it."""

    name: str
    """the class, or class and number of the instance where the file knows it"""
    file: str
    """of the line that called it; '' where that is a container's"""
    line: int

    @property
    def key(self) -> str:
        return f"{self.name}@{self.file}:{self.line}" if self.file else self.name


def holds_layers(stacks: Stacks) -> bool:
    return knows_instances(stacks) or any(_calls_module(frame) for frame in stacks.frames)


def knows_instances(stacks: Stacks) -> bool:
    return any(stacks.instances)


def layer_path(stacks: Stacks, row: int, folded: bool = True) -> tuple[ModuleCall, ...]:
    """The modules around a stack, outermost first. `folded`: instances of one class are one."""
    if instances := stacks.instances_of(row):
        names = (_NUMBER.sub("", name) if folded else name for name in reversed(instances))
        return tuple(ModuleCall(name, "", 0) for name in names)
    frames = stacks.of(row)
    out = []
    for i, frame in enumerate(frames[:-1]):
        if frame.function.split(".")[-1] == "forward" and _calls_module(frames[i + 1]):
            caller = next((f for f in frames[i + 1 :] if not _calls_module(f)), None)
            # Containers such as Sequential call all children from one line, which distinguishes none.
            from_own = caller is not None and not _LIBRARY.search(caller.file)
            where = (caller.file, caller.line) if caller is not None and from_own else ("", 0)
            out.append(ModuleCall(_class(frame), *where))
    return tuple(reversed(out))


def _calls_module(frame: Frame) -> bool:
    return frame.file.endswith(_MODULE) and frame.function.split(".")[-1] in _CALL


def _class(frame: Frame) -> str:
    owner = frame.function.rpartition(".")[0]
    return owner.split(".")[-1] if owner else f"{PurePath(frame.file).stem}.forward"
