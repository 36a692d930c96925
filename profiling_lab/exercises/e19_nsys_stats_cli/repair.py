# SPDX-License-Identifier: Apache-2.0
"""Grade the gate of E19: run it on pairs of reports, made anew each time, and look at its exit code."""

from __future__ import annotations

import csv
import random
import secrets
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from profiling_lab.exercises.exercise import GradedCheck, failed, passed

FILE = "gate.py"
LIMIT_S = 60.0
COLUMNS = [
    "Time (%)",
    "Total Time (ns)",
    "Instances",
    "Avg (ns)",
    "Med (ns)",
    "Min (ns)",
    "Max (ns)",
    "StdDev (ns)",
    "Name",
]
CHECKS = {0: "gate lets pass", 1: "gate stops", 2: "gate reports bad input"}

Kernels = dict[str, tuple[int, int]]
"""launches and total time in ns, by name"""


@dataclass(frozen=True, slots=True)
class Case:
    what: str
    after: Kernels | None
    """None: the file does not exist"""
    code: int
    limit: int = 10


def cases(before: Kernels) -> list[Case]:
    """What may happen between two builds. The limit is 10 % unless it is part of the case."""

    def scaled(times: float, launches: float = 1.0) -> Kernels:
        return {name: (round(n * launches), round(ns * times)) for name, (n, ns) in before.items()}

    hottest = max(before, key=lambda name: before[name][1])
    renamed = {("new_" + name if name == hottest else name): row for name, row in before.items()}
    rest = {name: row for name, row in before.items() if name != hottest}
    return [
        Case("nothing changed", before, 0),
        Case("5 % more time", scaled(1.05), 0),
        Case("20 % more time", scaled(1.2), 1),
        Case("20 % more time at a limit of 30 %", scaled(1.2), 0, limit=30),
        Case("3 % more time at a limit of 1 %", scaled(1.03), 1, limit=1),
        Case("twice as many launches in the same time", scaled(1.0, 2.0), 0),
        Case("half as many launches in twice the time", scaled(2.0, 0.5), 1),
        Case("a kernel with another name", renamed, 0),
        Case("a kernel is gone", rest, 0),
        Case(
            "a new kernel that takes as long as all others", {**before, "new<int, 4>": (1, _total(before))}, 1
        ),
        Case(
            "ten short new kernels",
            {**before, **{f"new_{i}": (1, _total(before) // 40) for i in range(10)}},
            1,
        ),
        Case("the second report is missing", None, 2),
        Case("the second report has no kernel", {}, 2),
    ]


def _total(kernels: Kernels) -> int:
    return sum(ns for _, ns in kernels.values())


def checks(workspace: Path) -> list[GradedCheck]:
    """One check for each exit code."""
    script = workspace / FILE
    if not script.is_file():
        return [failed(name, f"there is no {FILE} in this folder") for name in CHECKS.values()]
    chance = random.Random(secrets.randbelow(2**31))
    names = ("void f<int, 4>(float*, int)", "gemm", 'with "quotes"', "void g<Add<float>, 2>(long)")
    before = {name: (chance.randint(10, 99), chance.randint(10**6, 10**8)) for name in names}
    wrong: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        one, two = Path(folder) / "before.csv", Path(folder) / "after.csv"
        write(one, before)
        for case in cases(before):
            two.unlink(missing_ok=True)
            if case.after is not None:
                write(two, case.after)
            got = _run(script, one, two, case.limit)
            if got != str(case.code):
                wrong.setdefault(CHECKS[case.code], f"{case.what}: exit code {got}, not {case.code}")
    counted = [case.code for case in cases(before)]
    return [
        failed(name, wrong[name])
        if name in wrong
        else passed(name, f"in {counted.count(code)} pairs of reports")
        for code, name in CHECKS.items()
    ]


def write(path: Path, kernels: Kernels) -> None:
    """A report as nsys writes it, the longest kernel first."""
    total = max(_total(kernels), 1)
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(COLUMNS)
        for name, (n, ns) in sorted(kernels.items(), key=lambda item: -item[1][1]):
            mean = ns / max(n, 1)
            table.writerow([f"{100 * ns / total:.1f}", ns, n, mean, mean, int(mean), int(mean), "0.0", name])


def _run(script: Path, one: Path, two: Path, limit: int) -> str:
    command = [sys.executable, str(script), str(one), str(two), "--limit", str(limit)]
    try:
        return str(subprocess.run(command, capture_output=True, timeout=LIMIT_S).returncode)
    except subprocess.TimeoutExpired:
        return f"none within {LIMIT_S:g} s"
