# SPDX-License-Identifier: Apache-2.0
"""The texts of rules in the words of a trace's platform."""

from __future__ import annotations

from profiling_lab.records import replace
from profiling_lab.rules.finding import Abstain, RuleResult
from profiling_lab.trace.platform import replaced
from profiling_lab.trace.platform_words import Words


def in_words_of_the_platform(words: Words, result: RuleResult) -> RuleResult:
    """words: platform.words_of(trace)"""
    if isinstance(result, Abstain):
        return Abstain(replaced(result.reason, words), replaced(result.to_record, words))
    return [
        replace(
            finding,
            what=replaced(finding.what, words),
            cost_of=replaced(finding.cost_of, words),
            remedy=replaced(finding.remedy, words),
        )
        for finding in result
    ]
