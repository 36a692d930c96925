# SPDX-License-Identifier: Apache-2.0
"""The learner's progress: one small file in the folder that contains the learner's copies.

The file is found from any folder below. From elsewhere it is found through a pointer file in the user's state
folder. Losing either file loses no work, because the copies contain the answers.
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
class StartedExercise:
    """One exercise that was started."""

    folder: str
    """relative to the learner's folder if it is inside"""
    hints: int = 0
    checks: int = 0
    passed: bool = False

    @property
    def state(self) -> str:
        checked = "checked once" if self.checks == 1 else f"checked {self.checks} times"
        return "passed" if self.passed else checked if self.checks else "started"


@dataclass
class Progress:
    """The learner's folder, and the exercises started there, by slug."""

    home: Path
    copies: dict[str, StartedExercise] = field(default_factory=dict)
    last: str = ""

    def folder_of(self, slug: str) -> Path:
        return self.home / self.copies[slug].folder

    def started(self, slug: str, folder: Path) -> None:
        self.copies[slug] = StartedExercise(os.path.relpath(folder.resolve(), self.home))
        self.last = slug

    def save(self) -> None:
        """Write the file. If the folder is not writable, only the state shown by `list` is lost."""
        text = json.dumps(
            {"last": self.last, "copies": {k: asdict(v) for k, v in self.copies.items()}}, indent=1
        )
        with contextlib.suppress(OSError, RuntimeError):
            temporary = self.home / f"{FILE}.{os.getpid()}"
            temporary.write_text(text, encoding="utf-8")
            temporary.replace(self.home / FILE)
            pointer = _pointer()
            pointer.parent.mkdir(parents=True, exist_ok=True)
            pointer.write_bytes(os.fsencode(self.home))


def load(start: Path | None = None) -> Progress:
    """Search from `start` (the current folder) upwards, then in the last used folder, else start anew."""
    here = (start or Path.cwd()).resolve()
    for home in (here, *here.parents):
        with contextlib.suppress(OSError):  # a folder without read permission
            if (home / FILE).is_file():
                return _read(home)
    return next(iter(_remembered()), Progress(here))


def copy_for(name: str | None) -> Path:
    """The learner's copy: `name` is a folder or a started exercise; without a name it is the copy
    around the current folder, or the last one started. Raises UsageError if there is none.
    """
    if name is not None and Path(name).name == answers.FILE:
        name = str(Path(name).parent)
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
    for known in (progress, *_remembered()):
        if slug in known.copies and known.folder_of(slug).is_dir():
            return known.folder_of(slug)
    raise UsageError(
        f"you have no copy of {entry(name).label} in {progress.home}: run "
        f"`profiling-lab exercise start {slug}`"
    )


def note(folder: Path, slug: str, **changes: Any) -> None:
    """Save the state of the copy in `folder`, for `list` and `next`."""
    progress = load(folder.resolve().parent)
    if slug not in progress.copies or progress.folder_of(slug).resolve() != folder.resolve():
        progress.started(slug, folder)
    copy = progress.copies[slug]
    for name, value in changes.items():
        setattr(copy, name, value)
    progress.last = slug
    progress.save()


def _remembered() -> list[Progress]:
    """The folder used last, which may be elsewhere."""
    with contextlib.suppress(OSError, RuntimeError):  # no home folder
        home = Path(os.fsdecode(_pointer().read_bytes()))
        if (home / FILE).is_file():
            return [_read(home)]
    return []


def _read(home: Path) -> Progress:
    """Read the file. A damaged file is ignored."""
    try:
        data = json.loads((home / FILE).read_text(encoding="utf-8"))
        return Progress(
            home, {slug: StartedExercise(**copy) for slug, copy in data["copies"].items()}, data["last"]
        )
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return Progress(home)


def _pointer() -> Path:
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "profiling-lab" / "learner"
