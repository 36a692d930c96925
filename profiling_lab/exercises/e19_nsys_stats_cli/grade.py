# SPDX-License-Identifier: Apache-2.0
"""Grade E19. The right answers are computed from the reports that answer.toml names."""

from __future__ import annotations

from pathlib import Path

from profiling_lab.exercises.answers import Answers
from profiling_lab.exercises.e19_nsys_stats_cli import repair, reports
from profiling_lab.exercises.entries import entry
from profiling_lab.exercises.exercise import Exercise, GradedCheck, Mistake, failed, not_checked, passed

FOLDER = Path(__file__).parent
TOLERANCE_FRAC = 0.01
NAMES = ("kernels.hottest", "kernels.most_launched", "ranges.layer")
NUMBERS = (
    "kernels.hottest_ms",
    "kernels.all_ms",
    "kernels.launches",
    "copies.to_device_mb",
    "copies.to_device_ms",
    "calls.sync_ms",
    "ranges.layer_host_ms",
    "ranges.layer_gpu_ms",
)
ADVICE = {
    "kernels.launches": "the column Instances, summed",
    "calls.sync_ms": "two rows of one function may be the same calls: compare their numbers of calls",
    "copies.to_device_mb": "copies from host to device alone, without memsets",
    "copies.to_device_ms": "copies from host to device alone, in ms",
}


def findings(workspace: Path, answers: Answers) -> list[GradedCheck]:
    """One check for each question."""
    given = answers.text("reports")
    folder = workspace / given if given else FOLDER / "recorded"
    try:
        right, names = reports.numbers(folder), reports.names(folder)
    except reports.ReportError as error:
        reason = "there are no usable reports to check it against"
        return [failed("reports", str(error)), *(not_checked(key, reason) for key in (*NAMES, *NUMBERS))]
    whose = "your own" if given else "those that came with the exercise"
    return [
        passed("reports", whose),
        *(_name(key, answers, *names[key]) for key in NAMES),
        *(_number(key, answers, right[key]) for key in NUMBERS),
    ]


def _name(key: str, answers: Answers, right: list[str], every: list[str]) -> GradedCheck:
    given = answers.text(key)
    if given is None:
        return failed(key, "not answered yet: a part of its name")
    matches = [name for name in every if given in name]
    if not matches:
        return failed(key, f"no name in the report has {given!r} in it")
    if not set(matches) & set(right):
        return failed(key, f"{given!r} is another one: sort by the column that the question asks for")
    if not set(matches) <= set(right):
        return failed(key, f"{given!r} matches {len(matches)} names: write more of it")
    return passed(key, given)


def _number(key: str, answers: Answers, right: float) -> GradedCheck:
    given = answers.number(key)
    if given is None and right:
        return failed(key, "not answered yet")
    if _close(given or 0.0, right):
        return passed(key, f"{given or 0:g}")
    if any(_close((given or 0.0) / scale, right) for scale in (1e3, 1e6, 1e-3)):
        return failed(key, f"{given:g} has another unit: the name of the answer ends with the right one")
    return failed(
        key, ADVICE.get(key, f"not {given:g}: compare with the names of the columns, not their places")
    )


def _close(given: float, right: float) -> bool:
    return abs(given - right) <= TOLERANCE_FRAC * abs(right)


def _gate(old: str, new: str) -> dict[str, str]:
    text = (FOLDER / "solutions" / repair.FILE).read_text(encoding="utf-8")
    if old not in text:
        raise LookupError(f"{old!r} is not in the solution")
    return {repair.FILE: text.replace(old, new)}


PASS, STOP, BAD = repair.CHECKS.values()

EXERCISE = Exercise(
    entry=entry("nsys-stats-cli"),
    question="What do the reports say, and can a script act on them without a person?",
    starter=("README.md", "gate.py", "answer.toml", "recorded"),
    findings=findings,
    repair=lambda workspace, _: repair.checks(workspace),
    program=(),
    recording="recorded/cuda_gpu_kern_sum.csv",
    mistakes=(
        Mistake("nanoseconds", {"kernels.hottest_ms": 38791316.0}, "kernels.hottest_ms"),
        Mistake("the share as a time", {"kernels.hottest_ms": 44.3}, "kernels.hottest_ms"),
        Mistake("the hottest kernel alone", {"kernels.all_ms": 38.791}, "kernels.all_ms"),
        Mistake("rows instead of launches", {"kernels.launches": 62}, "kernels.launches"),
        Mistake("another kernel", {"kernels.hottest": "sm80_xmma_gemm"}, "kernels.hottest"),
        Mistake("a word of many names", {"kernels.hottest": "void"}, "kernels.hottest"),
        Mistake("a name that is not there", {"kernels.hottest": "ampere_sgemm"}, "kernels.hottest"),
        Mistake("memsets are copies", {"copies.to_device_mb": 0.367}, "copies.to_device_mb"),
        Mistake("both rows of one function", {"calls.sync_ms": 64.356}, "calls.sync_ms"),
        Mistake("the step contains the layer", {"ranges.layer": "training_step"}, "ranges.layer"),
        Mistake("the host's time for the GPU's", {"ranges.layer_gpu_ms": 1.194}, "ranges.layer_gpu_ms"),
        Mistake(
            "the hottest kernel stands for all", {}, STOP, _gate("return sum(times)", "return max(times)")
        ),
        Mistake("always passes", {}, STOP, _gate("return 1 if", "return 0 if")),
        Mistake("a limit of its own", {}, STOP, _gate("args.limit / 100", "max(args.limit, 10) / 100")),
        Mistake("a missing report is fine", {}, BAD, _gate("sys.exit(2)", "sys.exit(0)")),
        Mistake("no kernels are no regression", {}, BAD, _gate("if not times:", "if False:")),
    ),
)
