# SPDX-License-Identifier: Apache-2.0
"""The rules of `check --ncu`: what only hardware counters show, kernel by kernel."""

from __future__ import annotations

from profiling_lab.rules.counters import (
    bank_conflicts,
    divergence,
    few_threads,
    latency_bound,
    low_occupancy,
    on_the_roof,
    serial_atomics,
    uncoalesced,
)
from profiling_lab.rules.rule import Rule

COUNTER_RULES: tuple[Rule, ...] = (
    latency_bound.RULE,
    uncoalesced.RULE,
    bank_conflicts.RULE,
    low_occupancy.RULE,
    few_threads.RULE,
    divergence.RULE,
    serial_atomics.RULE,
    on_the_roof.RULE,
)
