# SPDX-License-Identifier: Apache-2.0
"""Applying rules: the three answers stay apart, findings are ranked, the user's rules are taken in."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from builders import TraceBuilder

from profiling_lab import rules
from profiling_lab.errors import NotEnoughDataError, UsageError
from profiling_lab.rules import RULES, Abstain, Finding, Rule, load_rules, run, select
from profiling_lab.trace import Trace


def finding(cost_ns: int) -> Finding:
    return Finding("slow", cost_ns, "GPU time", None, (), 0, "do less")


def lacks_data(view: object) -> tuple[()]:
    raise NotEnoughDataError("no columns")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return TraceBuilder().launch("k", 1000).write(tmp_path / "run.sqlite")


def test_three_answers(path: Path) -> None:
    some = (
        Rule("cheap", "?", (), lambda view: [finding(1), finding(5)]),
        Rule("dear", "?", (), lambda view: (finding(3),)),
        Rule("quiet", "?", (), lambda view: ()),
        Rule("blind", "?", (), lambda view: Abstain("no stacks")),
        Rule("poor", "?", (), lacks_data),
    )
    with Trace.open(path) as trace:
        checked = run(trace, some)
        assert [(f.rule, f.cost_ns) for f in checked.findings] == [("cheap", 5), ("dear", 3), ("cheap", 1)]
        assert checked.silent == ("quiet",) and checked.could_tell
        assert checked.abstained == (("blind", "no stacks"), ("poor", "no columns"))
        assert not run(trace, some[3:]).could_tell


def test_an_empty_trace_is_not_healthy(tmp_path: Path) -> None:
    path = TraceBuilder().call("cudaMalloc_v3020").write(tmp_path / "empty.sqlite")
    with Trace.open(path) as trace, pytest.raises(NotEnoughDataError, match="no GPU operation"):
        run(trace, RULES)


def test_select_by_name() -> None:
    assert [rule.name for rule in select(RULES, ["recompute", "bound"])] == ["recompute", "bound"]
    with pytest.raises(UsageError, match="no rule 'moon'; the rules are bound, "):
        select(RULES, ["moon"])
    with pytest.raises(UsageError, match="two rules have the name 'bound'"):
        select((*RULES, Rule("bound", "?", (), lambda view: ())), ["bound"])


MINE = """
from profiling_lab.rules import Abstain, Finding, Rule

def check(view):
    if not view.copies.any():
        return Abstain("no copies")
    rows = view.copies.nonzero()[0]
    events = view.evidence("operations", rows, -rows)
    return [Finding("copies", 7, "GPU time", None, events, len(rows), "none")]

RULES = (Rule("mine", "Are there copies?", (), check),)
"""


def test_rules_of_the_user(tmp_path: Path) -> None:
    file = tmp_path / "my_rules.py"
    file.write_text(MINE)
    path = TraceBuilder().launch("k", 5).copy("DtoD", 1).copy("DtoD", 1).write(tmp_path / "run.sqlite")
    with Trace.open(path) as trace:
        (found,) = run(trace, load_rules(file)).findings
    assert found.rule == "mine" and [str(e) for e in found.evidence] == ["operations[1]", "operations[2]"]


def test_the_example_of_the_package_works(tmp_path: Path) -> None:
    text = (rules.__doc__ or "").partition("ends with the tuple RULES:\n")[2]
    file = tmp_path / "my_rules.py"
    file.write_text(textwrap.dedent(text))
    path = TraceBuilder().launch("k", 5).copy("DtoD", 3, stack="/app/a.py:4 f").write(tmp_path / "run.sqlite")
    with Trace.open(path) as trace:
        (found,) = run(trace, load_rules(file)).findings
    assert (found.rule, found.cost_ns, found.events) == ("my_copies", 3, 1)
    assert found.place is not None and found.place.line == 4


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("RULES = 3", "must define RULES"),
        ("RULES = ()", "must define RULES"),
        ("import nowhere", "cannot be executed: ModuleNotFoundError"),
    ],
)
def test_files_that_hold_no_rules(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "my_rules.py"
    file.write_text(text)
    with pytest.raises(UsageError, match=says):
        load_rules(file)
    with pytest.raises(UsageError, match="no such file"):
        load_rules(tmp_path / "nowhere.py")


def test_a_rule_that_fails_is_never_nothing_found(tmp_path: Path, path: Path) -> None:
    file = tmp_path / "my_rules.py"
    file.write_text(
        "from profiling_lab.rules import Rule\nRULES = (Rule('odd', '?', (), lambda view: 1 / 0),)\n"
    )
    with Trace.open(path) as trace, pytest.raises(UsageError, match=r"rule odd of .* ZeroDivisionError"):
        run(trace, load_rules(file))
