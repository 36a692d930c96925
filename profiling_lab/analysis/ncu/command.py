# SPDX-License-Identifier: Apache-2.0
"""The command line of ncu, with options of its manual from 2023.2 on, and metrics that the GPU has.

The clocks are left as they are (`--clock-control none`): locking them needs rights that a user of a shared
machine does not have. ncu empties the caches before each pass, so every launch starts cold.
"""

from __future__ import annotations

import subprocess
from collections.abc import Collection, Sequence

from profiling_lab.analysis.ncu.figures import BASIC, OPTIONAL, SECTIONS
from profiling_lab.analysis.ncu.plan import Plan

OPTIONS = ("--csv", "--page", "raw", "--print-units", "base", "--clock-control", "none")
_QUERY_S = 120.0


def known_metrics(ncu: str) -> tuple[str, ...]:
    """Those of OPTIONAL that the GPU here has: ncu profiles nothing if it is asked for an unknown one."""
    try:
        done = subprocess.run(
            [ncu, "--query-metrics"], capture_output=True, text=True, errors="replace", timeout=_QUERY_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return ()
    listed = {line.split()[0] for line in done.stdout.splitlines() if "__" in line.partition(" ")[0]}
    return tuple(name for name in OPTIONAL if name.partition(".")[0] in listed)


def command(
    ncu: str,
    plan: Plan,
    program: Sequence[str],
    report: str,
    more: Collection[str] = (),
    *,
    kill: bool = False,
) -> tuple[str, ...]:
    """Profile the window of the plan in `program` and write `report`, a CSV. more: metrics besides the usual
    ones. kill: end the program after the window.
    """
    sections = [word for name in SECTIONS for word in ("--section", name)]
    which = ["--kernel-name", plan.name_pattern]
    which += ["--launch-skip", str(plan.skip), "--launch-count", str(plan.count)]
    return (
        ncu, *OPTIONS, *which, *(("--kill", "yes") if kill else ()), *sections,
        "--metrics", ",".join((*BASIC, *more)), "--log-file", report, *program,
    )  # fmt: skip
