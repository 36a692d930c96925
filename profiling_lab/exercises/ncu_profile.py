# SPDX-License-Identifier: Apache-2.0
"""Profile a program with ncu: the command, and what to say where it gives no report."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from profiling_lab.analysis.ncu import report as ncu_report
from profiling_lab.analysis.ncu.command import OPTIONS
from profiling_lab.errors import NotEnoughDataError

MAKEFILE = "Makefile"
LAUNCH = (
    "device__attribute_display_name",
    "launch__grid_size",
    "launch__block_size",
    "launch__registers_per_thread",
    "gpu__time_duration.sum",
    "sm__cycles_elapsed.max",
    "sm__cycles_elapsed.avg.per_second",
)
"""Metrics of every report: they tie its other numbers to a launch, a GPU and a duration."""


def command(
    program: Sequence[str], counters: Sequence[str], report: str, *, options: Sequence[str] = ()
) -> tuple[str, ...]:
    """The command that profiles `program` (a script or an executable) and writes `report`, a CSV."""
    start = ("python",) if program[0].endswith(".py") else ()
    metrics = ",".join(dict.fromkeys((*LAUNCH, *counters)))
    return ("ncu", *OPTIONS, *options, "--log-file", report, "--metrics", metrics, *start, *program)


def run(told: Sequence[str], folder: Path, report: Path) -> int:
    """Build what is in `folder` where it has a Makefile, and profile. Returns the exit code of the first that
    failed. Raises NotEnoughDataError where ncu ran but measured nothing.
    """
    if (folder / MAKEFILE).is_file():
        if shutil.which("make") is None:
            raise NotEnoughDataError("make is not installed: it builds the program with nvcc")
        if status := subprocess.run(["make"], cwd=folder).returncode:
            return status
    words = [sys.executable if word == "python" else word for word in told]
    status = subprocess.run(words, cwd=folder).returncode
    try:
        ncu_report.read(report)
    except ncu_report.ReportError as error:
        without = "; `exercise start --recorded` works without" if ncu_report.PERMISSION in str(error) else ""
        raise NotEnoughDataError(f"{error}{without} (ncu ended with {status})") from None
    return status
