# SPDX-License-Identifier: Apache-2.0
"""The summary that `record` prints at the end: the files it wrote, and what is missing in them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from profiling_lab.report import numbers

if TYPE_CHECKING:
    from profiling_lab.recording import RecordingSummary
    from profiling_lab.recording.children import Child


def of_this_process(summary: RecordingSummary, script: str, output: Path) -> list[str]:
    missing = dict(summary.reasons)
    gpu = missing.pop("gpu", None)
    if gpu is not None:
        missing.pop("autograd", None)  # without launches there is nothing to link
        counts = ["no GPU activity"]
    else:
        copies = f"{summary.copies:,} {'copy' if summary.copies == 1 else 'copies'}"
        counts = [numbers.counted(summary.kernels, "kernel"), copies]
    if summary.ranges:
        counts.append(numbers.counted(summary.ranges, "NVTX range"))
    if summary.launches:
        calls = numbers.counted(summary.launches, "CUDA call")
        counts.append(f"{numbers.share(summary.stacks / summary.launches)} of {calls} with a Python stack")
    counts.append(f"{summary.dropped} dropped" if summary.dropped else "nothing dropped")
    size = numbers.size(summary.path.stat().st_size)
    reasons = [f"no GPU activity: {gpu}"] if gpu is not None else []
    reasons += [f"{part}: {why}" for part, why in missing.items()]
    look_at = "lines" if summary.kernels else "info"
    return [
        f"recorded {summary.seconds:.1f} s of {script}: {', '.join(counts)}; wrote {output} ({size}); "
        f"next: profiling-lab {look_at} {output}",
        *([summary.meta["budget_reached"]] if "budget_reached" in summary.meta else []),
        *reasons,
    ]


def of_children(children: Sequence[Child], program: str) -> list[str]:
    """`program` is the launched program; "" if a script in this process started the children."""
    from profiling_lab.recording.children import FINISHED, RECOVERED

    files = [child for child in children if child.state in (FINISHED, RECOVERED)]
    others = [child for child in children if child not in files]
    lines = []
    if files:
        count = f"{len(files)} {'process' if len(files) == 1 else 'processes'}"
        whose = f" of {program}" if program else " more"
        names = [_shown(child.path) for child in files]
        next_one = f"lines {names[0]}" if len(files) == 1 else f"merge {' '.join(names)} -o job.sqlite"
        listed = ", ".join(map(_of_file, files))
        lines.append(f"recorded {count}{whose}: {listed}; next: profiling-lab {next_one}")
    elif program and not others:
        lines.append(
            f"recorded nothing: no process of {program} used the GPU from a Python that has profiling_lab "
            "and was started without -E, -I and -S"
        )
    return lines + _missing(files) + list(map(_of_no_file, others))


def _missing(files: list[Child]) -> list[str]:
    """What was not recorded, and why. A reason that holds for every file is printed once."""
    where: dict[str, list[str]] = {}
    for child in files:
        for part, why in child.reasons.items():
            where.setdefault(f"{part}: {why}", []).append(_shown(child.path))
    return [
        what if len(names) == len(files) else f"{', '.join(names)}: {what}" for what, names in where.items()
    ]


def _of_file(child: Child) -> str:
    from profiling_lab.recording.children import RECOVERED

    parts = [numbers.counted(child.kernels, "kernel"), numbers.size(os.path.getsize(child.path))]
    if child.dropped:
        parts.append(f"{child.dropped:,} dropped")
    if child.state == RECOVERED:
        parts.append("killed; recovered")
    return f"{_shown(child.path)} (pid {child.pid}, {', '.join(parts)})"


def _of_no_file(child: Child) -> str:
    from profiling_lab.recording.children import FAILED, KILLED, REFUSED

    if child.state == REFUSED:
        return f"pid {child.pid} was not recorded: {child.why}"
    spool = _shown(str(child.spool))
    if child.state not in (FAILED, KILLED):
        return f"pid {child.pid} still records into {_shown(child.path)}"
    what = "was killed" if child.state == KILLED else "could not finish its recording"
    left = f"what was captured is in {spool}" if child.spool.is_file() else "the recording is lost"
    return f"pid {child.pid} {what}: {child.why}; {left}"


def _shown(path: str) -> str:
    """The path relative to the working folder, if it is inside."""
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative
