# SPDX-License-Identifier: Apache-2.0
"""Grade E08: the log of the rounds against their reports, and the last program against the first."""

from __future__ import annotations

import re
from pathlib import Path

from profiling_lab.analysis.ncu.consistency import LOADS, RATE, READ, WRITTEN
from profiling_lab.exercises import kernel_repair
from profiling_lab.exercises.answers import Answers
from profiling_lab.exercises.e08_optimization_loop import repair as task
from profiling_lab.exercises.e08_optimization_loop import reports
from profiling_lab.exercises.entries import entry
from profiling_lab.exercises.exercise import Exercise, GradedCheck, Mistake

ENTRY = entry("optimization-loop")
PROGRAM = "optimization_loop.cu"
RECORDING = "recorded/round0_h200.csv"
GOAL = task.FASTER
BARRIER = "smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio"
COUNTERS = (
    *LOADS,
    "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio",
    "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",
    "l1tex__t_sector_pipe_lsu_mem_global_op_ld_hit_rate.pct",
    "lts__t_sector_hit_rate.pct",
    READ,
    WRITTEN,
    RATE,
    BARRIER,
    "smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio",
    "smsp__average_warps_issue_stalled_lg_throttle_per_issue_active.ratio",
    "smsp__average_warps_issue_stalled_short_scoreboard_per_issue_active.ratio",
    "smsp__issue_active.avg.pct_of_peak_sustained_active",
    "smsp__inst_executed.sum",
    "smsp__sass_inst_executed_op_global_ld.sum",
    "smsp__sass_inst_executed_op_shared_ld.sum",
    "sm__warps_active.avg.pct_of_peak_sustained_active",
    "sm__maximum_warps_per_active_cycle_pct",
)


def findings(workspace: Path, answers: Answers) -> list[GradedCheck]:
    return reports.checks(workspace, ENTRY.folder / RECORDING, answers, GOAL)


def repair(workspace: Path, _: Answers) -> list[GradedCheck]:
    return kernel_repair.checks(ENTRY.folder / PROGRAM, workspace / PROGRAM, task.__name__)


def assembled(source: str, kernel_and_launcher: str) -> str:
    """The program with another kernel and launcher."""
    first = re.search(r"^(template|__global__)", source, re.M)
    last = re.search(r"^static void need", source, re.M)
    assert first is not None and last is not None
    return f"{source[: first.start()]}{kernel_and_launcher.strip()}\n\n{source[last.start() :]}"


def rounds_of(text: str) -> dict[int, tuple[str, str]]:
    """The rounds of solutions/rounds.cu: by number, what was tried, and the code."""
    parts = re.split(r"^// round (\d+): (.+)\n", text, flags=re.M)
    return {
        int(number): (why, code) for number, why, code in zip(*(parts[i::3] for i in (1, 2, 3)), strict=True)
    }


def _unchanged() -> dict[str, str]:
    return {PROGRAM: "// Repaired.\n" + (ENTRY.folder / PROGRAM).read_text(encoding="utf-8")}


def _at_once() -> dict[str, object]:
    """One round that is borne out by its report: the first program against the last."""
    return {
        "round1.report": "recorded/round4_h200.csv",
        "round1.metric": LOADS[0],
        "round1.before": 134217728.0,
        "round1.after": 8388608.0,
        "round1.us": 128.384,
        "round2.report": "",
    }


EXERCISE = Exercise(
    entry=ENTRY,
    question="Which counter did you expect to move, did it, and was the kernel faster for it?",
    starter=("README.md", PROGRAM, "Makefile", "answer.toml", "recorded"),
    findings=findings,
    repair=repair,
    program=("./optimization_loop", "1"),
    recording=RECORDING,
    counters=COUNTERS,
    rules=("uncoalesced", "few_threads"),
    mistakes=(
        Mistake("no hypothesis", {"round1.why": ""}, "round 1"),
        Mistake("the duration is no cause", {"round1.metric": "gpu__time_duration.sum"}, "round 1"),
        Mistake("a metric that is not in the report", {"round1.metric": "l2_hit_rate"}, "round 1"),
        Mistake("a counter that went the other way", {"round1.moves": "up"}, "round 1"),
        Mistake("a number that no report has", {"round1.before": 16.0}, "round 1"),
        Mistake("ms", {"round1.us": 0.25}, "round 1"),
        Mistake("a success that was none", {"round2.kept": "yes"}, "round 2"),
        Mistake("no barrier, so it must be faster", {"round3.kept": "yes"}, "round 3"),
        Mistake("a success thrown away", {"round4.kept": "no"}, "round 4"),
        Mistake("one report for two rounds", {"round2.report": "recorded/round1_h200.csv"}, "round 2"),
        Mistake("the starter's report again", {"round1.report": RECORDING}, "round 1"),
        Mistake("everything at once", _at_once(), "rounds"),
        Mistake("only a comment is new", {}, "result", _unchanged()),
    ),
)
