# SPDX-License-Identifier: Apache-2.0
"""The declaration of an exercise, and the result of grading it."""

from __future__ import annotations

import enum
import importlib.util
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from profiling_lab.exercises.answers import Answers
from profiling_lab.exercises.entries import Entry


class Need(enum.Enum):
    """A requirement of a part of an exercise."""

    GPU = "gpu"
    TWO_GPUS = "2 gpus"
    NSYS = "nsys"
    NCU = "ncu"
    NVCC = "nvcc"
    JAX = "jax"

    def missing(self) -> str:
        """Why this machine does not have it; empty if it does. Asking about GPUs imports torch."""
        if self is Need.JAX:
            return "" if importlib.util.find_spec("jax") else "JAX is not installed (pip install jax)"
        if self in (Need.NSYS, Need.NCU, Need.NVCC):
            return "" if shutil.which(self.value) else f"{self.value} is not on the PATH"
        wanted = 2 if self is Need.TWO_GPUS else 1
        if importlib.util.find_spec("torch") is None:
            return "torch is not installed"
        import torch

        if torch.version.cuda is None:
            return f"torch {torch.__version__} is a CPU build"
        found: int = torch.cuda.device_count()
        return "" if found >= wanted else f"needs {wanted} NVIDIA GPU{'s'[: wanted - 1]}, found {found}"


class CheckStatus(enum.Enum):
    """The result of a check. NOT_CHECKED means neither right nor wrong, and always has a reason."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_CHECKED = "not checked"


@dataclass(frozen=True, slots=True)
class GradedCheck:
    """One graded item: its name, its status, and a sentence for the learner."""

    name: str
    status: CheckStatus
    message: str


def passed(name: str, message: str) -> GradedCheck:
    return GradedCheck(name, CheckStatus.PASSED, message)


def failed(name: str, message: str) -> GradedCheck:
    return GradedCheck(name, CheckStatus.FAILED, message)


def not_checked(name: str, reason: str) -> GradedCheck:
    return GradedCheck(name, CheckStatus.NOT_CHECKED, reason)


@dataclass(frozen=True, slots=True)
class Grading:
    """All checks of one grading, in the order of the exercise's steps."""

    checks: tuple[GradedCheck, ...]

    @property
    def passed(self) -> bool:
        """Nothing failed and something was checked."""
        found = {check.status for check in self.checks}
        return CheckStatus.FAILED not in found and CheckStatus.PASSED in found

    @property
    def failed(self) -> tuple[GradedCheck, ...]:
        return tuple(check for check in self.checks if check.status is CheckStatus.FAILED)

    @property
    def not_checked(self) -> tuple[GradedCheck, ...]:
        return tuple(check for check in self.checks if check.status is CheckStatus.NOT_CHECKED)


@dataclass(frozen=True, slots=True)
class Mistake:
    """A wrong answer that learners give. The tests verify that grading rejects it, and in which check."""

    why: str
    answer: Mapping[str, object]
    """Wrong answers that replace the right ones, by dotted key of answer.toml."""
    rejected_by: str
    """The name of the check that must fail."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Files of the solution that are replaced, with their text."""


@dataclass(frozen=True, slots=True)
class Exercise:
    """One exercise: its entry in the catalogue, and how a learner's copy of its folder is graded."""

    entry: Entry
    question: str
    starter: tuple[str, ...]
    """The files that a learner gets."""
    findings: Callable[[Path, Answers], list[GradedCheck]]
    """Grades the learner's answers about the recording named in answer.toml."""
    repair: Callable[[Path, Answers], list[GradedCheck]]
    """Grades the learner's changed program; without one there is nothing to check."""
    program: tuple[str, ...]
    """The script to record, with its arguments; empty: the exercise works on recordings that exist."""
    recording: str
    """A recording of ours, for learners without what it needs: a file in the folder, or of several ranks a
    folder with a file for each. Empty: it needs none."""
    rules: tuple[str, ...] = ()
    """The rules of `check` that find the planted cause in the starter's recording or report of ncu; one
    is enough. Empty: no cause is planted."""
    mistakes: tuple[Mistake, ...] = ()
    record_options: tuple[str, ...] = ()
    """Options of `record` for this program."""
    ranks: int = 1
    """The processes that torchrun starts of this program. Of several a recording is a new folder; a program
    that writes its traces itself gets its name as the last argument.
    """
    writes: str = ""
    """The trace that the program itself writes, for exercises without our recorder."""
    counters: tuple[str, ...] = ()
    """The hardware counters that ncu collects; with them `profile` runs ncu, and a recording is its CSV."""
    look: str = "lines"
    """The command that shows a recording of it first, of profiling-lab or `python ...`."""
    sources: tuple[str, ...] = ()
    """Programs in solutions/ that learners must not see before: the worked answer shows them in full."""

    @property
    def number(self) -> int:
        return self.entry.number

    @property
    def slug(self) -> str:
        return self.entry.slug

    @property
    def label(self) -> str:
        return self.entry.label

    @property
    def needs(self) -> tuple[Need, ...]:
        """The requirements of the whole exercise. Without them the rest still works with the recorded
        trace.
        """
        return tuple(map(Need, self.entry.needs))

    @property
    def folder(self) -> Path:
        return self.entry.folder

    def grade(self, workspace: Path, answers: Answers) -> Grading:
        """Grade everything, in the order of the steps."""
        return Grading((*self.findings(workspace, answers), *self.repair(workspace, answers)))
