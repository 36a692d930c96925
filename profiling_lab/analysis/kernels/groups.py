# SPDX-License-Identifier: Apache-2.0
"""What makes one row of the table of kernels: the name, and what else distinguishes launches."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

import numpy as np

from profiling_lab.analysis.places import operation_places
from profiling_lab.analysis.stats import merged_names
from profiling_lab.errors import NotEnoughDataError, UsageError
from profiling_lab.records import dataclass
from profiling_lab.trace.columns import I32, OperationKind, combined
from profiling_lab.trace.extras import LaunchShapes
from profiling_lab.trace.kernel_names import base_name
from profiling_lab.trace.platform import in_words_of
from profiling_lab.trace.trace import Trace

GroupBy: TypeAlias = Literal["name", "short", "grid", "line", "shape"]
GROUPINGS: tuple[GroupBy, ...] = get_args(GroupBy)


@dataclass(frozen=True, slots=True)
class KernelGroup:
    """One row: its name, and in `detail` what distinguishes it from others of that name ('' for the name)."""

    name: str
    short_name: str
    kind: str
    """'kernel', 'copy', 'set' or 'graph'"""
    detail: str = ""


def kernel_groups(
    trace: Trace, by: GroupBy, own_row: I32, shapes: LaunchShapes | None
) -> tuple[I32, list[KernelGroup]]:
    """Per operation the number of its group, and the groups. own_row: see `operation_places`. shapes: of the
    launches, where `by` is 'grid'.

    Raises UsageError for an unknown `by`, NotEnoughDataError if the file lacks what it needs.
    """
    if by not in GROUPINGS:
        raise UsageError(f"group_by must be one of {', '.join(GROUPINGS)}, not {by!r}")
    operations = trace.operations
    short = dict(zip(operations.names, operations.short_names, strict=True))
    kind = _kinds(trace)
    name, names = merged_names(operations.name, operations.names)
    if by == "name":
        labels = [KernelGroup(text, short[text], kind[text]) for text in names]
        return name, labels
    if by == "short":
        bases = tuple(base_name(short[text]) if kind[text] == "kernel" else text for text in names)
        number, distinct = merged_names(name, bases)
        kind_of = dict(zip(bases, (kind[text] for text in names), strict=True))
        return number, [KernelGroup(text, text, kind_of[text]) for text in distinct]
    if by == "line":
        placed = operation_places(trace, own_row)
        detail, details = placed.line_number, _line_names(placed.line_number, placed.number, placed.texts)
    elif by == "grid":
        detail, details = _grids(shapes)
    else:
        detail, details = _input_shapes(trace)
    number, pairs = combined(name, detail)
    return number, [KernelGroup(names[n], short[names[n]], kind[names[n]], details[d]) for n, d in pairs]


def _kinds(trace: Trace) -> dict[str, str]:
    """The kind of the operations of each name."""
    operations = trace.operations
    first = np.zeros(len(operations.names), dtype=np.int64)
    first[operations.name[::-1]] = np.arange(len(operations))[::-1]
    used = np.zeros(len(operations.names), dtype=bool)
    used[operations.name] = True
    kinds = [OperationKind(int(operations.kind[row])).name.lower() for row in first.tolist()]
    # A name that no operation of a window has is in the table all the same.
    return {name: kinds[i] if used[i] else "kernel" for i, name in enumerate(operations.names)}


def _line_names(line: I32, place: I32, texts: tuple[str, ...]) -> list[str]:
    size = int(line.max(initial=-1)) + 1
    one_of = np.zeros(size, dtype=np.int64)
    one_of[line] = place
    return [texts[number] for number in one_of.tolist()]


def _grids(found: LaunchShapes | None) -> tuple[I32, list[str]]:
    assert found is not None, "top_kernels reads them"
    # Registers and shared memory do not distinguish rows.
    texts = dict.fromkeys(str(shape) for shape in found.shapes)
    position = {text: i for i, text in enumerate(texts)}
    table = np.array([*(position[str(shape)] for shape in found.shapes), len(texts)], dtype=np.int32)
    return table[found.number], [*texts, ""]


def _input_shapes(trace: Trace) -> tuple[I32, list[str]]:
    """The operator around the launch, in backward that of forward, with the shapes of its inputs."""
    found = trace.input_shapes
    if found is None:
        how = "record with nsys and --pytorch=autograd-shapes-nvtx, or torch.profiler with record_shapes=True"
        raise NotEnoughDataError(
            f"{trace.path} holds no shapes of operators' inputs: {in_words_of(trace, how)}"
        )
    around = trace.attribution.range
    operator = np.append(trace.ranges.name, np.int32(-1))[around]
    shape = np.append(found.number, np.int32(-1))[around]
    number, pairs = combined(operator, shape)
    names = (*trace.ranges.names, "no operator")
    texts = (*found.texts, "")
    return number, [f"{names[operator]} {texts[shape]}".rstrip() for operator, shape in pairs]
