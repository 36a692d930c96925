# SPDX-License-Identifier: Apache-2.0
"""The recorder's own cost"""

from __future__ import annotations

from builders import Judge, TraceBuilder

from profiling_lab.rules import Abstain
from profiling_lab.rules.profiler_overhead import RULE
from profiling_lab.trace.columns import OverheadKind

START = 1_000_000  # of the builder's clock; the kernel starts 3 µs later


def recording(*overheads: tuple[int, int]) -> TraceBuilder:
    builder = TraceBuilder(form="nsys").launch("k", 100_000)
    for length_ns, kind in overheads:
        builder.row(
            "CUPTI_ACTIVITY_KIND_OVERHEAD",
            start=START + 3_000,
            end=START + 3_000 + length_ns,
            globalTid=builder.tid(1),
            overheadType=kind,
        )
    return builder


def test_fires_from_five_per_cent_on_and_says_when_times_are_no_good(judge: Judge) -> None:
    (finding,) = judge(RULE, recording((6_000, OverheadKind.INSTRUMENTATION)))
    assert finding.cost_ns == 6_000 and "6.0 % of the recording: short calls" in finding.what
    assert [str(e) for e in finding.evidence] == ["overheads[0]"]
    (finding,) = judge(RULE, recording((20_000, OverheadKind.BUFFER_FLUSH)))
    assert "not reliable" in finding.what


def test_overlapping_overheads_count_once(judge: Judge) -> None:
    (finding,) = judge(RULE, recording((6_000, OverheadKind.RESOURCE), (8_000, OverheadKind.BUFFER_FLUSH)))
    assert finding.cost_ns == 8_000 and finding.events == 2


def test_ours_notes_its_cost_per_call(judge: Judge) -> None:
    builder = TraceBuilder().row("PYREC_META", name="overhead_callback_ns", value="300")
    for _ in range(4):
        builder.launch("k", 1_000)
    (finding,) = judge(RULE, builder)
    assert finding.cost_ns == 1_200


def test_silent_on_little_and_on_what_the_program_did_itself(judge: Judge) -> None:
    assert judge(RULE, recording((4_000, OverheadKind.INSTRUMENTATION))) == ()
    assert judge(RULE, recording((90_000, OverheadKind.COMMAND_BUFFER_FULL))) == ()


def test_abstains_where_nothing_was_noted(judge: Judge) -> None:
    verdict = judge(RULE, recording())
    assert isinstance(verdict, Abstain) and "does not contain" in verdict.reason
