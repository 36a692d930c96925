# SPDX-License-Identifier: Apache-2.0
"""Every rule has a trace where it fires, one where it stays silent, one where it abstains, and is told of."""

from __future__ import annotations

import ast
import re
import textwrap
from pathlib import Path

import pytest

from profiling_lab.cli.rules import EXAMPLES
from profiling_lab.rules import COUNTER_RULES, RULES, Rule

TESTS = Path(__file__).parent
# What the tests of an answer are called, and what they have to assert.
ANSWERS = {
    "fires": (r"fires|bound|charges", r"\(\w+,\) = judge\(|for \w+ in judge\(|= judge\("),
    "silent": (r"silent", r"== \(\)|== \[\]"),
    "abstains": (r"abstains", r"isinstance\(.+, Abstain\)"),
}


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_every_answer_of_every_rule_is_tested(rule: Rule, answer: str) -> None:
    name, asserts = ANSWERS[answer]
    text = (TESTS / f"test_{rule.name}.py").read_text()
    assert re.search(rf"from profiling_lab\.rules\.{rule.name} import .*RULE", text)
    functions = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
    named = [f for f in functions if f.name.startswith("test_") and re.search(name, f.name)]
    bodies = [ast.get_source_segment(text, f) or "" for f in named]
    assert any("judge(" in body and re.search(asserts, body) for body in bodies), (
        f"tests/rules/test_{rule.name}.py lacks a trace for the answer {answer!r}"
    )


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_every_threshold_can_be_set_and_is_used(rule: Rule) -> None:
    names = [threshold.name for threshold in rule.thresholds]
    assert len(set(names)) == len(names) and all(re.fullmatch(r"[a-z_]+", name) for name in names)
    folder = Path(__import__("profiling_lab.rules", fromlist=["rules"]).__file__ or "").parent
    parts = [folder / f"{name}.py" for name in (rule.name, "host_waits", "kernel_families", "small_grids")]
    used = "".join(part.read_text() for part in parts)
    for name in names:
        assert f"view[{name.upper()}]" in used or f"view[FIRST_{name.upper()}]" in used, name


@pytest.mark.parametrize("rule", COUNTER_RULES, ids=lambda rule: rule.name)
def test_every_rule_of_counters_is_tested_told_and_uses_its_thresholds(repo: Path, rule: Rule) -> None:
    """tests/rules/test_counter_rules.py has a kernel for each of its answers."""
    where = f"profiling_lab/rules/counters/{rule.name}.py"
    assert f"[`{rule.name}`](../{where})" in (repo / "docs" / "rules.md").read_text()
    tests = (TESTS / "test_counter_rules.py").read_text()
    for answer in ANSWERS:
        needs_nothing = (rule.name, answer) == ("few_threads", "abstains")  # grid and block are always there
        assert needs_nothing or re.search(rf'Case\(\s*"{rule.name}", "{answer}"', tests), answer
    used = "".join((repo / where).with_name(name).read_text() for name in (f"{rule.name}.py", "fault.py"))
    for threshold in rule.thresholds:
        assert f"view[{threshold.name.upper()}]" in used, threshold.name


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_the_page_names_the_rule(repo: Path, rule: Rule) -> None:
    assert (
        f"[`{rule.name}`](../profiling_lab/rules/{rule.name}.py)" in (repo / "docs" / "rules.md").read_text()
    )


def test_page_and_help_show_the_same_example(repo: Path) -> None:
    page = (repo / "docs" / "rules.md").read_text()
    example = textwrap.dedent(EXAMPLES.partition("in my_rules.py:\n")[2]).strip()
    assert example in page
