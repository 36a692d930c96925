# SPDX-License-Identifier: Apache-2.0
"""One rule applied to one synthetic trace."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from builders import Judge, TraceBuilder

from profiling_lab.rules import Rule
from profiling_lab.rules.finding import RuleResult
from profiling_lab.rules.view import View
from profiling_lab.trace import Trace


@pytest.fixture
def judge(tmp_path: Path) -> Iterator[Judge]:
    opened: list[Trace] = []

    def verdict(rule: Rule, builder: TraceBuilder) -> RuleResult:
        opened.append(Trace.open(builder.write(tmp_path / f"{len(opened)}.sqlite")))
        return rule.check(View(opened[-1]))

    yield verdict
    for trace in opened:
        trace.close()
