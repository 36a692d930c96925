# SPDX-License-Identifier: Apache-2.0
"""The texts of rules in the words of a trace's platform."""

from __future__ import annotations

from profiling_lab.records import replace
from profiling_lab.rules.finding import Abstain, RuleResult
from profiling_lab.trace.platform import in_words_of
from profiling_lab.trace.source import Tables


def in_words_of_the_platform(tables: Tables, result: RuleResult) -> RuleResult:
    if isinstance(result, Abstain):
        return Abstain(in_words_of(tables, result.reason), in_words_of(tables, result.to_record))
    return [
        replace(
            finding,
            what=in_words_of(tables, finding.what),
            cost_of=in_words_of(tables, finding.cost_of),
            remedy=in_words_of(tables, finding.remedy),
        )
        for finding in result
    ]
