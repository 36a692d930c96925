# SPDX-License-Identifier: Apache-2.0
"""What the rules about hardware counters share: each judges one kernel of a report of Nsight Compute.

A kernel that takes little of the GPU time is not judged. One that has an instruction to issue most of the
time, or moves bytes nearly as fast as device memory can, is not held up by what these rules look for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from profiling_lab.analysis.ncu.counted import Counted, counted
from profiling_lab.records import dataclass, replace
from profiling_lab.rules.costs import gpu_time
from profiling_lab.rules.finding import Abstain, RuleResult, Threshold, ms
from profiling_lab.rules.view import View
from profiling_lab.trace.columns import I64

SHARE = Threshold("share", "judged are kernels of", 0.02, "of the GPU time, from", "ours: worth it")
ROOF = Threshold("roof", "on the roof", 0.7, "of device memory's rate, from", "ours: a copy reaches 0.85")
ISSUES = Threshold(
    "issues",
    "not held up",
    0.6,
    "of the cycles with an instruction issued, from",
    "ours: E06's blend has 0.97",
)


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with a kernel."""

    what: str
    """after its name"""
    cost_frac: float
    """of its time"""
    remedy: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """The report lacks a metric."""

    metrics: str


Judge: TypeAlias = Callable[[View, Counted], Fault | Unknown | None]


def kernels_of(view: View) -> tuple[Counted, ...] | Abstain:
    """The kernels that both the report of Nsight Compute and this part of the trace have."""
    if view.report is None:
        return Abstain("there are no hardware counters", "`check --ncu REPORT`, a CSV or .ncu-rep of ncu")
    found = counted(view.trace, view.report)
    if not found:
        there = ", ".join(list(dict.fromkeys(each.function for each in view.report.launches))[:3])
        return Abstain(
            f"no kernel of {view.report.source} ({there}) is in this recording with its grid and block",
            "a report and a recording of the same program",
        )
    return found


def is_unhindered(view: View, kernel: Counted) -> bool:
    """Whether its schedulers or device memory are busy: then what a rule finds does not hold it up."""
    issued, dram = kernel.issued_frac, kernel.dram_frac
    return (issued is not None and issued >= view[ISSUES]) or (dram is not None and dram >= view[ROOF])


def of_each_kernel(judge: Judge) -> Callable[[View], RuleResult]:
    """The check of a rule: a finding for each kernel that `judge` objects to."""

    def check(view: View) -> RuleResult:
        kernels = kernels_of(view)
        if isinstance(kernels, Abstain):
            return kernels
        found, unknown, judged = [], "", 0
        for kernel in kernels:
            took_ns = view.operations.duration_ns[kernel.rows]
            if int(took_ns.sum()) < view[SHARE] * view.gpu_ns:
                continue
            fault = judge(view, kernel)
            if isinstance(fault, Unknown):
                unknown = fault.metrics
                continue
            judged += 1
            if fault is None:
                continue
            finding = view.finding(
                f"{kernel.name}{fault.what}; {_time(took_ns)}",
                cost_ns=round(fault.cost_frac * gpu_time(view, kernel.rows)),
                cost_of="the part of the kernel's GPU time that this costs at most",
                place=view.hottest_line(kernel.rows, took_ns),
                rows=kernel.rows,
                weight=took_ns,
                remedy=fault.remedy,
            )
            found.append(replace(finding, kernel=kernel.name))
        if not judged and unknown:
            return Abstain("the report lacks counters", f"`ncu --metrics {unknown}`")
        return found

    return check


def _time(took_ns: I64) -> str:
    count = len(took_ns)
    return f"{ms(int(took_ns.sum()))} in {count:,} launch{'' if count == 1 else 'es'}"
