# SPDX-License-Identifier: Apache-2.0
"""What a comparison needs of recordings, in a small file: CI keeps kilobytes and not the recordings."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import msgspec
import numpy as np

from profiling_lab.analysis.diff.measure import Capture, LineInPhase, Origin
from profiling_lab.analysis.memory.held import PeakMemory
from profiling_lab.errors import UnreadableInputError, UsageError
from profiling_lab.records import dataclass, replace
from profiling_lab.trace.columns import I64, unique

SCHEMA = "profiling-lab/baseline-1"
MOST_STEPS = 200
"""the most steps kept of one recording, spread evenly"""
# A formatter may have run over a baseline.
_START = re.compile(rb'\s*{\s*"schema"\s*:\s*"profiling-lab/baseline')


@dataclass(frozen=True, slots=True)
class _Kept:
    """One recording. `part_ns` has a list per place: most are 0 in most steps."""

    origin: Origin
    step_ns: list[int]
    whole_ns: list[int]
    twice_ns: list[int]
    places: list[tuple[LineInPhase, str]]
    part_ns: list[list[int]]
    input_bytes: int
    devices: int
    of_steps: int
    """how many steps the recording has"""
    memory: PeakMemory | None = None


@dataclass(frozen=True, slots=True)
class _File:
    schema: str
    captures: list[_Kept]


def is_baseline(path: Path) -> bool:
    """Whether the file says that it is one."""
    try:
        with path.open("rb") as file:
            return _START.match(file.read(200)) is not None
    except OSError:
        return False


def save_baseline(captures: Sequence[Capture], path: Path) -> None:
    """Write the file whole, or leave what is there. Raises UsageError where it cannot be written."""
    content = msgspec.json.encode({"schema": SCHEMA, "captures": [asdict(_kept(c)) for c in captures]})
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(content + b"\n")
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise UsageError(f"{path} cannot be written: {error.strerror}") from None


def _kept(capture: Capture) -> _Kept:
    steps = len(capture)
    rows = unique(np.linspace(0, steps - 1, min(steps, MOST_STEPS)).round().astype(np.int64))
    parts = capture.part_ns[rows]
    used = np.flatnonzero(parts.any(axis=0))
    return _Kept(
        origin=capture.origin,
        step_ns=capture.step_ns[rows].tolist(),
        whole_ns=capture.whole_ns[rows].tolist(),
        twice_ns=capture.twice_ns[rows].tolist(),
        places=[capture.places[i] for i in used.tolist()],
        part_ns=parts[:, used].T.tolist(),
        input_bytes=capture.input_bytes,
        devices=capture.devices,
        of_steps=steps,
        memory=capture.memory,
    )


def load_baseline(path: Path, own: tuple[str, ...] = (), steps_by: str | None = None) -> tuple[Capture, ...]:
    """The recordings that a baseline holds. `own`, `steps_by`: what the comparison goes by.

    Raises UnreadableInputError for a damaged file or one of another version, UsageError for a baseline that
    was saved with other options: its lines or steps would not be the same.
    """
    try:
        content = path.read_bytes()
        found = msgspec.json.decode(content, type=_File)
        captures = tuple(_capture(kept, str(path)) for kept in found.captures)
    except OSError as error:
        raise UnreadableInputError(f"{path} cannot be read: {error.strerror}") from None
    except (msgspec.MsgspecError, ValueError, OverflowError) as error:
        raise UnreadableInputError(f"{path} is no baseline of this version, or is damaged: {error}") from None
    if found.schema != SCHEMA or not captures:
        raise UnreadableInputError(
            f"{path} is a baseline of {found.schema or 'an unknown version'}, not {SCHEMA}"
        )
    for capture in captures:
        if (capture.origin.own, capture.origin.steps_by) != (own, steps_by or ""):
            raise UsageError(f"{path} was saved {_options(capture.origin)}; compare it the same way")
    return captures


def _options(origin: Origin) -> str:
    """`with --own model.py`"""
    options = [f"--own {name}" for name in origin.own]
    options += [f"--steps-by {origin.steps_by}"] if origin.steps_by else []
    return f"with {' '.join(options)}" if options else "without --own and --steps-by"


def _capture(kept: _Kept, saved: str) -> Capture:
    steps, places = len(kept.step_ns), len(kept.places)
    parts: I64 = (
        np.array(kept.part_ns, dtype=np.int64).reshape(places, -1).T
        if places
        else np.zeros((steps, 0), np.int64)
    )
    columns = [np.array(column, dtype=np.int64) for column in (kept.step_ns, kept.whole_ns, kept.twice_ns)]
    if not steps or parts.shape != (steps, places) or any(column.shape != (steps,) for column in columns):
        raise ValueError("its tables do not fit each other")
    if not np.array_equal(parts.sum(axis=1) + columns[2], columns[1]):
        raise ValueError("the parts of its steps do not add up")
    if kept.memory and (
        not kept.memory.peaks or kept.memory.peak_bytes != sum(part.bytes for part in kept.memory.parts)
    ):
        raise ValueError("what its memory held does not add up to the peak")
    return Capture(
        origin=replace(kept.origin, saved=saved),
        step_ns=columns[0],
        whole_ns=columns[1],
        places=tuple(kept.places),
        part_ns=np.ascontiguousarray(parts),
        twice_ns=columns[2],
        input_bytes=kept.input_bytes,
        devices=kept.devices,
        memory=kept.memory,
    )
