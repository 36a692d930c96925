# SPDX-License-Identifier: Apache-2.0
"""Grade E18. The right answers are computed from the samples in the learner's own recordings."""

from __future__ import annotations

import tempfile
from pathlib import Path, PurePath
from types import ModuleType
from typing import Any

from profiling_lab.analysis.lines_host import HostLineRow, host_lines, host_stacks
from profiling_lab.errors import LabError, NotEnoughDataError
from profiling_lab.exercises import clinic, work_repair
from profiling_lab.exercises.answers import Answers
from profiling_lab.exercises.clinic import COMMON_MISTAKES, PROGRAM, Defect, Size
from profiling_lab.exercises.entries import entry
from profiling_lab.exercises.exercise import (
    CheckStatus,
    Exercise,
    GradedCheck,
    Mistake,
    failed,
    not_checked,
    passed,
)
from profiling_lab.exercises.suspects import host_samples
from profiling_lab.exercises.work_repair import Work
from profiling_lab.trace import Trace

ENTRY = entry("io-dataloader")
SHARE = Size("share", "the percentage of samples that `profiling-lab lines --host` shows for it", slack=2.0)
DEFECT = Defect(
    host_samples,
    planted=("Images.__getitem__", "Images.__getitem__.<locals>.<listcomp>"),
    behind="caller",
    size=SHARE,
    least_frac=0.3,
    recording="recorded/starter_cpu.sqlite",
)
LOOP = "train"
"""the function whose line gets the batches"""
WAITS_AT_MOST_FRAC = 0.2
"""the wait for the loader after the repair, as a fraction of that before"""
LOADER = "utils/data/dataloader.py"
BATCH, SMALL, LARGE = 8, 16, 64


def findings(workspace: Path, answers: Answers) -> list[GradedCheck]:
    """The checks "recording", "line", "size", "wait", "wait_share", "explanation"."""
    checks = [each for each in clinic.findings(DEFECT, ENTRY, workspace, answers) if each.name != "behind"]
    if checks[0].status is not CheckStatus.PASSED:
        reason = "there is no usable recording to check it against"
        return [*checks, not_checked("wait", reason), not_checked("wait_share", reason)]
    waits = waiting_line(_recording(workspace, answers.text("trace")))
    if isinstance(waits, str):
        return [failed("recording", waits)]
    row, share = waits
    return [*checks[:-1], _wait(answers, row), _wait_share(answers, share), checks[-1]]


def _recording(workspace: Path, name: str | None) -> Path:
    return workspace / name if name else ENTRY.folder / DEFECT.recording


def waiting_line(path: Path) -> tuple[HostLineRow, float] | str:
    """The line of the training loop that has the most samples together with what it calls, and their
    percentage of all samples; or why there is none.
    """
    try:
        with Trace.open(path) as trace:
            found = host_lines(trace, sort="inclusive")
    except LabError as error:
        return str(error)
    rows = [row for row in found.rows if row.function == LOOP]
    if not rows:
        return f"{path.name} has no sample in the function {LOOP}: keep its name, and record {PROGRAM}"
    return rows[0], 100 * rows[0].inclusive_samples / found.samples


def _wait(answers: Answers, row: HostLineRow) -> GradedCheck:
    given = answers.integer("finding.wait_line")
    if given is None:
        return failed("wait", f"not answered yet: [finding] wait_line, a line of the function {LOOP}")
    if given == row.line:
        return passed("wait", f"{PurePath(row.file).name} line {given}")
    return failed("wait", f"another line of {LOOP} has more samples together with what it calls")


def _wait_share(answers: Answers, true: float) -> GradedCheck:
    given = answers.number("finding.wait_share")
    if given is None:
        return failed("wait_share", "not answered yet: [finding] wait_share, with the calls of the line")
    if SHARE.fits(given, true):
        return passed("wait_share", f"{given:g}, recomputed {true:.1f}")
    if SHARE.fits(100 * given, true):
        return failed("wait_share", "write the value in per cent, not as a fraction")
    return failed(
        "wait_share", "another value: the samples of this line with its calls, of all samples, in per cent"
    )


def repair(workspace: Path, answers: Answers) -> list[GradedCheck]:
    """The checks "result", "work" and "starvation"."""
    with tempfile.TemporaryDirectory() as folder:
        work = Work(_images(Path(folder)), batches, difference, at_most_frac=0.1, what=f"{LARGE} images")
        checks = work_repair.checks(ENTRY.folder / PROGRAM, workspace / PROGRAM, work)
    return [*checks, _starvation(workspace, answers)]


def _images(folder: Path) -> Any:
    """Makes a file of images that no program has seen."""

    def make(starter: ModuleType, seed: int, small: bool) -> Path:
        path = folder / f"images_{seed}_{small}.bin"
        starter.write_images(path, SMALL if small else LARGE, seed)
        return path

    return make


def batches(program: ModuleType, path: Path) -> list[Any]:
    """All batches, loaded in this process: workers share the work, but do not make it less."""
    from torch.utils.data import DataLoader, IterableDataset

    loader = program.make_loader(path, batch_size=BATCH)
    if (
        isinstance(loader, DataLoader)
        and loader.num_workers
        and not isinstance(loader.dataset, IterableDataset)
    ):
        loader = DataLoader(loader.dataset, batch_sampler=loader.batch_sampler, collate_fn=loader.collate_fn)
    return list(loader)


def difference(old: list[Any], new: list[Any]) -> str:
    """Batches are pairs of images and labels, equal within the rounding of one operation."""
    import torch

    if len(old) != len(new):
        return f"there are {len(new)} batches, expected {len(old)}"
    for number, (expected, batch) in enumerate(zip(old, new, strict=True)):
        if not isinstance(batch, (list, tuple)) or len(batch) != 2:
            return f"batch {number} is not a pair of images and labels"
        for name, right, given in zip(("images", "labels"), expected, batch, strict=True):
            if (
                not isinstance(given, torch.Tensor)
                or given.shape != right.shape
                or given.dtype != right.dtype
            ):
                return f"the {name} of batch {number} are not {tuple(right.shape)} of {right.dtype}"
            if not torch.allclose(given.cpu(), right, rtol=0.0, atol=1e-5):
                return f"the {name} of batch {number} have other values"
    return ""


def _starvation(workspace: Path, answers: Answers) -> GradedCheck:
    """Compared is the wait per time of the rest of the loop: it does not depend on the number of steps."""
    name = answers.text("fix.after")
    if name is None:
        return not_checked("starvation", "no recording of the repaired program: [fix] after (step 4)")
    try:
        before, after = (starvation(_recording(workspace, each)) for each in (answers.text("trace"), name))
    except LabError as error:
        return failed("starvation", str(error))
    said = f"for each ms of work the loop waits {after:.2f} ms for its loader, {before:.2f} ms before"
    if after <= WAITS_AT_MOST_FRAC * before:
        return passed("starvation", said)
    return failed("starvation", f"{said}; the goal is at most {100 * WAITS_AT_MOST_FRAC:g} %")


def starvation(path: Path) -> float:
    """Host time in the DataLoader, for each unit of host time in the rest of the training loop."""
    waiting = working = 0
    with Trace.open(path) as trace:
        for stack in host_stacks(trace):
            if any(frame.file.endswith(LOADER) for frame in stack.frames):
                waiting += stack.ns
            elif any(frame.function == LOOP for frame in stack.frames):
                working += stack.ns
    if not working:
        raise NotEnoughDataError(f"{path.name} has no sample in the function {LOOP}, besides its loader")
    return waiting / working


EXERCISE = Exercise(
    entry=ENTRY,
    question="What does the training loop wait for?",
    starter=("README.md", PROGRAM, "answer.toml", "recorded"),
    findings=findings,
    repair=repair,
    program=(PROGRAM,),
    recording=DEFECT.recording,
    rules=("dataloader",),
    mistakes=(
        *(each for each in COMMON_MISTAKES if each.rejected_by != "behind"),
        Mistake("the line that waits, instead of the one that works", {"finding.line": 77}, "line"),
        Mistake("the line that opens the file, which looks expensive", {"finding.line": 42}, "line"),
        Mistake("a fraction instead of a percentage", {"finding.size": 0.745}, "size"),
        Mistake("the line that works, instead of the one that waits", {"finding.wait_line": 45}, "wait"),
        Mistake("the backward pass", {"finding.wait_line": 81}, "wait"),
        Mistake("the line's own samples, without its calls", {"finding.wait_share": 3.8}, "wait_share"),
        Mistake("a fraction of the waiting", {"finding.wait_share": 0.932}, "wait_share"),
        Mistake(
            "the recording of the unchanged program as that of the repaired one",
            {"fix.after": "recorded/starter_cpu.sqlite"},
            "starvation",
        ),
    ),
    record_options=("--sample-python", "--steps", "20:190"),
    look="lines --host --sort inclusive",
)
