# SPDX-License-Identifier: Apache-2.0
"""Stacks from torch.profiler's events of Python functions.

Each such event knows its caller, so stacks are built without comparing times. Only the function that was
running when a call or operator began is found by time.
"""

from __future__ import annotations

import re
from enum import IntEnum

import numpy as np

from profiling_lab import _analysis
from profiling_lab.records import dataclass
from profiling_lab.trace.columns import I32, I64, NO_SEQUENCE, dense, unique
from profiling_lab.trace.kineto.events import Table
from profiling_lab.trace.stacks import Frame, Stacks

FRAME = re.compile(r"^(?P<file>.+)\((?P<line>\d+)\): (?P<function>.+)$", re.DOTALL)
_MODULE = re.compile(r"^nn\.Module: (?P<instance>(?P<name>.+)_\d+)$", re.DOTALL)
BLEED_NS = 1000


class _Role(IntEnum):
    """The role of an event in a stack (csrc/analysis/stack_tree.h)."""

    NONE = 0
    FRAME = 1
    MODULE = 2
    PASSING = 3
    FORWARD = 4


@dataclass(frozen=True, slots=True)
class PythonStacks:
    """The stacks of a file, and the stack of each requested moment."""

    stacks: Stacks
    stack: I32
    """per moment a row of `stacks`, 0 if no Python function ran"""
    not_nested: int
    """functions that overlap others without nesting; they are ignored"""


def parse_frame(text: str) -> Frame | None:
    """`path.py(12): forward` as a frame; None for built-in functions and module names."""
    match = FRAME.match(text.strip())
    if match is None or len(match["line"]) > 9:
        return None
    return Frame(match["function"], match["file"], int(match["line"]))


def python_stacks(python: Table, texts: tuple[str, ...], thread: I32, time_ns: I64, at: I32) -> PythonStacks:
    """The stack at each moment. `thread` is of the functions, `at` the thread of the moments."""
    parent_by_time, innermost, not_nested = _analysis.contain(
        python["start_ns"], python["end_ns"], thread, time_ns, at, BLEED_NS
    )
    used = unique(python["name"])
    roles = np.zeros(len(texts), dtype=np.uint8)
    roles[used] = [_role(texts[name]) for name in used.tolist()]
    parent = _parents(python, thread, parent_by_time)
    stack_of, node_parent, node_name, node_module = _analysis.fold_stacks(parent, python["name"], roles)
    frame, frames, instances = _frames(node_name, node_module, texts)
    stack = np.append(stack_of, np.int32(0))[innermost].astype(np.int32)
    return PythonStacks(Stacks(node_parent, frame, frames, instances), stack, not_nested)


def _parents(python: Table, thread: I32, by_time: I32) -> I32:
    """The caller in each event; if it is not in the file, the caller by time on the same thread."""
    parent = _analysis.parents_by_id(python["id"], python["parent_id"])
    named = parent >= 0
    wrong = named & (
        (thread[parent] != thread) | (python["start_ns"][parent] > python["start_ns"] + BLEED_NS)
    )
    unknown = wrong | ~named & ((python["parent_id"] != NO_SEQUENCE) | (python["id"] == NO_SEQUENCE))
    return np.where(unknown, by_time, parent).astype(np.int32)


def _role(name: str) -> _Role:
    if _MODULE.match(name):
        return _Role.MODULE
    frame = parse_frame(name)
    if frame is None:
        return _Role.NONE
    if frame.function == "forward":
        return _Role.FORWARD
    return _Role.PASSING if frame.file.endswith("torch/nn/modules/module.py") else _Role.FRAME


def _frames(name: I32, module: I32, texts: tuple[str, ...]) -> tuple[I32, tuple[Frame, ...], tuple[str, ...]]:
    """Per node its frame (none for node 0); the frames, and for each the nn.Module that runs it."""
    number, pairs = dense(name[1:].astype(np.int64) << 32 | (module[1:].astype(np.int64) + 1))
    found = [_frame(texts, pair >> 32, (pair & 0xFFFFFFFF) - 1) for pair in pairs.tolist()]
    found = found or [(Frame("", "", 0), "")]
    frames, instances = zip(*found, strict=True)
    return np.append(np.int32(0), number).astype(np.int32), frames, instances


def _frame(texts: tuple[str, ...], name: int, module: int) -> tuple[Frame, str]:
    """The frame, with the class of the nn.Module if it was recorded, and the module's name."""
    frame = parse_frame(texts[name])
    assert frame is not None, "only names of frames make nodes"
    owner = _MODULE.match(texts[module]) if module >= 0 else None
    if owner is None:
        return frame, ""
    return Frame(f"{owner['name']}.{frame.function}", frame.file, frame.line), owner["instance"]
