# SPDX-License-Identifier: Apache-2.0
"""How far a learner is: one small file in the folder that holds the learner's copies.

The file is found from any folder below. From anywhere else the folder is known too: where it is stands in the
user's state folder. Losing either loses no work: the copies themselves hold the answers.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from profiling_lab.errors import UnreadableInputError, UsageError
from profiling_lab.exercises import answers
from profiling_lab.exercises.entries import entry

FILE = ".profiling-lab-progress.json"


@dataclass
class Copy:
    """One exercise that was started."""

    folder: str
    """relative to the learner's folder, where it lies below"""
    hints: int = 0
    checks: int = 0
    passed: bool = False

    @property
    def state(self) -> str:
        return "passed" if self.passed else f"checked {self.checks} times" if self.checks else "started"


@dataclass
class Progress:
    """The learner's folder, and every exercise that was started there, by slug."""

    home: Path
    copies: dict[str, Copy] = field(default_factory=dict)
    last: str = ""

    def folder_of(self, slug: str) -> Path:
        return self.home / self.copies[slug].folder

    def started(self, slug: str, folder: Path) -> None:
        self.copies[slug] = Copy(os.path.relpath(folder.resolve(), self.home))
        self.last = slug

    def save(self) -> None:
        """A folder that cannot be written costs the learner nothing but the state shown by `list`."""
        text = json.dumps(
            {"last": self.last, "copies": {k: asdict(v) for k, v in self.copies.items()}}, indent=1
        )
        with contextlib.suppress(OSError, RuntimeError):
            temporary = self.home / f"{FILE}.{os.getpid()}"
            temporary.write_text(text)
            temporary.replace(self.home / FILE)
            pointer = _pointer()
            pointer.parent.mkdir(parents=True, exist_ok=True)
            pointer.write_text(str(self.home))


def load(start: Path | None = None) -> Progress:
    """From `start` (the current folder) upwards, else from where the learner last worked, else new there."""
    here = (start or Path.cwd()).resolve()
    remembered = []
    with contextlib.suppress(OSError, RuntimeError):  # no home folder
        remembered = [Path(_pointer().read_text())]
    for home in (here, *here.parents, *remembered):
        with contextlib.suppress(OSError):  # a folder that cannot be looked into
            if (home / FILE).is_file():
                return _read(home)
    return Progress(here)


def copy_for(name: str | None) -> Path:
    """The learner's copy that is meant: a folder, an exercise that was started, or, without a name, the one
    around the current folder or the last one started. Raises UsageError where there is none.
    """
    if name is not None and (Path(name) / answers.FILE).is_file():
        return Path(name)
    progress = load()
    if name is None:
        here = Path.cwd()
        for folder in (here, *here.parents):
            if (folder / answers.FILE).is_file():
                return folder
        if progress.last and progress.folder_of(progress.last).is_dir():
            return progress.folder_of(progress.last)
        raise UnreadableInputError(
            f"there is no {answers.FILE} here and no exercise was started yet: run "
            "`profiling-lab exercise start NAME`"
        )
    if Path(name).is_dir() and ("/" in name or name in (".", "..")):
        raise UnreadableInputError(
            f"there is no {answers.FILE} in {name}: run this in a folder made by "
            "`profiling-lab exercise start`"
        )
    slug = entry(name).slug
    if slug in progress.copies and progress.folder_of(slug).is_dir():
        return progress.folder_of(slug)
    raise UsageError(
        f"you have no copy of {entry(name).label} in {progress.home}: run "
        f"`profiling-lab exercise start {slug}`"
    )


def note(folder: Path, slug: str, **changes: Any) -> None:
    """Write down what happened with the copy in `folder`, for `list` and `next`."""
    progress = load(folder.resolve().parent)
    if slug not in progress.copies or progress.folder_of(slug).resolve() != folder.resolve():
        progress.started(slug, folder)
    copy = progress.copies[slug]
    for name, value in changes.items():
        setattr(copy, name, value)
    progress.last = slug
    progress.save()


def _read(home: Path) -> Progress:
    """A damaged file counts as none: it holds nothing that the copies do not."""
    try:
        data = json.loads((home / FILE).read_text())
        return Progress(home, {slug: Copy(**copy) for slug, copy in data["copies"].items()}, data["last"])
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return Progress(home)


def _pointer() -> Path:
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "profiling-lab" / "learner"
