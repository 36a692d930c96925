# SPDX-License-Identifier: Apache-2.0
"""Grade E32. The right answers are computed from the learner's own recording and report."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from profiling_lab.analysis.ncu.consistency import READ, WRITTEN, contradictions
from profiling_lab.analysis.ncu.report import Launch, Report, ReportError, read
from profiling_lab.exercises.answers import Answers
from profiling_lab.exercises.clinic import COMMON_MISTAKES, SHARE, Defect
from profiling_lab.exercises.clinic import findings as clinic_findings
from profiling_lab.exercises.entries import entry
from profiling_lab.exercises.exercise import Exercise, GradedCheck, Mistake, failed, not_checked, passed
from profiling_lab.exercises.program_repair import Goal
from profiling_lab.exercises.suspects import operations
from profiling_lab.rules.view import Mask, View

ENTRY = entry("flash-attention")
PROGRAM, REPORT = "train.py", "recorded/starter_h200.csv"
FLOPS = 4 * 4 * 8 * 1024 * 1024 * 64
"""of rungs.py: two products of 2 x rows x rows x dim for each of 4 x 8 heads"""
KERNELS = {
    "naive": ("naive_scores_kernel", "naive_values_kernel"),
    "tiled": ("tiled_scores_kernel", "tiled_values_kernel"),
    "ladder": ("ladder_flash_kernel",),
    "flash": ("attention_fwd_sm90_kernel", "attention_fwd_sm80_kernel", "attention_fwd_pairs_sm80_kernel"),
}
"""the kernels that only this rung has"""
SOFTMAX, PREPARE = "ladder_softmax_kernel", "fwd_prepare_kernel"
UNITS = {
    "memory": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "cache": "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    "L1": "l1tex__throughput.avg.pct_of_peak_sustained_elapsed",
    "SM": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
}
ALSO_BUSY_FRAC = 0.9
"""a unit with this share of the busiest one's percentage is right too"""
SLACK_FRAC = 0.03


def unfused(view: View) -> Mask:
    """Kernels that are no fused attention."""
    return view.kernels & ~view.kernels_named(r"(?i)attention|flash|fmha")


DEFECT = Defect(
    operations(unfused),
    planted=("SelfAttention.attend",),
    behind="kernel",
    size=SHARE,
    least_frac=0.5,
)
GOAL = Goal(faster=5.0, steps=4)


@dataclass(frozen=True, slots=True)
class Rung:
    """What a report says of one rung."""

    intensity: float
    """FLOP per byte of device memory"""
    rate: float
    """TFLOP/s"""
    busiest: tuple[str, ...]
    """the units that are busiest in its longest kernel"""


def rungs(report: Report) -> dict[str, Rung]:
    """Each rung's launches. Raises ReportError."""
    launches: dict[str, list[Launch]] = {name: [] for name in KERNELS}
    owner = {kernel: name for name, kernels in KERNELS.items() for kernel in kernels}
    now = ""
    for launch in report.launches:
        now = "flash" if launch.function == PREPARE else owner.get(launch.function, now)
        if launch.function in (*owner, SOFTMAX, PREPARE) and now:
            launches[now].append(launch)
    found = {}
    for name, of_rung in launches.items():
        if not of_rung:
            raise ReportError(f"{report.source} has no launch of {name}: {', '.join(KERNELS[name])}")
        longest = max(of_rung, key=lambda launch: launch.duration_ns)
        busy = {unit: longest.value(name) for unit, name in UNITS.items()}
        found[name] = Rung(
            FLOPS / sum(launch.total(READ, WRITTEN) for launch in of_rung),
            FLOPS / sum(launch.duration_ns for launch in of_rung) / 1e3,
            tuple(unit for unit, pct in busy.items() if pct >= ALSO_BUSY_FRAC * max(busy.values())),
        )
    return found


def findings(folder: Path, answers: Answers) -> list[GradedCheck]:
    """Those of the recording, then those of the report."""
    *of_recording, explained = clinic_findings(DEFECT, ENTRY, folder, answers)
    return [*of_recording, *_of_report(folder, answers), explained]


def _of_report(folder: Path, answers: Answers) -> list[GradedCheck]:
    given = answers.text("report")
    path = folder / given if given else ENTRY.folder / REPORT
    try:
        report = read(path)
        if wrong := contradictions(report):
            raise ReportError(f"{wrong[0]}. `make report` makes a new report")
        found = rungs(report)
    except ReportError as error:
        reason = "there is no usable report to check it against"
        return [failed("report", str(error)), *(not_checked(name, reason) for name in KERNELS)]
    checks = [
        passed("report", "your own" if given and given != REPORT else "the one that came with the exercise")
    ]
    for name, rung in found.items():
        checks.append(_number(f"{name} intensity", answers.number(f"{name}.intensity"), rung.intensity))
        checks.append(_number(f"{name} rate", answers.number(f"{name}.rate"), rung.rate))
        checks.append(_unit(f"{name} busiest", answers.text(f"{name}.busiest"), rung.busiest))
    return checks


def _number(name: str, given: float | None, truth: float) -> GradedCheck:
    if given is None:
        return failed(name, "not answered yet: the comment in answer.toml says which number")
    if abs(given - truth) <= SLACK_FRAC * truth:
        return passed(name, f"{given:g}, recomputed {truth:.4g}")
    if abs(given - truth * 1e3) <= SLACK_FRAC * truth * 1e3 or abs(given * 1e3 - truth) <= SLACK_FRAC * truth:
        return failed(name, "off by a factor of 1000: look at the units")
    return failed(name, "your report has another value: add up all kernels of this rung")


def _unit(name: str, given: str | None, right: tuple[str, ...]) -> GradedCheck:
    if given is None:
        return failed(name, f"not answered yet: one of {', '.join(UNITS)}")
    if given not in UNITS:
        return failed(name, f"{given!r} is none of the units that answer.toml names")
    return (
        passed(name, given)
        if given in right
        else failed(name, "another unit is busier in its longest kernel")
    )


def right_answers(report: Report) -> dict[str, object]:
    """The right answers about the report."""
    found: dict[str, object] = {}
    for name, rung in rungs(report).items():
        found |= {
            f"{name}.intensity": float(f"{rung.intensity:.4g}"),
            f"{name}.rate": float(f"{rung.rate:.4g}"),
            f"{name}.busiest": rung.busiest[0],
        }
    return found


def repair(folder: Path, _: Answers) -> list[GradedCheck]:
    from profiling_lab.exercises.e32_flash_attention import repair  # imports torch: only for grading

    return repair.checks(ENTRY.folder / PROGRAM, folder / PROGRAM, GOAL)


EXERCISE = Exercise(
    entry=ENTRY,
    question="What does attention have to move through memory?",
    starter=("README.md", PROGRAM, "rungs.py", "Makefile", "answer.toml", "recorded"),
    findings=findings,
    repair=repair,
    program=(PROGRAM,),
    recording="recorded/starter_h200.sqlite",
    rules=("unfused_attention",),
    mistakes=(
        *COMMON_MISTAKES,
        Mistake("the longest kernel alone", {"naive.rate": 1.4}, "naive rate"),
        Mistake("GFLOP/s", {"flash.rate": 123456.0}, "flash rate"),
        Mistake("FLOP per number instead of byte", {"ladder.intensity": 7.0}, "ladder intensity"),
        Mistake("the same for all", {"tiled.intensity": 1e6}, "tiled intensity"),
        Mistake("a unit that does not exist", {"tiled.busiest": "GPU"}, "tiled busiest"),
    ),
)
