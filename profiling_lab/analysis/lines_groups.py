# SPDX-License-Identifier: Apache-2.0
"""What a row of `lines` is: the label of each GPU operation, and those of what called it."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

import numpy as np

from profiling_lab.analysis.lines_layers import OUTSIDE, holds_layers, knows_instances, layer_path
from profiling_lab.errors import NotEnoughDataError
from profiling_lab.records import dataclass
from profiling_lab.trace.columns import I32, dense, full
from profiling_lab.trace.platform import in_words_of
from profiling_lab.trace.stacks import Frame, Stacks
from profiling_lab.trace.trace import Trace

By: TypeAlias = Literal["line", "function", "file", "module", "layer", "instance", "kernel", "range"]
GROUPINGS: tuple[By, ...] = get_args(By)
NEEDS_STACKS = ("line", "function", "file", "module", "layer", "instance")


@dataclass(frozen=True, slots=True)
class Label:
    """What a row is; fields it does not have are '' and 0."""

    key: str
    function: str = ""
    file: str = ""
    line: int = 0
    callers: tuple[Frame, ...] = ()


@dataclass(frozen=True, slots=True)
class Groups:
    """The rows that there may be, and to which of them each operation belongs."""

    labels: tuple[Label, ...]
    label: I32
    """per operation the row of `labels` it counts for, -1 if it has none"""
    stack: I32
    """per operation the row of `around`"""
    around: tuple[tuple[int, ...], ...]
    """per distinct stack the labels it passes through, each once, its own first"""


def own_frames(stacks: Stacks, own_row: I32, row: int) -> tuple[Frame, ...]:
    """The user's frames of a stack, innermost first."""
    out = []
    row = int(own_row[row])
    while row > 0:
        out.append(stacks.frames[stacks.frame[row]])
        row = int(own_row[stacks.parent[row]])
    return tuple(out)


def groups(trace: Trace, by: By, own_row: I32, depth: int = 1) -> Groups:
    """Labels by `by`; `own_row`: per stack the row of its innermost own frame (Stacks.own_rows).

    Raises NotEnoughDataError if the trace has no NVTX ranges, or shows no module, and `by` asks for them.
    """
    if by == "kernel":
        return _named(trace.operations.name, trace.operations.names)
    if by == "range":
        if not len(trace.ranges):
            raise NotEnoughDataError(f"{trace.path} holds {in_words_of(trace, 'no NVTX ranges')}")
        row = trace.attribution.range
        name = np.where(row >= 0, trace.ranges.name[row], -1).astype(np.int32)
        return _named(name, trace.ranges.names)
    if by == "instance" and not knows_instances(trace.stacks):
        why = "notes no instances of nn.Module, as torch.profiler does with with_stack=True"
        raise NotEnoughDataError(f"{trace.path} {why}: try --by layer")
    if by == "layer" and not holds_layers(trace.stacks):
        raise NotEnoughDataError(f"{trace.path} shows no nn.Module that is called: try --by module")
    return stack_groups(trace.attribution.stack, trace.stacks, by, own_row, depth)


def stack_groups(stack: I32, stacks: Stacks, by: By, own_row: I32, depth: int = 1) -> Groups:
    """Labels of anything that has a stack, by one of NEEDS_STACKS."""
    # Python looks at each distinct stack once; what has one only looks up its number.
    if by in ("layer", "instance"):
        number, distinct = dense(stack)
        found = [_layers(stacks, row, folded=by == "layer") for row in distinct.tolist()]
    else:
        number, distinct = dense(own_row[stack])
        found = [_labels(own_frames(stacks, own_row, row), by, depth) for row in distinct.tolist()]
    numbers: dict[str, int] = {}
    labels: list[Label] = []
    for chain in found:
        for label in chain:
            if label.key not in numbers:
                numbers[label.key] = len(labels)
                labels.append(label)
    around = tuple(tuple(dict.fromkeys(numbers[label.key] for label in chain)) for chain in found)
    own = np.array([chain[0] if chain else -1 for chain in around] or [-1], dtype=np.int32)
    return Groups(tuple(labels), own[number] if len(number) else number, number, around)


def _named(name: I32, names: tuple[str, ...]) -> Groups:
    """Rows by name; equal names are one row. Nothing is known of what is around them."""
    distinct = {text: i for i, text in enumerate(dict.fromkeys(names))}
    table = full(len(names) + 1, -1, np.int32)  # the last entry is what -1 looks up
    table[:-1] = [distinct[text] for text in names]
    label = table[name]
    around = tuple((i,) for i in range(len(distinct)))
    return Groups(tuple(Label(text) for text in distinct), label, label, (*around, ()))


def _labels(frames: tuple[Frame, ...], by: By, depth: int) -> list[Label]:
    """The label of a stack, and those of its callers, innermost first."""
    return [_label(frames[i:], by, depth) for i in range(len(frames))]


def _label(frames: tuple[Frame, ...], by: By, depth: int) -> Label:
    frame = frames[0]
    if by == "file":
        return Label(frame.file, file=frame.file)
    if by == "module":
        return _module(frames)
    callers = frames[1:depth]
    if by == "function":
        key = " < ".join(f"{f.file}:{f.function}" for f in (frame, *callers))
        return Label(key, function=frame.function, file=frame.file, callers=callers)
    key = " < ".join(map(_place, (frame, *callers)))
    return Label(key, function=frame.function, file=frame.file, line=frame.line, callers=callers)


def _place(frame: Frame) -> str:
    """Instructions that Python itself adds have no line; functions of one file are not one row for that."""
    return f"{frame.file}:{frame.line or frame.function}"


def _module(frames: tuple[Frame, ...]) -> Label:
    """The innermost nn.Module around a frame: the class whose `forward` runs. Without one, the function."""
    for frame in frames:
        owner, _, method = frame.function.rpartition(".")
        if method == "forward" and owner:
            return Label(f"{frame.file}:{owner}", function=owner.split(".")[-1], file=frame.file)
    frame = frames[0]
    return Label(f"{frame.file}:{frame.function}", function=frame.function, file=frame.file)


def _layers(stacks: Stacks, row: int, folded: bool) -> list[Label]:
    """The module that a stack is in and those around it, innermost first."""
    if not row:
        return []
    path = layer_path(stacks, row, folded)
    if not path:
        return [Label(OUTSIDE)]
    out = []
    for i in range(len(path), 0, -1):
        layer = path[i - 1]
        key = " > ".join(part.key for part in path[:i])
        out.append(Label(key, function=layer.name, file=layer.file, line=layer.line))
    return out
