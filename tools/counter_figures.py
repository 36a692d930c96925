# SPDX-License-Identifier: Apache-2.0
"""Tables of the guide from what tools/record_counters.py and event_gaps.py recorded, for guide_page.py."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from benchmark_tables import base, newest_run, table

from profiling_lab.analysis.ncu.consistency import LOADS
from profiling_lab.analysis.ncu.figures import figures
from profiling_lab.analysis.ncu.report import Launch, Report, read

COUNTERS = Path(__file__).resolve().parents[1] / "benchmarks" / "counters"
INSTRUCTIONS = "smsp__inst_executed.sum"
L2_READ = "lts__t_sectors_op_read.sum"
SECTOR_BYTES = 32
_PAIR = re.compile(r"^  PAIR\((\w+), (\w+),", re.M)
_DIFFERENCE = re.compile(r"^(\w+) +[\d.]+ ms\n +([\d.e+-]+) relative difference", re.M)
WORTH = {
    "chain": "four independent chains of instructions",
    "exact_math": "fast math: `__expf`, `__logf`, `__fdividef`",
    "multiply_untiled": "tiles in shared memory instead of redundant loads",
}


def pairs() -> list[tuple[str, str]]:
    """The kernel with the fault and the one without, as the program launches them."""
    return _PAIR.findall((COUNTERS / "kernel_pairs.cu").read_text())


def report() -> Report:
    return read(COUNTERS / "kernel_pairs_h200.csv")


def longest_stall(launch: Launch) -> tuple[str, float, float]:
    """Its name, cycles for each issued instruction, and its share of all that a warp waits."""
    stalls = figures([launch]).stalls
    name, cycles = stalls[0]
    return name, cycles, cycles / sum(each for _, each in stalls)


def stalls() -> list[str]:
    """What the warps of each kernel wait for."""
    found, rows = report(), []
    for names in pairs():
        old, new = (found.last(name) for name in names)
        cells = []
        for launch in (old, new):
            name, cycles, share = longest_stall(launch)
            cells += [f"`{launch.function}`", f"`{name}` {cycles:.1f} cycles, {100 * share:.0f} %"]
        rows.append((*cells, f"{old.duration_ns / new.duration_ns:.2f}"))
    text = f"{found.launches[0].device}; cycles for each issued instruction, and the share of all waiting:"
    titles = ("kernel", "longest stall", "without the fault", "its longest stall", "times as fast")
    return [text, "", *table(titles, rows)]


def worth() -> list[str]:
    """Three remedies, each alone."""
    found, rows = report(), []
    differs = dict(_DIFFERENCE.findall((COUNTERS / "kernel_pairs_h200.txt").read_text()))
    for fault, repaired in pairs():
        if fault not in WORTH:
            continue
        sides = [found.last(fault), found.last(repaired)]
        cells = (
            [f"{each.duration_ns / 1e3:,.0f}" for each in sides],
            [f"{each.value(INSTRUCTIONS) / 1e6:,.0f}" for each in sides],
            [f"{each.value(LOADS[0]) * SECTOR_BYTES / 1e6:,.1f}" for each in sides],
            [f"{each.value(L2_READ) * SECTOR_BYTES / 1e6:,.1f}" for each in sides],
        )
        rows.append((WORTH[fault], *(" to ".join(each) for each in cells), differs[repaired]))
    titles = ("remedy", "µs", "million instructions of warps", "MB of global loads", "MB read from L2")
    return table((*titles, "largest relative difference"), rows)


def event_gaps() -> list[str]:
    lines = newest_run("event_gaps")
    value = {(line["provider"], line["metric"]): line["value"] for line in lines}
    rows = []
    for name in dict.fromkeys(line["provider"] for line in lines):
        events, kernels = value[name, "events"], value[name, "kernels"]
        gaps = f"{(events - kernels) / 1e3:,.1f} µs, {100 * (1 - kernels / events):.0f} %"
        rows.append((name, f"{events / 1e3:,.1f} µs", f"{kernels / 1e3:,.1f} µs", gaps))
    text = f"Medians of five turns, each recorded from an idle GPU. {base(lines, 'event_gaps')}:"
    return [text, "", *table(("between the events", "events", "kernels in the recording", "gaps"), rows)]


FIGURES: dict[str, Callable[[], list[str]]] = {"stalls": stalls, "worth": worth, "event_gaps": event_gaps}
