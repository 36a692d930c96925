# SPDX-License-Identifier: Apache-2.0
"""One root cause, one finding: effects are told with what explains them, causes by what they would win."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from profiling_lab.analysis.critical_path.savings import Saving, fewer
from profiling_lab.rules import Finding, Rule
from profiling_lab.rules.finding import with_effects
from profiling_lab.rules.fold import folded
from profiling_lab.rules.rule import Time
from profiling_lab.trace import Frame


def rule(name: str, time: Time, **what: Any) -> Rule:
    return Rule(name, "?", (), lambda view: (), time=time, **what)


RULES = {
    each.name: each
    for each in (
        rule("idle", Time.IDLE, symptom=True),
        rule("gaps", Time.IDLE, symptom=True),
        rule("kernel", Time.BUSY, symptom=True),
        rule("line", Time.BUSY, symptom=True),
        rule("spread", Time.OTHER, symptom=True),
        rule("waits", Time.IDLE),
        rule("tiny", Time.IDLE, generic=True),
        rule("launches", Time.IDLE, generic=True, adds=True),
        rule("slow_math", Time.BUSY),
        rule("layout", Time.BUSY),
    )
}


def found(name: str, rank_ns: int, line: int = 0, severity: Any = "high", **more: Any) -> Finding:
    place = Frame("f", "/app/a.py", line) if line else None
    what = {"rule": name, "cause": name, "rank_ns": rank_ns, "severity": severity} | more
    return Finding(name, rank_ns, "time", place, (), 1, "do less", **what)


def told(*findings: Finding) -> list[tuple[str, list[str]]]:
    left = folded(findings, RULES)
    everything = sorted(finding.what for finding in with_effects(left))
    assert everything == sorted(finding.what for finding in findings), "nothing is lost or told twice"
    return [(finding.rule, [effect.rule for effect in finding.effects]) for finding in left]


def test_idle_time_is_an_effect_of_what_explains_enough_of_it() -> None:
    assert told(found("idle", 100), found("waits", 40, 3)) == [("waits", ["idle"])]
    assert told(found("idle", 100), found("waits", 39, 3)) == [("waits", []), ("idle", [])]
    several = told(found("idle", 100), found("waits", 25, 3), found("waits", 20, 4))
    assert several == [("waits", ["idle"]), ("waits", [])], "they explain it together; the largest tells it"


def test_busy_time_explains_no_idle_time() -> None:
    assert told(found("idle", 100), found("slow_math", 500, 3)) == [("slow_math", []), ("idle", [])]


def test_busy_time_of_other_lines_explains_nothing() -> None:
    line = found("line", 100, 3, gpu_ns_by_line=((0, 100),))
    assert told(line, found("slow_math", 300, 9, gpu_ns_by_line=((1, 300),))) == [
        ("slow_math", []),
        ("line", []),
    ]
    # Its hottest line is another one, but half of the symptom's line is its own.
    both = found("slow_math", 300, 9, gpu_ns_by_line=((0, 50), (1, 250)))
    assert told(line, both) == [("slow_math", ["line"])]
    both = found("slow_math", 300, 9, gpu_ns_by_line=((0, 30), (1, 270)))
    assert told(line, both) == [("slow_math", []), ("line", [])]


def test_findings_without_operations_are_compared_by_their_lines() -> None:
    assert told(found("line", 100, 3), found("slow_math", 50, 3)) == [("slow_math", ["line"])]
    assert told(found("line", 100, 3), found("slow_math", 50, 4)) == [("slow_math", []), ("line", [])]


def test_the_cause_that_shares_most_tells_the_symptom() -> None:
    line = found("line", 100, 3, gpu_ns_by_line=((0, 100),))
    here = found("layout", 80, 3, gpu_ns_by_line=((0, 80),))
    elsewhere = found("slow_math", 300, 9, gpu_ns_by_line=((0, 5), (1, 295)))
    assert told(line, elsewhere, here) == [("slow_math", []), ("layout", ["line"])]


def test_a_generic_cause_yields_at_one_line() -> None:
    (only,) = folded([found("tiny", 90, 3), found("waits", 60, 3, "medium")], RULES)
    assert only.rule == "waits" and [effect.rule for effect in only.effects] == ["tiny"]
    assert only.rank_ns == 90 and only.severity == "high", "it costs what both are about"
    assert told(found("tiny", 90, 4), found("waits", 60, 3)) == [("tiny", []), ("waits", [])]


def test_savings_of_two_times_at_one_line_are_added() -> None:
    """And what both remedies take away, but for launches at other lines."""
    waits = found("waits", 60, 3, saving=Saving(calls=np.array([1])))
    launches = found("launches", 90, 3, saving=fewer(np.array([7])))
    (only,) = folded([launches, waits], RULES)
    assert (only.rule, only.rank_ns) == ("waits", 150)
    assert (only.saving.calls.tolist(), only.saving.operations.tolist()) == ([1], [7])
    (only,) = folded([replace(launches, elsewhere=True), waits], RULES)
    assert (only.rank_ns, only.saving.operations.tolist()) == (150, [])
    (only,) = folded([replace(launches, saving=None), waits], RULES)
    assert only.saving.calls.tolist() == [1], "of one of them it is not known"
    assert len(folded([found("launches", 90, 4), waits], RULES)) == 2


def test_of_gains_that_may_be_equal_the_specific_cause_comes_first() -> None:
    """At different lines: gains are right within a factor of 1.5."""
    assert told(found("tiny", 89, 4), found("waits", 60, 3)) == [("waits", []), ("tiny", [])]
    assert told(found("tiny", 91, 4), found("waits", 60, 3)) == [("tiny", []), ("waits", [])]
    assert told(found("layout", 61, 4), found("waits", 60, 3)) == [("layout", []), ("waits", [])]


def test_a_generic_rule_that_knows_the_cause_is_specific() -> None:
    why = found("tiny", 65, 4, cause="why")
    assert told(why, found("waits", 60, 3)) == [("tiny", []), ("waits", [])]
    assert told(found("tiny", 65, 4), found("waits", 60, 3)) == [("waits", []), ("tiny", [])]


def test_a_generic_cause_stays_where_it_is_more_than_the_host_code_between() -> None:
    assert told(found("tiny", 100, 3), found("waits", 40, 3, cause="host_work")) == [("waits", ["tiny"])]
    assert told(found("tiny", 100, 3), found("waits", 39, 3, cause="host_work")) == [("tiny", ["waits"])]
    assert told(found("tiny", 100, 3), found("waits", 5, 3)) == [("waits", ["tiny"])], (
        "a wait empties the queue"
    )


def test_idle_time_that_is_another_rules_matter_yields_to_any_rule_at_that_line() -> None:
    idle = found("slow_math", 90, 3, cause="waits")  # of the same time as `layout`
    assert told(idle, found("layout", 50, 3)) == [("layout", ["slow_math"])]
    assert told(found("slow_math", 90, 3), found("layout", 50, 3)) == [("slow_math", ["layout"])]


def test_two_of_one_rule_at_one_line_stay_two() -> None:
    assert told(found("waits", 9, 3), found("waits", 8, 3)) == [("waits", []), ("waits", [])]


def test_the_most_specific_symptom_speaks() -> None:
    assert told(found("idle", 100), found("gaps", 70)) == [("gaps", ["idle"])]
    assert told(found("kernel", 50, 3), found("line", 60, 3)) == [("line", ["kernel"])]
    assert told(found("idle", 9), found("spread", 8), found("line", 7, 3)) == [
        ("idle", []),
        ("spread", []),
        ("line", []),
    ], "of different times neither is the other's effect"


def test_one_symptom_at_two_gpus_is_two() -> None:
    assert told(found("gaps", 7), found("gaps", 6)) == [("gaps", []), ("gaps", [])]


def test_causes_worth_something_come_first_by_what_they_win() -> None:
    findings = [
        found("line", 900, 3),
        found("waits", 5, 4, "low"),
        found("slow_math", 60, 5, "medium", gpu_ns_by_line=((1, 60),)),
        found("layout", 70, 6, gpu_ns_by_line=((2, 70),)),
    ]
    assert [finding.rule for finding in folded(findings, RULES)] == ["layout", "slow_math", "line", "waits"]


def test_all_that_a_remedy_saves_counts() -> None:
    """A read also costs the kernels that compute the value: more than the idle time that its rule counts."""
    read = found("waits", 30, 3, gain_ns=100)
    assert told(read, found("layout", 70, 6, gain_ns=70)) == [("waits", []), ("layout", [])]


def test_an_unexplained_symptom_comes_before_causes_that_save_much_less() -> None:
    line = found("line", 100, 3, "low", gpu_ns_by_line=((0, 100),), saving=fewer(np.array([1])))
    for rank_ns, first in ((39, "line"), (41, "slow_math")):
        cause = found("slow_math", rank_ns, 9, gpu_ns_by_line=((1, rank_ns),))
        assert told(line, cause)[0] == (first, [])
        assert told(replace(line, little=True), cause)[0] == ("slow_math", [])
        assert told(replace(line, saving=None), cause)[0] == ("slow_math", [])


def test_where_most_time_is_comes_before_causes_that_save_little_of_it() -> None:
    """The line's products on tensor cores are no cost of it, but they are where the time goes."""
    line = found("line", 1, 3, "low", gpu_ns_by_line=((0, 1000),), saving=fewer(np.array([1])), little=True)
    for rank_ns, first in ((99, "line"), (101, "slow_math")):
        cause = found("slow_math", rank_ns, 9, "low", gpu_ns_by_line=((1, rank_ns),))
        assert told(line, cause)[0] == (first, [])
    assert told(line, found("slow_math", 99, 9, gpu_ns_by_line=((1, 99),)))[0] == ("slow_math", [])


def test_what_happened_once_comes_after_what_recurs() -> None:
    once = found("waits", 900, 4, once=True)
    assert [finding.rule for finding in folded([once, found("layout", 70, 6)], RULES)] == ["layout", "waits"]


def test_a_cause_of_all_lines_explains_their_idle_time_wherever_it_is() -> None:
    rules = RULES | {each.name: each for each in (
        rule("churn", Time.IDLE, all_lines=True), rule("gap", Time.IDLE)
    )}  # fmt: skip
    churn, here = found("churn", 50, 3), found("gap", 80, 9, cause="churn")
    other = found("gap", 20, 4, cause="host_work")
    one, two = folded([churn, here, other], rules)
    assert (one.rule, one.rank_ns, [effect.rule for effect in one.effects]) == ("churn", 80, ["gap"])
    assert two.cause == "host_work"
