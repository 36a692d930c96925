# SPDX-License-Identifier: Apache-2.0
"""Applying rules: the three answers stay apart, findings are ranked, the user's rules are taken in."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from builders import TraceBuilder

from profiling_lab import rules
from profiling_lab.errors import NotEnoughDataError, UsageError
from profiling_lab.rules import (
    RULES,
    Abstain,
    Finding,
    Rule,
    Threshold,
    load_rules,
    parse_fail_on,
    parse_settings,
    run,
    select,
)
from profiling_lab.rules.view import View
from profiling_lab.trace import Trace


def finding(cost_ns: int) -> Finding:
    return Finding("slow", cost_ns, "GPU time", None, (), 0, "do less")


def lacks_data(view: object) -> tuple[()]:
    raise NotEnoughDataError("no columns")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return TraceBuilder().launch("k", 1000).write(tmp_path / "run.sqlite")


def test_a_finding_may_know_what_it_saves_better_than_its_rule(path: Path) -> None:
    usual, better = finding(100), replace(finding(80), per_step_ns=20, wins_frac=1.0)
    rule = Rule("casts", "?", (), lambda view: [usual, better], wins_frac=0.5)
    with Trace.open(path) as trace:
        found = run(trace, (rule,)).findings
    assert [(f.cost_ns, f.rank_ns, f.at_most_per_step_ns) for f in found] == [(80, 80, None), (100, 50, None)]
    assert {f.gain_ns for f in found} == {None}, "what goes is not known"


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
        assert [(rule, abstain.reason) for rule, abstain in checked.abstained] == [
            ("blind", "no stacks"),
            ("poor", "no columns"),
        ]
        assert not run(trace, some[3:]).could_tell


def test_severity_is_the_share_of_the_recording(path: Path) -> None:
    rule = Rule("r", "?", (), lambda view: [finding(cost) for cost in (149, 150, 50, 49)])
    with Trace.open(path) as trace:
        checked = run(trace, [rule])
    assert checked.span_ns == 1000
    assert {f.cost_ns: f.severity for f in checked.findings} == {
        150: "high",
        149: "medium",
        50: "medium",
        49: "low",
    }


def test_what_healthy_programs_have_too_or_happened_once_is_not_high(path: Path) -> None:
    usual = Rule("usual", "?", (), lambda view: [finding(900), finding(60)], severity_at_most="medium")
    rare = Rule("rare", "?", (), lambda view: [replace(finding(cost), once=True) for cost in (900, 60, 9)])
    with Trace.open(path) as trace:
        assert [f.severity for f in run(trace, [usual]).findings] == ["medium", "medium"]
        assert [f.severity for f in run(trace, [rare]).findings] == ["medium", "medium", "low"]
        trifle = Rule("trifle", "?", (), lambda view: [finding(900), finding(60)], severity_at_most="low")
        assert [f.severity for f in run(trace, [trifle]).findings] == ["low", "low"]


def test_cost_per_step_counts_what_lies_in_steps(tmp_path: Path) -> None:
    builder = TraceBuilder().launch("before", 8_000)
    for number in range(4):
        builder.launch("k", 1_000).range(
            f"ProfilerStep#{number}", builder.now_ns - 5_000, builder.now_ns + 4_000
        )
        builder.gap(10_000)

    def check(view: View) -> Sequence[Finding]:
        rows = np.arange(len(view.operations))
        how = {"cost_of": "GPU time", "place": None, "remedy": "-", "rows": rows}
        return [view.finding("all", cost_ns=12_000, weight=view.operations.duration_ns, **how)]

    with Trace.open(builder.write(tmp_path / "steps.sqlite")) as trace:
        checked = run(trace, [Rule("r", "?", (), check)])
    (found,) = checked.findings
    assert checked.steps == 4 and found.per_step_ns == 1_000, "the first kernel came before all steps"


def test_no_cost_per_step_without_steps(path: Path) -> None:
    rule = Rule("r", "?", (), lambda view: [finding(7)])
    with Trace.open(path) as trace:
        checked = run(trace, [rule])
    assert checked.steps == 0 and checked.findings[0].per_step_ns is None


def test_settings_reach_their_rule_alone(path: Path) -> None:
    mine = Threshold("limit", "a limit", 3, "ns, from", "ours")
    seen: list[float] = []

    def check(view: View) -> tuple[()]:
        seen.append(view[mine])
        return ()

    rules = (Rule("one", "?", (mine,), check), Rule("two", "?", (mine,), check))
    with Trace.open(path) as trace:
        run(trace, rules, settings=parse_settings(["two.limit=5us"], rules))
    assert seen == [3, 5000]


@pytest.mark.parametrize(
    ("text", "value"),
    [("dataloader.share=0.1", 0.1), ("dataloader.share=10%", 0.1), ("data-loader.share=1", None),
     ("tiny_kernels.short=20us", 20_000), ("tiny-kernels.many=7", 7), ("sync_copy.small=1MB", 1 << 20),
     ("tiny_kernels.many=7%", None), ("dataloader.share=5ms", None), ("dataloader.share=-1", None),
     ("dataloader.share=", None), ("dataloader=1", None), ("dataloader.shore=1", None), ("share=1", None),
     ("dataloader.share=1e999", None), ("", None)],
)  # fmt: skip
def test_settings(text: str, value: float | None) -> None:
    if value is None:
        with pytest.raises(UsageError):
            parse_settings([text], RULES)
        return
    ((_, found),) = parse_settings([text], RULES).items()
    assert list(found.values()) == [pytest.approx(value)]


@pytest.mark.parametrize(
    ("text", "fails"),
    [("low", True), ("medium", True), ("high", False), ("never", False), ("5%", True), ("7%", False),
     ("9ns", True), ("11ns", False)],
)  # fmt: skip
def test_what_fails_a_check(text: str, fails: bool) -> None:
    expensive = replace(finding(60), per_step_ns=10, severity="medium")
    assert parse_fail_on(text)(expensive, 1000) is fails


def test_costs_in_all_where_there_are_no_steps() -> None:
    assert parse_fail_on("50ns")(finding(60), 1000) and not parse_fail_on("70ns")(finding(60), 1000)
    for text in ("", "3", "huge", "5 %%", "-1ms"):
        with pytest.raises(UsageError, match="--fail-on expects"):
            parse_fail_on(text)


def test_an_empty_trace_is_not_healthy(tmp_path: Path) -> None:
    path = TraceBuilder().call("cudaMalloc_v3020").write(tmp_path / "empty.sqlite")
    with Trace.open(path) as trace, pytest.raises(NotEnoughDataError, match="no GPU operation"):
        run(trace, RULES)


def test_select_by_name() -> None:
    assert [rule.name for rule in select(RULES, ["recompute", "bound"])] == ["recompute", "bound"]
    assert select(RULES) == RULES
    assert "bound" not in {rule.name for rule in select(RULES, skip=["bound"])}
    with pytest.raises(UsageError, match="no rule is left"):
        select(RULES, ["bound"], ["bound"])
    with pytest.raises(UsageError, match="no rule 'moon'"):
        select(RULES, skip=["moon"])
    with pytest.raises(UsageError, match="no rule 'moon'; the rules are bound, "):
        select(RULES, ["moon"])
    with pytest.raises(UsageError, match="two rules have the same name 'bound'"):
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
        ("RULES = (3,)", "must define RULES"),
        ("x = 1\nimport nowhere", "line 2: ModuleNotFoundError: No module named 'nowhere'"),
        ("def check(view)\n    pass", "line 1: SyntaxError: expected ':'"),
        ("import sys\nsys.exit(3)", "line 2: SystemExit: 3"),
        (
            "RULES = (Rule('my rule', '?', (), print),)",
            "the rule name 'my rule' is not a Python identifier",
        ),
        ("RULES = (Rule('mine', '?', (), 7),)", "the check of rule mine is not a function"),
        (
            "RULES = (Rule('mine', '?', (0.5,), print),)",
            "the thresholds of rule mine are not a tuple of Threshold",
        ),
    ],
)
def test_files_that_hold_no_rules(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "my_rules.py"
    file.write_text(f"from profiling_lab.rules import Rule; {text}" if text.startswith("RULES") else text)
    with pytest.raises(UsageError, match=re.escape(says)) as error:
        load_rules(file)
    assert str(file) in str(error.value) and "\n" not in str(error.value)


def test_no_file_of_rules(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no rules file"):
        load_rules(tmp_path / "nowhere.py")


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("return 1 / 0", "rule odd of {} failed, line 4: ZeroDivisionError: division by zero"),
        ("view.nothing", "rule odd of {} failed, line 4: AttributeError: 'View' object has no attribute"),
        ("pass", "rule odd of {} returned None; expected findings or Abstain"),
        ("return 'slow'", "rule odd of {} returned 'slow'; expected findings or Abstain"),
        ("return [3]", "rule odd of {} returned [3]; expected findings or Abstain"),
    ],
)
def test_a_rule_that_fails_is_never_nothing_found(tmp_path: Path, path: Path, body: str, says: str) -> None:
    file = tmp_path / "my_rules.py"
    file.write_text(
        "from profiling_lab.rules import Rule\n\n"
        f"def check(view):\n    {body}\n\n"
        "RULES = (Rule('odd', '?', (), check),)\n"
    )
    with Trace.open(path) as trace, pytest.raises(UsageError) as error:
        run(trace, load_rules(file))
    assert str(error.value).startswith(says.format(file))


def test_the_line_is_named_for_relative_paths_too(
    tmp_path: Path, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(
        "from profiling_lab.rules import Rule\nRULES = (Rule('odd', '?', (), lambda view: 1 / 0),)\n"
    )
    with (
        Trace.open(path) as trace,
        pytest.raises(UsageError, match=r"rule odd of mine\.py failed, line 2: Zero"),
    ):
        run(trace, load_rules(Path("mine.py")))


def test_any_sequence_of_rules_and_findings_will_do(tmp_path: Path, path: Path) -> None:
    file = tmp_path / "my_rules.py"
    file.write_text(
        "from profiling_lab.rules import Finding, Rule\n"
        "made = Finding('slow', 5, 'time', None, (), 0, 'less')\n"
        "RULES = [Rule('a', '?', (), lambda view: (made,)), Rule('b', '?', (), lambda view: [])]\n"
    )
    with Trace.open(path) as trace:
        checked = run(trace, load_rules(file))
    assert [finding.rule for finding in checked.findings] == ["a"] and checked.silent == ("b",)
