# SPDX-License-Identifier: Apache-2.0
"""Print reports of ncu with one metric a row and one launch a column.

python -m profiling_lab.exercises.ncu_table before.csv [after.csv ...] [KERNEL ...] [--all]

Without --all it leaves out the properties of the machine and of the launch that are not a limit, and of .sum,
.avg, .min and .max shows the one that says most.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from profiling_lab.analysis.ncu.report import Launch, Report, ReportError, read

MACHINE = ("device__", "c2clink__", "nvlink__", "numa__", "profiler__", "launch__")
KEPT = (
    "launch__registers_per_thread",
    "launch__shared_mem_per_block_dynamic",
    "launch__shared_mem_per_block_static",
)


def table(reports: Sequence[Report], functions: Sequence[str] = (), *, everything: bool = False) -> str:
    """The launches of these kernels (default: all), report by report. Values are in base units."""
    launches = [
        (report.source if len(reports) > 1 else "", launch)
        for report in reports
        for launch in report.launches
        if not functions or launch.function in functions
    ]
    if not launches:
        there = ", ".join(dict.fromkeys(each.function for report in reports for each in report.launches))
        sources = " and ".join(report.source for report in reports)
        raise ReportError(f"{sources} has no launch of {', '.join(functions)}; it has {there}")
    rows = [
        ["launch", *(f"{source} {each.number} {each.function}".strip() for source, each in launches)],
        ["grid x block", *(f"{each.blocks} x {each.threads}" for _, each in launches)],
    ]
    names = dict.fromkeys(
        name for _, each in launches for name in sorted(each.metrics) if everything or _is_shown(name, each)
    )
    rows += [[name, *(_shown(each, name) for _, each in launches)] for name in names]
    wide = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        row[0].ljust(wide[0])
        + "".join(f"  {cell:>{size}}" for cell, size in zip(row[1:], wide[1:], strict=True))
        for row in rows
    ]
    devices = ", ".join(dict.fromkeys(each.device for _, each in launches))
    return "\n".join([f"{', '.join(report.source for report in reports)}: {devices}; times in ns", *lines])


def _is_shown(name: str, launch: Launch) -> bool:
    base, _, statistic = name.partition(".")
    kind, _, rest = statistic.partition(".")
    if base.startswith(MACHINE):
        return base in KEPT or base.startswith("launch__occupancy_limit_")
    if kind not in ("sum", "avg", "min", "max"):
        return True
    is_clock = base.endswith("cycles_elapsed")
    best = "avg" if rest.startswith("pct") or (is_clock and rest) else "max" if is_clock else "sum"
    return kind == best or not launch.has(".".join(filter(None, (base, best, rest))))


def _shown(launch: Launch, name: str) -> str:
    if not launch.has(name):
        return "-"
    value = launch.value(name)
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 1e5 else f"{value:.3f}"


def main(arguments: Sequence[str]) -> int:
    words = [word for word in arguments if word != "--all"]
    files = [Path(word) for word in words if word.endswith((".csv", ".ncu-rep"))]
    if not files or any(word.startswith("-") for word in words):
        sys.stderr.write(f"{__doc__}\n")
        return 2
    functions = [word for word in words if Path(word) not in files]
    try:
        text = table([read(path) for path in files], functions, everything=len(words) < len(arguments))
    except ReportError as error:
        sys.stderr.write(f"{error}\n")
        return 4
    sys.stdout.write(f"{text}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
