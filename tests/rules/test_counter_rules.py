# SPDX-License-Identifier: Apache-2.0
"""The rules of `check --ncu`, each with a kernel that it objects to, one that is fine, and a report that does
not tell; the exports of the exercises from an H200; and how a report is joined with a recording.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from conftest import REPO

from profiling_lab.analysis.ncu.as_trace import NcuSource
from profiling_lab.analysis.ncu.report import DURATION, Launch, Report
from profiling_lab.cli import main
from profiling_lab.exercises import catalogue
from profiling_lab.rules import COUNTER_RULES, Abstain, Finding, run
from profiling_lab.rules.finding import RuleResult
from profiling_lab.rules.view import View
from profiling_lab.trace import Trace

EXERCISES = REPO / "profiling_lab" / "exercises"
BY_NAME = {rule.name: rule for rule in COUNTER_RULES}
SECTORS = "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio"
USE = "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.pct"
DRAM = "dram__throughput.avg.pct_of_peak_sustained_elapsed"
ISSUED = "smsp__issue_active.avg.pct_of_peak_sustained_active"
ALLOWED = "sm__maximum_warps_per_active_cycle_pct"
ACTIVE = "smsp__thread_inst_executed_per_inst_executed.ratio"
PASSES = "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum"
SHARED = "smsp__inst_executed_op_shared_ld.sum"
ATOMICS = "l1tex__t_sectors_pipe_lsu_mem_global_op_red.sum"
BARRIER = "smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio"
FLOAT32 = {f"smsp__sass_thread_inst_executed_op_f{name}_pred_on.sum": 0.0 for name in ("add", "mul")}
LIMITS = {f"launch__occupancy_limit_{name}": 32.0 for name in ("blocks", "registers", "warps")}


@dataclass(frozen=True)
class Case:
    """What a rule says of a kernel of 1000 blocks of 256 threads that takes a millisecond."""

    rule: str
    answer: str
    metrics: Mapping[str, float] = field(default_factory=dict)
    says: str = ""
    cost_frac: float = 0.0
    blocks: int = 1000


CASES = (
    Case("uncoalesced", "fires", {SECTORS: 32}, "touches 32.0 sectors", 0.875),
    Case("uncoalesced", "fires", {SECTORS: 8, USE: 25}, "25.0 % are used", 0.75),
    Case("uncoalesced", "silent", {SECTORS: 16}),  # 16 bytes a thread
    Case("uncoalesced", "silent", {SECTORS: 32, USE: 100}),
    Case("uncoalesced", "silent", {SECTORS: 32, DRAM: 80}),
    Case("uncoalesced", "silent", {SECTORS: 32, ISSUED: 80}),
    Case("uncoalesced", "abstains"),
    Case("bank_conflicts", "fires", {PASSES: 3200, SHARED: 100}, "32.0 passes", 1 - 1 / 32),
    Case("bank_conflicts", "silent", {PASSES: 400, SHARED: 100}),
    Case("bank_conflicts", "silent", {PASSES: 0, SHARED: 0}),
    Case("bank_conflicts", "abstains", {PASSES: 400}),
    Case(
        "low_occupancy", "fires",
        {ALLOWED: 12.5, ISSUED: 10, **LIMITS, "launch__occupancy_limit_shared_mem": 1},
        "shared memory", 0.875,
    ),
    Case("low_occupancy", "silent", {ALLOWED: 75, ISSUED: 10}),
    Case("low_occupancy", "silent", {ALLOWED: 12.5, ISSUED: 97}),  # few warps, all of them at work
    Case("low_occupancy", "silent", {ALLOWED: 25, DRAM: 85}),
    Case("low_occupancy", "abstains", {ALLOWED: 12.5}),  # whether it hurts is not known
    Case("few_threads", "fires", {}, "25,600 threads in 100 blocks", 0.36, blocks=100),
    Case("few_threads", "silent"),
    Case("few_threads", "silent", {DRAM: 75}, blocks=100),
    Case("divergence", "fires", {ACTIVE: 4}, "4.0 of 32 threads", 0.875),
    Case("divergence", "silent", {ACTIVE: 30}),
    Case("divergence", "abstains"),
    Case("serial_atomics", "fires", {ATOMICS: 256_000}, "1.0 atomics for each thread", 1.0),
    Case("serial_atomics", "silent", {ATOMICS: 1000}),
    Case("serial_atomics", "silent", {ATOMICS: 256_000, DRAM: 90}),
    Case("serial_atomics", "abstains"),
    Case(
        "latency_bound", "fires",
        {ISSUED: 5, DRAM: 20, BARRIER: 9, BARRIER.replace("barrier", "selected"): 50},
        "wait for barrier, 9.0 cycles", 0.8,
    ),
    Case("latency_bound", "silent", {ISSUED: 50, DRAM: 20}),
    Case("latency_bound", "silent", {ISSUED: 5, DRAM: 60}),
    Case("latency_bound", "abstains", {ISSUED: 5}),
    Case("on_the_roof", "fires", {DRAM: 90}, "on the roof", 0.0),
    Case("on_the_roof", "fires", {DRAM: 90, SECTORS: 32}, "bytes that it does not use", 0.875),
    Case(
        "on_the_roof", "fires",
        {**FLOAT32, "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum": 30e9},
        "89.6 % of the rate of float32",
    ),
    Case("on_the_roof", "silent", {DRAM: 50}),
    Case("on_the_roof", "abstains"),
)  # fmt: skip


def report_of(metrics: Mapping[str, float], blocks: int = 1000, name: str = "kernel") -> Report:
    every = {DURATION: 1e6, **metrics}
    launch = Launch(0, f"{name}(int)", (blocks, 1, 1), (256, 1, 1), "program", "NVIDIA H200", every)
    return Report((launch,), "report.csv")


def judge(rule: str, report: Report, trace: Trace | None = None) -> RuleResult:
    view = View(trace or Trace(NcuSource(Path("report.csv"), report)))
    view.report = report
    return BY_NAME[rule].check(view)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.rule}-{case.answer}")
def test_each_answer_of_each_rule(case: Case) -> None:
    told = judge(case.rule, report_of(case.metrics, case.blocks))
    if case.answer == "abstains":
        assert isinstance(told, Abstain) and "--metrics" in told.to_record
        return
    assert not isinstance(told, Abstain)
    if case.answer == "silent":
        assert not told
        return
    (finding,) = told
    assert case.says in finding.what and "1.000 ms in 1 launch" in finding.what and finding.remedy
    assert finding.cost_ns == round(case.cost_frac * 1e6) and finding.kernel == "kernel"


def test_every_rule_abstains_without_a_report() -> None:
    view = View(Trace(NcuSource(Path("report.csv"), report_of({}))))
    for rule in COUNTER_RULES:
        told = rule.check(view)
        assert isinstance(told, Abstain) and "--ncu" in told.to_record, rule.name


def found(folder: str, report: str, recording: str = "") -> list[Finding]:
    """The findings of the rules about counters, the largest first."""
    path = EXERCISES / folder / "recorded"
    from profiling_lab.analysis.ncu.as_trace import trace_of_report
    from profiling_lab.analysis.ncu.report import read

    trace = Trace.open(path / recording) if recording else trace_of_report(path / report)[0]
    with trace:
        return list(run(trace, COUNTER_RULES, report=read(path / report)).findings)


E33, E34, E35 = "e33_low_memory_throughput", "e34_low_occupancy", "e35_long_kernel"
PLANTED = {
    ("e05_memory_metrics", ""): [("uncoalesced", "scale_grid"), ("bank_conflicts", "flip_tiles")],
    ("e06_compute_metrics", ""): [
        ("low_occupancy", "smooth"), ("divergence", "grow"), ("low_occupancy", "walk"),
    ],
    (E33, "sqlite"): [("uncoalesced", "scores_kernel")],
    (E34, "sqlite"): [("low_occupancy", "attend_kernel")],
    (E35, "sqlite"): [("serial_atomics", "entropy_kernel"), ("few_threads", "attend_kernel")],
}  # fmt: skip


@pytest.mark.parametrize(("folder", "recording"), PLANTED)
def test_a_starters_export_names_what_is_planted_and_the_solutions_does_not(
    folder: str, recording: str
) -> None:
    def of(side: str) -> list[tuple[str, str]]:
        file = f"{side}_h200.sqlite" if recording else ""
        return [(each.rule, each.kernel) for each in found(folder, f"{side}_h200.csv", file)]

    planted, starter, solution = PLANTED[folder, recording], of("starter"), of("solution")
    assert starter[0] == planted[0] and set(planted) <= set(starter)
    number = int(folder[1:3])
    (exercise,) = (each for each in catalogue() if each.number == number)
    assert {rule for rule, _ in planted} == set(exercise.rules)
    assert not set(planted) & set(solution)


def test_the_first_round_of_the_loop_is_told_and_the_last_is_on_the_roof() -> None:
    first = found("e08_optimization_loop", "round0_h200.csv")
    assert [each.rule for each in first] == ["uncoalesced", "few_threads"]
    assert "latency_bound" in [each.rule for each in first[0].effects]
    (last,) = found("e08_optimization_loop", "round4_h200.csv")
    assert last.rule == "on_the_roof" and last.cost_ns == 0 and "stop here" in last.remedy


def test_the_kernels_of_the_roofline_exercise_are_placed() -> None:
    placed = {each.kernel: each.rule for each in found("e07_roofline_practice", "starter_h200.csv")}
    assert placed == {"peak_fma": "on_the_roof", "triad": "on_the_roof", "chain": "few_threads"}


def test_findings_have_the_recordings_time_and_line() -> None:
    first = found(E33, "starter_h200.csv", "starter_h200.sqlite")[0]
    assert first.place is not None and first.place.file.endswith("run.py") and first.events == 19
    assert first.per_step_ns is not None and 900_000 < first.per_step_ns < 1_000_000


def test_a_report_of_another_program_says_so() -> None:
    path = EXERCISES / E33 / "recorded" / "starter_h200.sqlite"
    with Trace.open(path) as trace:
        told = judge("uncoalesced", report_of({SECTORS: 32}, name="other"), trace)
        assert isinstance(told, Abstain) and "no kernel of report.csv (other) is in this" in told.reason
        told = judge("uncoalesced", report_of({SECTORS: 32}, name="scores_kernel"), trace)
        assert isinstance(told, Abstain), "the name is there, but with another grid"


def test_the_command_reads_a_report_alone_or_with_a_recording(capsys: pytest.CaptureFixture[str]) -> None:
    folder = EXERCISES / E34 / "recorded"
    both = [str(folder / "starter_h200.sqlite"), "--ncu", str(folder / "starter_h200.csv")]
    rows = {}
    for name, words in {"both": both, "alone": both[-1:], "without": both[:1]}.items():
        assert main(["check", *words, "--format", "json"]) == 1
        rows[name] = json.loads(capsys.readouterr().out)["data"]["rows"]
    assert rows["both"][0]["rule"] == rows["alone"][0]["rule"] == "low_occupancy"
    assert rows["both"][0]["line"] and not rows["alone"][0]["line"]
    told = {row["rule"] for row in rows["without"]}
    assert not told & BY_NAME.keys(), "without counters nothing is said of them"
    assert main(["check", both[-1]]) == 1
    assert "--ncu joins it with a recording" in capsys.readouterr().out.replace("\n", " ")
    assert main(["check", str(EXERCISES / "e17_python_backtrace" / "grade.csv")]) == 4
    assert "there is no report grade.csv" in capsys.readouterr().err


def test_a_rule_that_is_named_without_a_report_abstains(capsys: pytest.CaptureFixture[str]) -> None:
    path = EXERCISES / E34 / "recorded" / "starter_h200.sqlite"
    assert main(["check", str(path), "--only", "uncoalesced"]) == 3
    assert "check --ncu REPORT" in capsys.readouterr().out
