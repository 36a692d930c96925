# SPDX-License-Identifier: Apache-2.0
"""Parse the user's settings: thresholds (`dataloader.share=10%`), and when a check fails (`2ms`)."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from profiling_lab.errors import UsageError
from profiling_lab.rules.finding import SEVERITIES, Finding, Threshold
from profiling_lab.rules.rule import Rule

Settings: TypeAlias = Mapping[str, Mapping[str, float]]
"""values by rule and threshold"""

# The suffixes allowed for a value, by the first word of its threshold's unit.
_ENDINGS: dict[str, dict[str, float]] = {
    "of": {"%": 0.01},
    "ns,": {"ns": 1, "us": 1e3, "µs": 1e3, "ms": 1e6, "s": 1e9},
    "bytes,": {"KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30},
}
_VALUE = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(?:e([+-]?\d+))?\s*([%µA-Za-z]*)")


def parse_settings(texts: Sequence[str], rules: Sequence[Rule]) -> Settings:
    """`RULE.THRESHOLD=VALUE` each; the value in the threshold's own unit, or as `10%`, `5us`, `64KB`.

    Raises UsageError for a text that cannot be parsed, and for an unknown rule or threshold.
    """
    by_name = {rule.name: rule for rule in rules}
    found: dict[str, dict[str, float]] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        rule_name, dot, name = key.strip().replace("-", "_").partition(".")
        if not equals or not dot:
            raise UsageError(f"expected RULE.THRESHOLD=VALUE, such as dataloader.share=10%, not {text!r}")
        if rule_name not in by_name:
            raise UsageError(f"there is no rule {rule_name!r}; `profiling-lab rules` lists them")
        names = {threshold.name: threshold for threshold in by_name[rule_name].thresholds}
        if name not in names:
            raise UsageError(
                f"rule {rule_name} has no threshold {name!r}; it has {', '.join(names) or 'none'}"
            )
        found.setdefault(rule_name, {})[name] = _parsed(value.strip(), names[name])
    return found


def _parsed(value: str, threshold: Threshold) -> float:
    endings = {"": 1.0} | _ENDINGS.get(threshold.unit.split(" ")[0], {})
    match = _VALUE.fullmatch(value)
    number = float(f"{match[1]}e{match[2] or 0}") * endings.get(match[3], math.nan) if match else math.nan
    if not math.isfinite(number):
        also = ", ".join(filter(None, endings))
        raise UsageError(
            f"expected a number of at least 0{f', or one with {also}' if also else ''}, for {threshold.name} "
            f"({threshold.what}: {threshold.unit}), not {value!r}"
        )
    return number


def parse_fail_on(text: str) -> Callable[[Finding, int], bool]:
    """When a check fails: `low`, `medium`, `high`, `never`, `5%` of the recording or `2ms` per step.

    Returns a function of a finding and the length of the recording. Raises UsageError for anything else.
    """
    text = text.strip()
    if text == "never":
        return lambda finding, span_ns: False
    if text in SEVERITIES:
        ranks = list(SEVERITIES)
        return lambda finding, span_ns: ranks.index(finding.severity) <= ranks.index(text)
    match = _VALUE.fullmatch(text)
    if match is not None and not match[2] and match[3] == "%":
        frac = float(match[1]) / 100
        return lambda finding, span_ns: finding.cost_ns > frac * span_ns
    if match is not None and not match[2] and match[3] in _ENDINGS["ns,"]:
        limit_ns = float(match[1]) * _ENDINGS["ns,"][match[3]]
        return lambda finding, span_ns: _cost_ns(finding) > limit_ns
    raise UsageError(f"--fail-on expects low, medium, high, never, or a cost such as 5% or 2ms, not {text!r}")


def _cost_ns(finding: Finding) -> int:
    return finding.cost_ns if finding.per_step_ns is None else finding.per_step_ns
