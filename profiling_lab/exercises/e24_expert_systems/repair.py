# SPDX-License-Identifier: Apache-2.0
"""Grade the rule of E24: on recordings where it must fire or stay silent, with other thresholds too.

The right finding is that of the rule in solutions/, applied to the same recording with the same thresholds.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from profiling_lab.errors import LabError
from profiling_lab.exercises.exercise import GradedCheck, failed, not_checked, passed
from profiling_lab.rules.finding import Finding
from profiling_lab.rules.load import load_rules
from profiling_lab.rules.rule import Rule
from profiling_lab.rules.run import run
from profiling_lab.trace import Trace

HERE = Path(__file__).parent
FILE = "my_rules.py"
NAME = "small_copies"
THRESHOLDS = ("small", "many")
CHECKS = ("rule fires", "rule is silent", "rule counts")


@dataclass(frozen=True, slots=True)
class Case:
    """A recording, and the thresholds that are set."""

    recording: Path
    settings: dict[str, float]

    def found(self, rule: Rule) -> tuple[Finding, ...]:
        with Trace.open(self.recording) as trace:
            return run(trace, (rule,), settings={NAME: self.settings}).findings


def cases() -> tuple[Case, ...]:
    """Some with and some without a finding: what the rule must not do is as important as what it must."""
    many = HERE / "recorded" / "d_h200.sqlite"
    reads = HERE.parent / "e28_hidden_synchronisation" / "recorded" / "starter_h200.sqlite"
    large = HERE.parent / "e25_host_to_device" / "recorded" / "starter_h200.sqlite"
    none = HERE / "recorded" / "b_h200.sqlite"
    return (
        Case(many, {}),
        Case(reads, {}),
        Case(large, {"many": 3}),  # with a copy within the GPU, which does not count
        Case(many, {"small": 5_000}),
        Case(many, {"many": 100_000}),
        Case(reads, {"many": 1_000}),
        Case(large, {}),
        Case(none, {}),
    )


def checks(workspace: Path) -> list[GradedCheck]:
    """Whether the rule can be loaded, fires, stays silent, and says the right numbers."""
    try:
        rules = {rule.name: rule for rule in load_rules(workspace / FILE)}
    except LabError as error:
        return [failed("rule", str(error)), *(not_checked(name, "there is no rule") for name in CHECKS)]
    rule = rules.get(NAME)
    if rule is None:
        return [
            failed("rule", f"RULES of {FILE} holds no rule called {NAME}"),
            *(not_checked(name, "there is no rule") for name in CHECKS),
        ]
    names = tuple(threshold.name for threshold in rule.thresholds)
    if missing := [name for name in THRESHOLDS if name not in names]:
        first = failed("rule", f"{NAME} has no threshold called {missing[0]}, so it cannot be set")
    else:
        first = passed("rule", f"{NAME}, with the thresholds {', '.join(names)}")
    solution = load_rules(HERE / "solutions" / FILE)[0]
    wrong: dict[str, str] = {}
    for case in cases():
        right = case.found(solution)
        try:
            found = case.found(rule)
        except LabError as error:
            wrong.setdefault(CHECKS[0] if right else CHECKS[1], str(error))
            continue
        which, how = difference(found, right)
        if how:
            wrong.setdefault(which, f"{_where(case)}: {how}")
    said = (
        f"in {sum(bool(case.found(solution)) for case in cases())} recordings",
        "where it must be",
        "as expected",
    )
    return [
        first,
        *(
            failed(name, wrong[name]) if name in wrong else passed(name, text)
            for name, text in zip(CHECKS, said, strict=True)
        ),
    ]


def _where(case: Case) -> str:
    given = "".join(f" --set {NAME}.{name}={value:g}" for name, value in case.settings.items())
    shipped = case.recording.parent.parent == HERE
    return f"recorded/{case.recording.name}{given}" if shipped else f"a recording that you do not have{given}"


def difference(found: tuple[Finding, ...], right: tuple[Finding, ...]) -> tuple[str, str]:
    """The check that fails, and why; no reason if the findings agree."""
    fires, silent, counts = CHECKS
    if right and not found:
        return fires, "it finds nothing"
    if found and not right:
        return silent, "it fires, and should not"
    if len(found) > 1:
        return counts, f"it has {len(found)} findings, one is enough"
    for mine, theirs in zip(found, right, strict=True):
        if mine.events != theirs.events:
            return counts, f"{mine.events} copies are not the right number"
        if mine.cost_ns != theirs.cost_ns:
            return counts, f"a cost of {mine.cost_ns} ns is not the time that these copies took"
        if mine.place != theirs.place:
            return counts, "the finding does not name the line with most of this time"
    return counts, ""
