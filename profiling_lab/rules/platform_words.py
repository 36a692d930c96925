# SPDX-License-Identifier: Apache-2.0
"""The texts of rules for AMD GPUs: CUDA terms are replaced by those of ROCm."""

from __future__ import annotations

from dataclasses import replace

from profiling_lab.rules.finding import Abstain, RuleResult
from profiling_lab.trace.platform import in_words_of_rocm


def in_words_of_the_platform(result: RuleResult) -> RuleResult:
    if isinstance(result, Abstain):
        return Abstain(in_words_of_rocm(result.reason), in_words_of_rocm(result.to_record))
    return [
        replace(
            finding,
            what=in_words_of_rocm(finding.what),
            cost_of=in_words_of_rocm(finding.cost_of),
            remedy=in_words_of_rocm(finding.remedy),
        )
        for finding in result
    ]
