# SPDX-License-Identifier: Apache-2.0
"""Collapsed stacks for flamegraph.pl, one per line: `phase;outermost;..;kernel nanoseconds`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from profiling_lab.export.flame_stacks import FlameFrame, flame_stacks, host_flame_stacks
from profiling_lab.export.output import Progress, Written, no_progress
from profiling_lab.trace import Trace


def write_collapsed(
    trace: Trace,
    path: Path,
    own: tuple[str, ...] = (),
    *,
    own_only: bool = False,
    host: bool = False,
    progress: Progress = no_progress,
) -> tuple[Written, ...]:
    """Write the file; equal stacks are one line. host: the sampled stacks of the host instead, by thread.

    Raises what `flame_stacks` and `host_flame_stacks` raise.
    """
    lines: Counter[str] = Counter()
    stacks_of = host_flame_stacks if host else flame_stacks
    for stack in stacks_of(trace, own, own_only=own_only):
        lines[";".join(map(_text, (FlameFrame(stack.profile[1], "", 0), *stack.frames)))] += stack.ns
    with path.open("w", encoding="utf-8") as out:
        out.writelines(f"{text} {ns}\n" for text, ns in sorted(lines.items()))
    progress("stacks", len(lines), len(lines))
    return (Written("stacks", len(lines)),)


def _text(frame: FlameFrame) -> str:
    """A frame without the separators of the format: semicolons and line breaks."""
    text = f"{frame.name} ({frame.file}:{frame.line})" if frame.file else frame.name
    return " ".join(text.replace(";", ",").split()) or "?"
