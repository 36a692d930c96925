# SPDX-License-Identifier: Apache-2.0
"""Steps that are one CUDA graph, recorded as a whole: what ranks do in it cannot be compared."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from profiling_lab.analysis.ranks.finding import PathFinding
from profiling_lab.analysis.ranks.notes import of_path
from profiling_lab.analysis.ranks.verdict import verdict
from profiling_lab.report.ranks.verdict import verdict_lines

STEP_NS = 20_000_000


def row(rank: int) -> Any:
    own = {"compute_ns": STEP_NS - 400_000, "copy_ns": 0, "idle_ns": 400_000, "exposed_wait_ns": 1_000}
    return SimpleNamespace(
        rank=rank, step_ns=STEP_NS, compared=1, cost_ns=1_000, late_steps=1, compared_steps=10, late=1,
        late_frac=0.5, **own,
    )  # fmt: skip


def path(unseen_ns: int) -> PathFinding:
    return PathFinding(
        ranks=(0, 1), steps=tuple(range(8)), step_ns=STEP_NS, plain_step_ns=STEP_NS, in_calls_ns=0,
        blames=(), transfer_ns=0, hidden=(), shares=(), unseen_ns=unseen_ns,
    )  # fmt: skip


@pytest.mark.parametrize(("unseen_frac", "kind"), [(0.97, "unknown"), (0.5, "unknown"), (0.4, "balanced")])
def test_most_of_a_step_in_graphs_is_unknown(unseen_frac: float, kind: str) -> None:
    rows = [row(0), row(1)]
    found = path(int(unseen_frac * STEP_NS))
    result: Any = SimpleNamespace(verdict=verdict(rows, {}, found), rows=rows, path=found, step_ns=STEP_NS)
    assert result.verdict.kind == kind and result.verdict.rank is None
    said = verdict_lines(result)[0]
    assert ("cannot tell" in said and "CUDA graphs" in said) == (kind == "unknown")
    (note,) = of_path(found, rows)
    assert f"{unseen_frac * 20:.3f} ms per step are in CUDA graphs" in note and "--graph-nodes" in note


def test_without_graphs_nothing_is_said_of_them() -> None:
    found = path(0)
    assert of_path(found, [row(0), row(1)]) == ()
    assert verdict([row(0), row(1)], {}, found).kind == "balanced"
