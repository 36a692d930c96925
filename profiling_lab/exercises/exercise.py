# SPDX-License-Identifier: Apache-2.0
"""What an exercise is, and what grading one says."""

from __future__ import annotations

import enum
import importlib.util
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from profiling_lab.exercises.answers import Answers
from profiling_lab.exercises.entries import Entry


class Need(enum.Enum):
    """What a part of an exercise cannot do without."""

    GPU = "gpu"
    TWO_GPUS = "2 gpus"
    NSYS = "nsys"
    NCU = "ncu"
    NVCC = "nvcc"

    def missing(self) -> str:
        """Why this machine does not have it; empty where it does. Asking about GPUs imports torch."""
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


class Status(enum.Enum):
    """Not checked is its own answer: neither right nor wrong, and always with a reason."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_CHECKED = "not checked"


@dataclass(frozen=True, slots=True)
class Check:
    """One graded thing: what was looked at, how it came out, and a sentence for the learner."""

    name: str
    status: Status
    message: str


def passed(name: str, message: str) -> Check:
    return Check(name, Status.PASSED, message)


def failed(name: str, message: str) -> Check:
    return Check(name, Status.FAILED, message)


def not_checked(name: str, reason: str) -> Check:
    return Check(name, Status.NOT_CHECKED, reason)


@dataclass(frozen=True, slots=True)
class Verdict:
    """All checks of one grading, in the order of the exercise's steps."""

    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        """Nothing failed and something was checked."""
        found = {check.status for check in self.checks}
        return Status.FAILED not in found and Status.PASSED in found

    @property
    def failed(self) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if check.status is Status.FAILED)

    @property
    def not_checked(self) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if check.status is Status.NOT_CHECKED)


@dataclass(frozen=True, slots=True)
class Mistake:
    """A wrong answer that learners really give. The tests prove that grading rejects it, and where."""

    why: str
    answer: Mapping[str, object]
    """Answers that replace the right ones, by dotted key of answer.toml."""
    rejected_by: str
    """The name of the check that must fail."""


@dataclass(frozen=True, slots=True)
class Exercise:
    """One built exercise: its line of the catalogue, and how a learner's copy of its folder is judged."""

    entry: Entry
    question: str
    starter: tuple[str, ...]
    """The files that a learner gets."""
    findings: Callable[[Path, Answers], list[Check]]
    """Judges what the learner read from the recording that answer.toml names."""
    repair: Callable[[Path, Answers], list[Check]]
    """Judges the learner's changed program."""
    program: tuple[str, ...]
    """What is recorded: the script and its arguments."""
    recording: str
    """What an H200 gave, for learners without a GPU: a file of the folder."""
    rules: tuple[str, ...]
    """The rules of `check`, any of which names the planted cause on the starter's recording."""
    mistakes: tuple[Mistake, ...] = ()

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
        """What the whole exercise uses. Without it the rest still works, on the recorded trace where it
        needs one.
        """
        return tuple(map(Need, self.entry.needs))

    @property
    def folder(self) -> Path:
        return self.entry.folder

    def grade(self, workspace: Path, answers: Answers) -> Verdict:
        """Everything, in the order of the steps."""
        return Verdict((*self.findings(workspace, answers), *self.repair(workspace, answers)))
