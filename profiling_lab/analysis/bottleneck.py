# SPDX-License-Identifier: Apache-2.0
"""Which layer costs most GPU time, and which kernels it is made of.

A layer is what a reader of the model calls one: the class whose method launched the kernels, or the
function where there is no class. Its cost is the sum over all its lines, forward and backward, because a
layer of many short kernels can cost more than one with the longest kernel of all.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from profiling_lab.analysis.coverage import Coverage
from profiling_lab.analysis.kernels.kernels import KernelRow, top_kernels
from profiling_lab.analysis.lines import LineRow, lines
from profiling_lab.analysis.source_names import qualified
from profiling_lab.errors import NotEnoughDataError
from profiling_lab.records import dataclass
from profiling_lab.trace import Frame, Trace

CLEAR_SHARE_FRAC = 1 / 3  # a layer is called the bottleneck from here on,
CLEAR_LEAD = 1.25  # and when it costs this many times the next one that is known
ENOUGH_COVERAGE_FRAC = 0.5  # with more than half of the GPU time unexplained, a close ranking is a guess


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
        return sum(row.forward_ns + row.optimizer_ns for row in self.rows)

    @property
    def backward_ns(self) -> int:
        return sum(row.backward_ns + row.recompute_ns for row in self.rows)

    @property
    def gpu_ns(self) -> int:
        return self.forward_ns + self.backward_ns

    @property
    def kernels(self) -> int:
        return sum(row.kernels for row in self.rows)

    @property
    def share_frac(self) -> float:
        return sum(row.share_frac for row in self.rows)


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """The layers by cost, the kernels by cost, and how much GPU time has no line."""

    layers: tuple[Layer, ...]
    lines: tuple[LineRow, ...]
    kernels: tuple[KernelRow, ...]
    coverage: Coverage
    sources: Path | None

    @property
    def is_covered(self) -> bool:
        """Whether the lines explain enough of the GPU's time to compare them."""
        return self.coverage.attributed_frac >= ENOUGH_COVERAGE_FRAC

    @property
    def is_clear(self) -> bool:
        """Whether the first layer stands out enough to be called the bottleneck."""
        first, *rest = self.layers
        leads = not rest or first.gpu_ns >= CLEAR_LEAD * rest[0].gpu_ns
        return leads and first.share_frac >= CLEAR_SHARE_FRAC

    def layer_of(self, frame: Frame) -> str:
        return layer_name(qualified(frame.function, frame.file, frame.line, self.sources))

    def kernels_of(self, layer: str) -> dict[str, int]:
        """GPU nanoseconds of each kernel, by full name, that this layer launched, forward and backward;
        longest first.
        """
        times: dict[str, int] = defaultdict(int)
        for row in self.kernels:
            for stack in row.stacks:
                if stack.frames and self.layer_of(stack.frames[0]) == layer:
                    times[row.name] += stack.gpu_ns
        return dict(sorted(times.items(), key=lambda item: -item[1]))


def layer_name(function: str) -> str:
    """The layer that a qualified function name belongs to: "HeavyLayer.forward" -> "HeavyLayer"."""
    owner, _, _ = function.rpartition(".")
    return owner if owner and not owner.endswith("<locals>") else function


def find(trace: Trace, own: tuple[str, ...] | None = None, sources: Path | None = None) -> Bottleneck:
    """Rank the layers of a recording. Raises NotEnoughDataError where no kernel has a Python line.

    own: what counts as the user's code (see `lines`). sources: a folder with the files as they were when
    recorded, for recordings that know only a function's bare name.
    """
    result = lines(trace, by="line", own=own)
    groups: dict[tuple[str, str], list[LineRow]] = defaultdict(list)
    for row in result.rows:
        groups[row.file, layer_name(qualified(row.function, row.file, row.line, sources))].append(row)
    if not groups:
        raise NotEnoughDataError(
            f"{trace.path}: no GPU time of this recording leads to a line of your own code"
        )
    layers = [
        Layer(name, tuple(sorted(rows, key=lambda row: -row.gpu_ns))) for (_, name), rows in groups.items()
    ]
    kernels = [row for row in top_kernels(trace, own=own).rows if row.kind in ("kernel", "graph")]
    return Bottleneck(
        layers=tuple(sorted(layers, key=lambda layer: -layer.gpu_ns)),
        lines=result.rows,
        kernels=tuple(kernels),
        coverage=result.coverage,
        sources=sources,
    )
