# SPDX-License-Identifier: Apache-2.0
"""The layer that costs most GPU time, in sentences: its kernels, and what may be concluded."""

from __future__ import annotations

from pathlib import PurePath

from profiling_lab.analysis.bottleneck import Bottleneck, Layer, find, layer_name
from profiling_lab.analysis.kernels.kernels import KernelRow
from profiling_lab.analysis.source_names import qualified
from profiling_lab.report import numbers
from profiling_lab.report.kernels.names import readable
from profiling_lab.trace import Frame

__all__ = [
    "Bottleneck",
    "Layer",
    "conclusion",
    "find",
    "kernel_tree",
    "layer_name",
    "place",
    "shown_name",
]


def place(found: Bottleneck, frame: Frame) -> str:
    """Say where a frame is: `model.py:HeavyLayer.forward() line 87`."""
    function = qualified(frame.function, frame.file, frame.line, found.sources)
    return f"{PurePath(frame.file).name}:{function}() line {frame.line}"


def kernel_tree(found: Bottleneck, limit: int = 5, depth: int = 6, module: str | None = None) -> list[str]:
    """The kernels by time, each above the frames that launched most of it, the innermost one first."""
    text = []
    for number, row in enumerate(found.kernels[:limit], 1):
        launches = "1 launch" if row.count == 1 else f"{numbers.count(row.count)} launches"
        cost = f"{numbers.share(row.share_frac)} of GPU time; {launches}, {numbers.time(row.average_ns)} each"
        text.append(f"{number}. {shown_name(row)} ({cost})")
        text += ["   " + line for line in _stack(found, row, depth, module)]
    return text


def shown_name(row: KernelRow, width: int = 60) -> str:
    """A kernel's name as a line can hold it: library kernels have 150 letters, and differ at both ends."""
    name = readable(row.name, row.short_name)
    if len(name) <= width:
        return name
    head = width * 2 // 3
    return f"{name[:head]}...{name[head + 3 - width :]}"


def _stack(found: Bottleneck, row: KernelRow, depth: int, module: str | None) -> list[str]:
    if not row.stacks or not row.stacks[0].frames:
        return ["└── no Python line"]
    first, *others = row.stacks
    frames = [frame for frame in first.frames if module is None or frame.file.endswith(module)][:depth]
    if not frames:
        return [f"└── no frame in {module}"]
    text = [f"{'    ' * level}└── Python: {place(found, frame)}" for level, frame in enumerate(frames)]
    if first.phase == "backward":
        text[0] += ", its backward"
    if others:
        rest = numbers.share(1 - first.gpu_ns / row.total_ns)
        text.append(
            f"(and {len(others)} other place{'s' * (len(others) > 1)} with {rest} of this kernel's time)"
        )
    return text


def conclusion(found: Bottleneck) -> str:
    """The conclusion from the tables, in one or two sentences. No layer's name is known beforehand."""
    first, covered = found.layers[0], found.coverage.attributed_frac
    cost = f"{numbers.share(first.share_frac)} of GPU time, at {PurePath(first.file).name} line {first.line}"
    if not found.is_clear and not found.is_covered:
        return (
            f"none. Only {numbers.share(covered)} of the GPU time has a Python line, "
            "too little to call anything the bottleneck."
        )
    if not found.is_clear:
        return f"no layer stands out. {first.name} costs most: {cost}."
    text = f"{first.name} is the bottleneck: {cost}."
    longest = found.kernels[0]
    frames = longest.stacks[0].frames if longest.stacks else ()
    if frames and found.layer_of(frames[0]) != first.name:
        text += (
            f" No single kernel shows it: {shown_name(longest)}, the one with the most time, belongs to "
            f"{found.layer_of(frames[0])}; the {numbers.count(first.kernels)} kernels of {first.name} "
            "only add up by line."
        )
    if not found.is_covered:
        text += f" (But {numbers.share(1 - covered)} of the GPU time has no Python line.)"
    return text
