# SPDX-License-Identifier: Apache-2.0
"""Lines that launch more operations each time"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from builders import Judge, TraceBuilder

from profiling_lab.rules import Abstain
from profiling_lab.rules.growing_work import RULE

MODEL, HOOK = "/app/model.py:21 Net.forward", "/app/watch.py:5 Watcher.hook"


def program(counts: Sequence[int], hook_ns: int = 1_000, stack: str = HOOK) -> TraceBuilder:
    builder = TraceBuilder()
    for count in counts:
        builder.launch("gemm", 5_000, stack=MODEL)
        for _ in range(count):
            builder.launch("mean", hook_ns, stack=stack)
    return builder


def rising(steps: int, layers: int = 3) -> list[int]:
    """Each layer's hook is registered once more in each step."""
    return [2 * (step + 1) for step in range(steps) for _ in range(layers)]


def test_fires_on_launches_that_get_more(judge: Judge) -> None:
    (finding,) = judge(RULE, program(rising(10)))
    more = sum(count - 2 for count in rising(10))
    assert finding.cost_ns == more * 1_000 and finding.place is not None and finding.place.line == 5
    assert "2 operations one after the other at first, 20 at last" in finding.what
    assert finding.saving is not None
    kept = finding.saving.left.sum()
    assert kept == pytest.approx(2 * 30), "as many as at first, each time"


@pytest.mark.parametrize(
    "counts",
    [
        rising(7),
        [4] * 40,
        [1 + number % 9 for number in range(60)],
        [10 + number // 4 for number in range(40)],
        [1] * 15 + [5] * 25,
        [1 + number + 10 * (number % 2) for number in range(40)],
    ],
    ids=["too few", "always the same", "up and down", "a little more", "two levels", "often fewer"],
)
def test_silent_about_other_numbers(judge: Judge, counts: list[int]) -> None:
    assert judge(RULE, program(counts)) == ()


def test_silent_where_it_takes_little(judge: Judge) -> None:
    assert judge(RULE, program(rising(10), hook_ns=20)) == ()


def test_silent_about_operations_without_a_line(judge: Judge) -> None:
    assert judge(RULE, program(rising(10), hook_ns=300, stack="")) == ()


def test_abstains_without_lines(judge: Judge) -> None:
    builder = TraceBuilder()
    for _ in range(30):
        builder.launch("gemm", 5_000)
    assert isinstance(judge(RULE, builder), Abstain)
