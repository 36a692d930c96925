# SPDX-License-Identifier: Apache-2.0
"""Collapsed stacks for flamegraph.pl, one per line: `phase;outermost;..;kernel nanoseconds`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from profiling_lab.export.flame_stacks import FlameFrame, flame_stacks
from profiling_lab.export.output import Progress, Written, no_progress
from profiling_lab.trace import Trace


def write_collapsed(
    trace: Trace,
    path: Path,
    own: tuple[str, ...] = (),
    *,
    own_only: bool = False,
    progress: Progress = no_progress,
) -> tuple[Written, ...]:
    """Write the file; equal stacks are one line. Raises what `flame_stacks` raises."""
    lines: Counter[str] = Counter()
    for stack in flame_stacks(trace, own, own_only=own_only):
        lines[";".join((stack.phase.name.lower(), *map(_text, stack.frames)))] += stack.ns
    with path.open("w", encoding="utf-8") as out:
        out.writelines(f"{text} {ns}\n" for text, ns in sorted(lines.items()))
    progress("stacks", len(lines), len(lines))
    return (Written("stacks", len(lines)),)


def _text(frame: FlameFrame) -> str:
    """A frame without the separators of the format: semicolons and line breaks."""
    text = f"{frame.name} ({frame.file}:{frame.line})" if frame.file else frame.name
    return " ".join(text.replace(";", ",").split()) or "?"
