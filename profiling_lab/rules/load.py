# SPDX-License-Identifier: Apache-2.0
"""Rules from the user's own file. Each error in it becomes one sentence with the line number."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from profiling_lab.errors import LabError, UsageError
from profiling_lab.records import replace
from profiling_lab.rules.finding import Abstain, Finding, RuleResult, Threshold
from profiling_lab.rules.rule import Rule
from profiling_lab.rules.view import View


def load_rules(path: Path) -> tuple[Rule, ...]:
    """Execute a Python file and return its tuple RULES. Raises UsageError if that fails."""
    import importlib.util

    if not path.is_file():
        raise UsageError(f"there is no rules file {path}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise UsageError(f"{path} cannot be executed, {_what(error, path)}") from error
    rules = getattr(module, "RULES", None)
    if not isinstance(rules, tuple | list) or not rules or not all(isinstance(r, Rule) for r in rules):
        raise UsageError(f"{path} must define RULES, a tuple of profiling_lab.rules.Rule")
    return tuple(_sound(rule, path) for rule in rules)


def _sound(rule: Rule, path: Path) -> Rule:
    if not isinstance(rule.name, str) or not rule.name.isidentifier():
        raise UsageError(f"{path}: the rule name {rule.name!r} is not a Python identifier")
    if not callable(rule.check):
        raise UsageError(f"{path}: the check of rule {rule.name} is not a function")
    if not isinstance(rule.thresholds, tuple) or not all(isinstance(t, Threshold) for t in rule.thresholds):
        raise UsageError(f"{path}: the thresholds of rule {rule.name} are not a tuple of Threshold")
    return replace(rule, check=_guarded(rule, path))


def _guarded(rule: Rule, path: Path) -> Callable[[View], RuleResult]:
    """A rule that fails, or returns None, must never count as 'nothing found'."""

    def check(view: View) -> RuleResult:
        try:
            result = rule.check(view)
        except LabError:
            raise
        except Exception as error:
            raise UsageError(f"rule {rule.name} of {path} failed, {_what(error, path)}") from error
        is_list = isinstance(result, tuple | list) and all(isinstance(each, Finding) for each in result)
        if not is_list and not isinstance(result, Abstain):
            raise UsageError(f"rule {rule.name} of {path} returned {result!r}; expected findings or Abstain")
        return result

    return check


def _what(error: BaseException, path: Path) -> str:
    """`line 7: KeyError: 'x'`: the line of the file at which the error was raised."""
    line = error.lineno if isinstance(error, SyntaxError) else None
    trace, executed = error.__traceback__, path.resolve()
    while trace is not None and not isinstance(error, SyntaxError):
        if Path(trace.tb_frame.f_code.co_filename).resolve() == executed:
            line = trace.tb_lineno
        trace = trace.tb_next
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    where = f"line {line}: " if line else ""
    return f"{where}{type(error).__name__}: {' '.join(text.split())}"
