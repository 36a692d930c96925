# SPDX-License-Identifier: Apache-2.0
"""The rules that nsys has too, against what `nsys analyze --rule NAME --format csv` (2025.3.1) lists.

nsys lists a call twice whose native call chain was recorded: the chain is a row next to the call's own.
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from profiling_lab.rules import RULES, Finding, run
from profiling_lab.rules.finding import with_effects
from profiling_lab.rules.host_waits import other_waits, reads_of_a_value
from profiling_lab.rules.view import View
from profiling_lab.trace import Trace

LISTED = Path(__file__).resolve().parents[1] / "data" / "nsys_rules"
RECORDED = "profiling_lab/exercises/e17_python_backtrace/recorded/nsys_h200.sqlite"


def listed(rule: str) -> list[dict[str, str]]:
    with open(LISTED / f"{rule}.csv") as file:
        return list(csv.DictReader(file))


def once(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    """A call's own row carries the version of its function: cudaMemcpyAsync_v3020."""
    return [row for row in rows if "_v" in row["API Name"]]


@pytest.fixture(scope="module")
def trace(repo: Path) -> Trace:
    return Trace.open(repo / RECORDED)


@pytest.fixture(scope="module")
def found(trace: Trace) -> list[Finding]:
    return list(with_effects(run(trace, RULES).findings))


def of(found: list[Finding], *rules: str) -> list[Finding]:
    return [finding for finding in found if finding.rule in rules]


def starts(found: list[Finding]) -> set[int]:
    return {event.start_ns for finding in found for event in finding.evidence}


def test_copies_of_pageable_memory(found: list[Finding]) -> None:
    rows = once(listed("cuda_memcpy_async"))
    ours = of(found, "pageable_copy")
    assert len(rows) == sum(finding.events for finding in ours) == 8
    assert starts(ours) == {int(row["Start (ns)"]) for row in rows}


def test_calls_that_wait(trace: Trace, found: list[Finding]) -> None:
    rows, view = once(listed("cuda_api_sync")), View(trace)
    ours = np.concatenate([reads_of_a_value(view)[1], other_waits(view)])
    assert len(rows) == len(ours) == 10, "nsys does not tell a read from a wait"
    assert set(trace.calls.start_ns[ours].tolist()) == {int(row["Start (ns)"]) for row in rows}
    assert starts(of(found, "sync_calls", "implicit_sync")) <= {int(row["Start (ns)"]) for row in rows}


def test_intervals_in_which_the_gpu_waits(trace: Trace, found: list[Finding]) -> None:
    (row,) = listed("gpu_time_util")
    (ours,) = of(found, "low_utilisation")
    length_ns = int(row["Duration (ns)"])
    assert f"busy {row['In-Use (%)']} % of {length_ns / 1e6:.3f} ms" in ours.what
    assert min(starts([ours])) >= int(row["Start (ns)"]) == int(trace.operations.start_ns.min())


@pytest.mark.parametrize("rule", ["cuda_memcpy_sync", "cuda_memset_sync", "gpu_gaps"])
def test_what_nsys_does_not_list_either(found: list[Finding], rule: str) -> None:
    assert listed(rule) == []
    ours = of(found, rule.replace("cuda_memcpy_sync", "sync_copy").replace("cuda_memset_sync", "sync_memset"))
    # nsys lists gaps of 500 ms and more, we of 1 ms: a step of training is shorter than what it looks for.
    assert all(finding.cost_ns < 500_000_000 for finding in ours) and (rule == "gpu_gaps" or not ours)
