# SPDX-License-Identifier: Apache-2.0
"""What an exercise is, and what grading one says."""

from __future__ import annotations

import enum
import importlib.util
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from profiling_lab.exercises.answers import Answers


class Need(enum.Enum):
    """What a part of an exercise cannot do without."""

    GPU = "gpu"
    TWO_GPUS = "2 gpus"
    NSYS = "nsys"
    NCU = "ncu"

    def missing(self) -> str:
        """Why this machine does not have it; empty where it does. Asking about GPUs imports torch."""
        if self in (Need.NSYS, Need.NCU):
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
    """One folder of the catalogue. `grade(workspace, answers)` judges a learner's copy of that folder."""

    number: int
    slug: str
    title: str
    question: str
    needs: tuple[Need, ...]
    """What the whole exercise uses. Without it the rest still works, on the recorded trace where it needs
    one.
    """
    aliases: tuple[str, ...]
    """The paths under which the exercise was first asked for."""
    starter: tuple[str, ...]
    """The files that a learner gets."""
    grade: Callable[[Path, Answers], Verdict]
    mistakes: tuple[Mistake, ...] = field(default=())

    @property
    def folder(self) -> Path:
        """Where the exercise lives inside the package."""
        return Path(__file__).parent / self.package

    @property
    def package(self) -> str:
        return f"e{self.number:02d}_{self.slug.replace('-', '_')}"

    @property
    def names(self) -> tuple[str, ...]:
        """Everything that may follow `exercise start`."""
        return (self.slug, f"e{self.number:02d}", self.package, *self.aliases)
