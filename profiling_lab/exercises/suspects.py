# SPDX-License-Identifier: Apache-2.0
"""Candidate lines of a recording, with their numbers as the tables of profiling-lab show them.

An exercise selects GPU operations (or waits of the host) and their weights. This module sums them by line,
and collects the names for each line and the number that the learner has to read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Literal

import numpy as np

from profiling_lab.analysis.gaps.gaps import gaps
from profiling_lab.analysis.lines import lines
from profiling_lab.analysis.lines_host import host_lines
from profiling_lab.analysis.syncs import syncs
from profiling_lab.rules.view import Mask, View
from profiling_lab.trace import Trace
from profiling_lab.trace.columns import I32, I64, MemoryKind

CALLERS = 4  # frames that may be on the same line: a comprehension, a generator, their function
Effect = Literal["share", "kernels", "waits", "idle"]


@dataclass(frozen=True, slots=True)
class Suspect:
    """One line of the program."""

    file: str
    line: int
    function: str
    weight: float
    effect: float
    """the number in the table for this line, in the unit of the exercise"""
    names: Mapping[str, float]
    """the kernels, calls or kinds of memory of the line, with their weights"""


Find = Callable[[Trace], list[Suspect]]


def operations(
    chosen: Callable[[View], Mask],
    *,
    effect: Effect = "share",
    weigh: Literal["time", "number"] = "time",
    names: Literal["kernel", "memory"] = "kernel",
) -> Find:
    """Candidates by the GPU operations that `chosen` selects; the effect is a column of `lines`."""

    def find(trace: Trace) -> list[Suspect]:
        view = View(trace)
        rows = np.flatnonzero(chosen(view) & (view.operation_place >= 0))
        columns = trace.operations
        weight = columns.duration_ns[rows] if weigh == "time" else np.ones(len(rows), dtype=np.int64)
        if names == "memory":
            source, target = columns.source_memory[rows], columns.target_memory[rows]
            host_side = np.where(source == MemoryKind.DEVICE, target, source)
            texts = [MemoryKind(kind).name.lower() for kind in host_side.tolist()]
        else:
            texts = [columns.names[name] for name in columns.name[rows].tolist()]
        table = {
            (row.file, row.line): 100 * row.share_frac if effect == "share" else float(row.kernels)
            for row in lines(trace).rows
        }
        return _suspects(view, view.operation_place[rows], weight, texts, table)

    return find


def waits(trace: Trace) -> list[Suspect]:
    """Candidates by the number of waits for the GPU; the effect is that number, a column of `syncs`."""
    found: dict[tuple[str, int], Suspect] = {}
    for row in syncs(trace).rows:
        frame = row.place.frame
        if frame is None:
            continue
        key, number = (frame.file, frame.line), float(row.stats.count)
        old = found.get(key)
        before = old.names if old else {}
        found[key] = Suspect(
            PurePath(frame.file).name,
            frame.line,
            frame.function,
            (old.weight if old else 0.0) + number,
            (old.effect if old else 0.0) + number,
            {**before, row.api: before.get(row.api, 0.0) + number},
        )
    return _ranked(list(found.values()))


def idle(trace: Trace) -> list[Suspect]:
    """Candidates by the idle time of the GPU inside of steps. The effect is a column of `gaps`, in ms per
    step; the names are the causes.
    """
    found: dict[tuple[str, int], Suspect] = {}
    for row in gaps(trace).rows:
        if row.frame is None or not row.in_steps_ns or row.per_step_ns is None:
            continue
        key, old = (row.frame.file, row.frame.line), found.get((row.frame.file, row.frame.line))
        before = old.names if old else {}
        found[key] = Suspect(
            PurePath(row.frame.file).name,
            row.frame.line,
            row.frame.function,
            (old.weight if old else 0.0) + row.in_steps_ns,
            max(old.effect if old else 0.0, row.per_step_ns / 1e6),
            {**before, row.cause: before.get(row.cause, 0.0) + row.in_steps_ns},
        )
    return _ranked(list(found.values()))


def host_samples(trace: Trace) -> list[Suspect]:
    """Candidates by the samples of Python stacks; the effect is a column of `lines --host`, the names are
    the functions of the lines that called it.
    """
    callers: dict[tuple[str, int], dict[str, float]] = {}
    for row in host_lines(trace, depth=CALLERS).rows:
        of_line = callers.setdefault((row.file, row.line), {})
        outside = [each for each in row.callers if (each.file, each.line) != (row.file, row.line)]
        name = outside[0].function.partition(".<locals>.<")[0] if outside else "<module>"
        of_line[name] = of_line.get(name, 0.0) + row.samples
    return _ranked(
        [
            Suspect(
                PurePath(row.file).name,
                row.line,
                row.function,
                float(row.samples),
                100 * row.share_frac,
                callers[row.file, row.line],
            )
            for row in host_lines(trace).rows
        ]
    )


def _suspects(
    view: View, place: I32, weight: I64, texts: list[str], table: Mapping[tuple[str, int], float]
) -> list[Suspect]:
    named: dict[int, dict[str, float]] = {}
    for number, part, text in zip(place.tolist(), weight.tolist(), texts, strict=True):
        of_line = named.setdefault(number, {})
        of_line[text] = of_line.get(text, 0.0) + part
    found = []
    for number, of_line in named.items():
        frame = view.place(number)
        if frame is not None:
            effect = table.get((frame.file, frame.line), 0.0)
            file = PurePath(frame.file).name
            found.append(Suspect(file, frame.line, frame.function, sum(of_line.values()), effect, of_line))
    return _ranked(found)


def _ranked(found: list[Suspect]) -> list[Suspect]:
    return sorted(found, key=lambda each: (-each.weight, each.file, each.line))
