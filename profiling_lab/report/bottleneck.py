# SPDX-License-Identifier: Apache-2.0
"""Which layer costs most GPU time, which kernels it is made of, and what may be concluded from that.

A layer is what a reader of the model calls one: the class whose method launched the kernels, or the function where there is no
class. Its cost is the sum over all its lines, forward and backward, because a layer of many short kernels can cost more than
one with the longest kernel of all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

from profiling_lab.errors import NotEnoughDataError
from profiling_lab.trace import Trace
from profiling_lab.trace.kernels import KernelRow, KernelsResult, top_kernels
from profiling_lab.trace.lines import Coverage, LineRow, LinesResult, lines

CLEAR_SHARE_FRAC = 1 / 3  # a layer is called the bottleneck from here on,
CLEAR_LEAD = 1.25  # and when it costs this many times the next one
ENOUGH_COVERAGE_FRAC = 0.5  # with more than half of the GPU time unexplained, any ranking is a guess


@dataclass(frozen=True, slots=True)
class Layer:
    """All lines of one class or function, the most expensive one first."""

    name: str
    rows: tuple[LineRow, ...]

    @property
    def file(self) -> str:
        return self.rows[0].file

    @property
    def line(self) -> int:
        return self.rows[0].line

    @property
    def forward_ns(self) -> int:
        return sum(row.forward_ns for row in self.rows)

    @property
    def backward_ns(self) -> int:
        return sum(row.backward_ns for row in self.rows)

    @property
    def total_ns(self) -> int:
        return self.forward_ns + self.backward_ns

    @property
    def kernels(self) -> int:
        return sum(row.kernels for row in self.rows)

    @property
    def share_frac(self) -> float:
        return sum(row.share_frac for row in self.rows)


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """The layers by cost, the kernels by cost, and how much GPU time both tables leave out."""

    layers: tuple[Layer, ...]
    by_line: LinesResult
    by_kernel: KernelsResult

    @property
    def coverage(self) -> Coverage:
        return self.by_line.coverage

    @property
    def is_clear(self) -> bool:
        """Whether the first layer stands out enough to be called the bottleneck."""
        first, *rest = self.layers
        lead = not rest or first.total_ns >= CLEAR_LEAD * rest[0].total_ns
        return lead and first.share_frac >= CLEAR_SHARE_FRAC and self.is_covered

    @property
    def is_covered(self) -> bool:
        """Whether the lines explain enough of the GPU's time to compare them."""
        return self.coverage.attributed_ns >= ENOUGH_COVERAGE_FRAC * self.coverage.gpu_ns

    def kernels_of(self, layer: str) -> dict[str, int]:
        """GPU nanoseconds of each kernel, by full name, that this layer launched, forward or backward."""
        times: dict[str, int] = defaultdict(int)
        for row in self.by_kernel.rows:
            for stack in row.stacks:
                if stack.frames and layer_name(stack.frames[0].function) == layer:
                    times[row.name] += stack.gpu_ns
        return dict(sorted(times.items(), key=lambda item: -item[1]))


def layer_name(function: str) -> str:
    """The layer that a qualified function name belongs to: "HeavyLayer.forward" -> "HeavyLayer"."""
    owner, _, _ = function.rpartition(".")
    return owner if owner and not owner.endswith("<locals>") else function


def find(trace: Trace, own: Sequence[str] | None = None) -> Bottleneck:
    """Rank the layers of a recording. Raises NotEnoughDataError where no kernel has a Python line."""
    by_line = lines(trace, by="line", own=own)
    rows: dict[tuple[str, str], list[LineRow]] = defaultdict(list)
    for row in by_line.rows:
        rows[row.file, layer_name(row.function)].append(row)
    if not rows:
        raise NotEnoughDataError(
            "no kernel of this recording has a Python line: it was made without Python stacks, or none of them is in your own code"
        )
    layers = [Layer(name, tuple(sorted(group, key=_cost))) for (_, name), group in rows.items()]
    return Bottleneck(tuple(sorted(layers, key=lambda layer: -layer.total_ns)), by_line, top_kernels(trace, own=own))


def _cost(row: LineRow) -> int:
    return -(row.forward_ns + row.backward_ns)


def place(function: str, file: str, line: int) -> str:
    """ "model.py:HeavyLayer.forward() line 65" """
    return f"{PurePath(file).name}:{function}() line {line}"


def kernel_tree(found: Bottleneck, limit: int = 5, depth: int = 6, module: str | None = None) -> list[str]:
    """The kernels by time, each above the frames that launched most of it, the innermost one first."""
    text = []
    for number, row in enumerate(found.by_kernel.rows[:limit], 1):
        text.append(f"{number}. {row.short_name} ({row.share_frac:.0%} of GPU time, {_launches(row)})")
        text += ["   " + line for line in _stack(row, depth, module)]
    return text


def _launches(row: KernelRow) -> str:
    each_ms = row.total_ns / row.count / 1e6
    return f"{row.count} launch{'es' * (row.count > 1)}, {each_ms:.3f} ms each"


def _stack(row: KernelRow, depth: int, module: str | None) -> list[str]:
    if not row.stacks or not row.stacks[0].frames:
        return ["└── no Python line"]
    widest = row.stacks[0]
    frames = [f for f in widest.frames if module is None or f.file.endswith(module)][:depth]
    text = [
        f"{'    ' * level}└── Python: {place(frame.function, frame.file, frame.line)}"
        for level, frame in enumerate(frames)
    ]
    if not text:
        return [f"└── no frame in {module}"]
    if widest.phase == "backward":
        text[0] += ", its backward"
    if len(row.stacks) > 1:
        rest_frac = 1 - widest.gpu_ns / row.total_ns
        text.append(f"(and {len(row.stacks) - 1} more places, {rest_frac:.0%} of this kernel's time)")
    return text


def conclusion(found: Bottleneck) -> str:
    """What the two tables allow to say, in one or two sentences; no layer's name is known beforehand."""
    first = found.layers[0]
    where = f"{PurePath(first.file).name} line {first.line}"
    if not found.is_covered:
        share = found.coverage.attributed_ns / max(1, found.coverage.gpu_ns)
        return f"none. Only {share:.0%} of the GPU time has a Python line, so no layer can be called the bottleneck."
    if not found.is_clear:
        return f"no layer stands out. {first.name} costs most: {first.share_frac:.0%} of GPU time, at {where}."
    text = f"{first.name} is the bottleneck: {first.share_frac:.0%} of GPU time, at {where}."
    longest = found.by_kernel.rows[0]
    frames = longest.stacks[0].frames if longest.stacks else ()
    if frames and layer_name(frames[0].function) != first.name:
        text += (
            f" The kernel with the most time is not its own ({longest.short_name} belongs to "
            f"{layer_name(frames[0].function)}): {first.name} is {first.kernels} kernels that only add up by line."
        )
    return text
