# SPDX-License-Identifier: Apache-2.0
"""A file for speedscope.app: GPU time by Python stack, one profile per phase.

The format (github.com/jlfwong/speedscope, file-format-spec): frames are shared, a sampled profile lists
stacks as row numbers of frames, outermost first, and a weight for each.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from profiling_lab.export.flame_stacks import FlameFrame, flame_stacks, host_flame_stacks
from profiling_lab.export.output import Progress, Written, no_progress
from profiling_lab.trace import Trace

SCHEMA = "https://www.speedscope.app/file-format-schema.json"


def write_speedscope(
    trace: Trace,
    path: Path,
    own: tuple[str, ...] = (),
    *,
    own_only: bool = False,
    host: bool = False,
    progress: Progress = no_progress,
) -> tuple[Written, ...]:
    """Write the file; a phase without GPU time has no profile. host: the sampled stacks of
    the host instead, a profile per thread.

    Raises what `flame_stacks` and `host_flame_stacks` raise.
    """
    number: dict[FlameFrame, int] = {}
    samples: dict[tuple[int, str], list[tuple[list[int], int]]] = {}
    stacks_of = host_flame_stacks if host else flame_stacks
    for stack in stacks_of(trace, own, own_only=own_only):
        rows = [number.setdefault(frame, len(number)) for frame in stack.frames]
        samples.setdefault(stack.profile, []).append((rows, stack.ns))
    profiles = []
    for profile in sorted(samples):
        # Adjacent stacks with a common prefix become one box in the time-ordered view.
        ordered = sorted(samples[profile])
        profiles.append(
            {
                "type": "sampled",
                "name": f"{profile[1]} ({trace.path.name})",
                "unit": "nanoseconds",
                "startValue": 0,
                "endValue": sum(ns for _, ns in ordered),
                "samples": [rows for rows, _ in ordered],
                "weights": [ns for _, ns in ordered],
            }
        )
    document = {
        "$schema": SCHEMA,
        "name": trace.path.name,
        "exporter": "profiling-lab",
        "activeProfileIndex": 0,
        "shared": {"frames": [_frame(frame) for frame in number]},
        "profiles": profiles,
    }
    path.write_bytes(msgspec.json.encode(document))
    stacks = sum(map(len, samples.values()))
    progress("stacks", stacks, stacks)
    return (Written("profiles", len(profiles)), Written("stacks", stacks), Written("frames", len(number)))


def _frame(frame: FlameFrame) -> dict[str, object]:
    if not frame.file:
        return {"name": frame.name}
    return {"name": frame.name, "file": frame.file, "line": frame.line}
