# SPDX-License-Identifier: Apache-2.0
"""Grade E06. The right answers are computed from the learner's report of ncu."""

from __future__ import annotations

from pathlib import Path

from profiling_lab.analysis.ncu.consistency import ACHIEVED, LIMITS, LOADS, THEORETICAL, WARPS_OF_SM
from profiling_lab.analysis.ncu.report import Launch, Report
from profiling_lab.exercises import kernel_repair, ncu_questions
from profiling_lab.exercises.answers import Answers
from profiling_lab.exercises.clinic import explanation
from profiling_lab.exercises.e06_compute_metrics import repair as task
from profiling_lab.exercises.entries import entry
from profiling_lab.exercises.exercise import Exercise, GradedCheck, Mistake
from profiling_lab.exercises.ncu_questions import Effect, Name, Number, Source

ENTRY = entry("compute-metrics")
PROGRAM = "compute_metrics.cu"
KERNELS = ("blend", "smooth", "grow", "walk")
WORDS = dict(zip(LIMITS, ("blocks", "registers", "shared memory", "warps"), strict=True))
REGISTERS = "launch__registers_per_thread"
THREADS_OF_INSTRUCTION = "smsp__thread_inst_executed_per_inst_executed.ratio"
ISSUED = "smsp__issue_active.avg.pct_of_peak_sustained_active"
INSTRUCTIONS = "smsp__inst_executed.sum"
COUNTERS = (*LIMITS, THEORETICAL, ACHIEVED, WARPS_OF_SM, THREADS_OF_INSTRUCTION, INSTRUCTIONS, ISSUED, *LOADS)
HALF_FULL_PCT, BUSY_PCT = 50.0, 60.0


def limiters(launch: Launch) -> tuple[str, ...]:
    """What allows the fewest blocks on one SM."""
    least = min(launch.value(name) for name in LIMITS)
    return tuple(word for name, word in WORDS.items() if launch.value(name) == least)


def threads_of_instruction(launch: Launch) -> float:
    return launch.value(THREADS_OF_INSTRUCTION)


def unharmed(report: Report) -> tuple[str, ...]:
    """Kernels with few warps whose schedulers are busy all the same."""
    launches = [report.last(name) for name in KERNELS]
    return tuple(
        each.function
        for each in launches
        if each.value(THEORETICAL) <= HALF_FULL_PCT and each.value(ISSUED) >= BUSY_PCT
    )


def _planted(report: Report) -> str:
    for name, word in (("blend", "registers"), ("smooth", "shared memory"), ("walk", "blocks")):
        launch = report.last(name)
        if word not in limiters(launch) or launch.value(THEORETICAL) > HALF_FULL_PCT + 1:
            return f"{name} is not limited by {word}"
    if threads_of_instruction(report.last("grow")) > 16:
        return "grow does not diverge"
    return ""


SOURCE = Source(ENTRY.folder, "compute_metrics", KERNELS, COUNTERS, _planted)


def _limiter(kernel: str) -> Name:
    advice = "the metrics launch__occupancy_limit_...: the smallest of them"
    return Name(f"{kernel}.limiter", lambda r: limiters(r.last(kernel)), advice, tuple(WORDS.values()))


def _theoretical(kernel: str) -> Number:
    advice = "the most warps that the limits allow, in per cent of what an SM can hold"
    key = f"{kernel}.theoretical_pct"
    return Number(key, lambda r: r.last(kernel).value(THEORETICAL), advice, slack_frac=0.0, slack=0.5)


QUESTIONS = (
    _limiter("blend"),
    _theoretical("blend"),
    Number(
        "blend.registers", lambda r: r.last("blend").value(REGISTERS), "of each thread", slack_frac=0.0,
    ),
    _limiter("smooth"),
    _theoretical("smooth"),
    Number(
        "smooth.achieved_pct", lambda r: r.last("smooth").value(ACHIEVED),
        "the warps that were there, in per cent of what an SM can hold", slack_frac=0.05, slack=0.2,
    ),
    _limiter("walk"),
    _theoretical("walk"),
    Number(
        "grow.threads_per_instruction", lambda r: threads_of_instruction(r.last("grow")),
        "the active threads of a warp, of 32, in the mean of all instructions",
    ),
    Name(
        "unharmed.kernel", unharmed,
        "few warps, and still the schedulers issue an instruction in most cycles",
    ),
)  # fmt: skip


EFFECTS = (
    Effect(
        "smooth", lambda r: r.last("smooth").value(THEORETICAL), 75.0,
        "per cent of theoretical occupancy", task.SMOOTH_FASTER,
        lambda r: r.last("smooth").value(LOADS[0]), lambda r: 0.75 * r.last("smooth").value(LOADS[0]), True,
    ),
    Effect(
        "grow", lambda r: threads_of_instruction(r.last("grow")), 24.0,
        "active threads of an instruction", task.GROW_FASTER,
        lambda r: _thread_instructions(r.last("grow")),
        lambda r: 0.5 * _thread_instructions(r.last("grow")), True,
    ),
    Effect(
        "walk", lambda r: r.last("walk").value(THEORETICAL), 75.0,
        "per cent of theoretical occupancy", task.WALK_FASTER,
        lambda r: r.last("walk").value(LOADS[0]), lambda r: 0.75 * r.last("walk").value(LOADS[0]), True,
    ),
)  # fmt: skip


def _thread_instructions(launch: Launch) -> float:
    return launch.value(INSTRUCTIONS) * launch.value(THREADS_OF_INSTRUCTION)


def findings(workspace: Path, answers: Answers) -> list[GradedCheck]:
    return [*ncu_questions.findings(SOURCE, QUESTIONS, workspace, answers), explanation(answers)]


def repair(workspace: Path, answers: Answers) -> list[GradedCheck]:
    return [
        *kernel_repair.checks(ENTRY.folder / PROGRAM, workspace / PROGRAM, task.__name__),
        *ncu_questions.effects(SOURCE, EFFECTS, workspace, answers),
    ]


def _unchanged() -> dict[str, str]:
    text = (ENTRY.folder / PROGRAM).read_text(encoding="utf-8")
    return {PROGRAM: text.replace("// Each item grows", "/* repaired */ // Each item grows")}


EXERCISE = Exercise(
    entry=ENTRY,
    question="What keeps lanes and warps empty, and which kernel does it not hurt?",
    starter=("README.md", PROGRAM, "Makefile", "answer.toml", "recorded"),
    findings=findings,
    repair=repair,
    program=("./compute_metrics", "1"),
    recording=ncu_questions.STARTER,
    counters=COUNTERS,
    rules=("low_occupancy", "divergence"),
    mistakes=(
        Mistake("blocks of 256 are the limit", {"blend.limiter": "warps"}, "blend.limiter"),
        Mistake("a word of its own", {"blend.limiter": "latency"}, "blend.limiter"),
        Mistake("a full SM", {"blend.theoretical_pct": 100.0}, "blend.theoretical_pct"),
        Mistake("a fraction", {"walk.theoretical_pct": 0.5}, "walk.theoretical_pct"),
        Mistake("registers of the block", {"blend.registers": 57344}, "blend.registers"),
        Mistake("it is always registers", {"smooth.limiter": "registers"}, "smooth.limiter"),
        Mistake("all that could be there is there", {"smooth.achieved_pct": 100.0}, "smooth.achieved_pct"),
        Mistake("32 threads are a warp", {"walk.limiter": "warps"}, "walk.limiter"),
        Mistake("all lanes", {"grow.threads_per_instruction": 32.0}, "grow.threads_per_instruction"),
        Mistake("idle lanes counted", {"grow.threads_per_instruction": 27.0}, "grow.threads_per_instruction"),
        Mistake("low occupancy always hurts", {"unharmed.kernel": "walk"}, "unharmed.kernel"),
        Mistake("full occupancy, no harm", {"unharmed.kernel": "grow"}, "unharmed.kernel"),
        Mistake("only a comment is new", {}, "result", _unchanged()),
        Mistake("no cause", {"fix.cause": ""}, "explanation"),
    ),
)
