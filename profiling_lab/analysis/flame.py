# SPDX-License-Identifier: Apache-2.0
"""GPU time by Python stack: as a tree of user frames, and stack by stack for flame graphs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from profiling_lab import _analysis
from profiling_lab.analysis.coverage import Coverage, coverage, reason_text, why_no_line
from profiling_lab.analysis.lines import PHASES, PhaseFilter, needs_operations, needs_stacks
from profiling_lab.analysis.lines_groups import own_frames
from profiling_lab.errors import UsageError
from profiling_lab.records import dataclass
from profiling_lab.trace.columns import I32, dense
from profiling_lab.trace.ownership import Ownership
from profiling_lab.trace.phases import LINE_PHASES, LinePhase
from profiling_lab.trace.stacks import Frame
from profiling_lab.trace.trace import Trace


class StackTime(NamedTuple):
    """GPU time that one stack launched in one phase."""

    phase: LinePhase
    frames: tuple[Frame, ...]
    """innermost first, () where there are none"""
    reason: str
    """why no line in user code launched it, '' where one has"""
    kernel: str
    """short name of the kernel, or of the kind of copy; '' where kernels are not distinguished"""
    ns: int
    operations: int


def stack_times(
    trace: Trace, own_row: I32, *, all_frames: bool = False, by_kernel: bool = False
) -> Iterator[StackTime]:
    """Every (phase, stack) with its GPU time; they sum to that of the trace. The frames are those of the
    user's code, or with `all_frames` the libraries' too.

    Raises NotEnoughDataError in a trace without operations.
    """
    found, operations, stacks = trace.attribution, trace.operations, trace.stacks
    why = why_no_line(trace, own_row)
    stack = (found.stack if all_frames else np.where(why == 0, own_row[found.stack], 0)).astype(np.int64)
    name, names = _short_names(operations.short_names)
    kernel = name[operations.name].astype(np.int64) if by_kernel else np.zeros(len(stack), np.int64)
    bits = kernel << 38 | stack << 7 | why.astype(np.int64) << 3 | found.line_phase
    number, distinct = dense(bits)
    total, count = _analysis.sum_by_key(number, operations.duration_ns, len(distinct))
    frames: dict[int, tuple[Frame, ...]] = {}
    for value, ns, times in zip(distinct.tolist(), total.tolist(), count.tolist(), strict=True):
        row, reason, phase = value >> 7 & 0x7FFFFFFF, value >> 3 & 0xF, value & 7
        if row not in frames:
            frames[row] = stacks.of(row) if all_frames else own_frames(stacks, own_row, row)
        text = reason_text(trace, reason) if reason else ""
        yield StackTime(
            LinePhase(phase), frames[row], text, names[value >> 38] if by_kernel else "", ns, times
        )


def _short_names(texts: tuple[str, ...]) -> tuple[I32, list[str]]:
    """Equal names numbered equally: kernels of one template have the same."""
    distinct = {text: i for i, text in enumerate(dict.fromkeys(texts))}
    return np.array([distinct[text] for text in texts] or [0], dtype=np.int32), list(distinct)


@dataclass(frozen=True, slots=True)
class CallNode:
    """A user frame under those that called it. The root is all GPU time; work without a line is below it
    too, by its reason.
    """

    key: str
    """the places on the way from the outermost frame, stable over runs; '' of the root"""
    parent: int
    """row of `CallTree.nodes`, -1 of the root"""
    depth: int
    frame: Frame | None
    reason: str
    """why there is no frame, '' where there is one and of the root"""
    inclusive_phase_ns: tuple[int, ...]
    """by LinePhase"""
    self_ns: int
    """launched by this line and by no user frame below it"""
    operations: int
    """of the node and of all below it"""

    @property
    def inclusive_ns(self) -> int:
        return sum(self.inclusive_phase_ns)


@dataclass(frozen=True, slots=True)
class CallTree:
    """Nodes depth first, the most expensive child first."""

    nodes: tuple[CallNode, ...]
    coverage: Coverage
    phase: PhaseFilter
    total_nodes: int
    """before the tree was cut"""

    @property
    def truncated(self) -> bool:
        return self.total_nodes > len(self.nodes)


@dataclass(slots=True)
class _Building:
    key: str
    depth: int
    frame: Frame | None
    reason: str
    phase_ns: list[int]
    self_ns: int
    operations: int
    children: dict[str, _Building]

    @classmethod
    def new(cls, key: str, depth: int, frame: Frame | None = None, reason: str = "") -> _Building:
        return cls(key, depth, frame, reason, [0] * len(LinePhase), 0, 0, {})

    def add(self, time: StackTime) -> None:
        self.phase_ns[time.phase] += time.ns
        self.operations += time.operations

    def child(self, place: str, frame: Frame | None = None, reason: str = "") -> _Building:
        if place not in self.children:
            key = f"{self.key} > {place}" if self.key else place
            self.children[place] = _Building.new(key, self.depth + 1, frame, reason)
        return self.children[place]


def call_tree(
    trace: Trace,
    phase: PhaseFilter = "all",
    own: tuple[str, ...] | None = None,
    depth: int | None = None,
    limit: int | None = None,
    min_share: float = 0.0,
) -> CallTree:
    """The calls in user code that GPU time was spent under; backward counts where its forward does.

    depth: the most frames below each other. limit: the most nodes, the most expensive ones first.
    min_share: leaves out nodes with less of the tree's GPU time. What is left out stays in the time of those
    above. Raises UsageError for an unknown phase, NotEnoughDataError without stacks or GPU operations.
    """
    if phase not in PHASES:
        raise UsageError(f"phase must be one of {', '.join(PHASES)}, not {phase!r}")
    needs_operations(trace)  # an empty trace says so before one without stacks does
    needs_stacks(trace)
    own_row = trace.stacks.own_rows(Ownership(own or ()))
    root = _Building.new("", 0)
    for time in stack_times(trace, own_row):
        if phase != "all" and LINE_PHASES[time.phase] != phase:
            continue
        root.add(time)
        node = root
        for frame in reversed(time.frames):
            node = node.child(f"{frame.file}:{frame.line}", frame)
            node.add(time)
        if time.reason:
            node = node.child(f"({time.reason})", reason=time.reason)
            node.add(time)
        node.self_ns += time.ns
    nodes = list(_depth_first(root))
    kept = _kept(nodes, depth, limit, min_share * sum(root.phase_ns))
    return CallTree(tuple(_numbered(nodes, kept)), coverage(trace, own_row), phase, len(nodes))


def _depth_first(root: _Building) -> Iterator[tuple[_Building, int]]:
    """Each node with the number of its parent in this order."""
    stack = [(root, -1)]
    number = 0
    while stack:
        node, parent = stack.pop()
        yield node, parent
        ranked = sorted(node.children.values(), key=lambda child: (sum(child.phase_ns), child.key))
        stack += ((child, number) for child in ranked)
        number += 1


def _kept(
    nodes: list[tuple[_Building, int]], depth: int | None, limit: int | None, least_ns: float
) -> set[int]:
    """The nodes within the limits. No node costs more than its parent, so parents of kept nodes are kept."""
    inside = [
        i
        for i, (node, _) in enumerate(nodes)
        if not node.depth or (sum(node.phase_ns) >= least_ns and (depth is None or node.depth <= depth))
    ]
    ranked = sorted(inside, key=lambda i: (-sum(nodes[i][0].phase_ns), nodes[i][0].depth, i))
    return set(ranked[:limit])


def _numbered(nodes: list[tuple[_Building, int]], kept: set[int]) -> Iterator[CallNode]:
    number = {old: new for new, old in enumerate(i for i in range(len(nodes)) if i in kept)}
    for i in number:
        node, parent = nodes[i]
        yield CallNode(
            key=node.key,
            parent=number.get(parent, -1),
            depth=node.depth,
            frame=node.frame,
            reason=node.reason,
            inclusive_phase_ns=tuple(node.phase_ns),
            self_ns=node.self_ns,
            operations=node.operations,
        )
