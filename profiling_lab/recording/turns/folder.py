# SPDX-License-Identifier: Apache-2.0
"""The folder that keeps the runs of both sides, so that an interrupted comparison can go on."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from profiling_lab.errors import NotEnoughDataError, UnreadableInputError, UsageError

_LIST = "ab.json"
_SCHEMA = "profiling-lab-ab/1"


@dataclass(frozen=True, slots=True)
class Turn:
    """One run of one side; the first is number 1."""

    side: str
    """'a' or 'b'"""
    number: int

    @property
    def name(self) -> str:
        return f"{self.side.upper()}, run {self.number}"


@dataclass(frozen=True, slots=True)
class Run:
    """A run that ended well."""

    turn: Turn
    seconds: float
    files: tuple[str, ...]
    """its recordings, in the folder of the run: one for each process that used the GPU"""


def order(runs: int) -> list[Turn]:
    """A B, B A, A B ...: what drifts, such as the temperature of the GPU, falls on both sides alike."""
    pairs = (("a", "b") if i % 2 == 0 else ("b", "a") for i in range(runs))
    return [Turn(side, i) for i, pair in enumerate(pairs, 1) for side in pair]


class Folder:
    """Each run has a folder: its recordings, and what the program printed."""

    def __init__(self, path: Path, plan: dict[str, Any], runs: Sequence[Run]) -> None:
        self.path, self._plan, self._runs = path, plan, {run.turn: run for run in runs}

    @classmethod
    def begin(cls, path: Path, plan: dict[str, Any]) -> Folder:
        """Raises UsageError if there is something in the folder."""
        if path.exists() and not path.is_dir():
            raise UsageError(f"--keep expects a folder, and {path} is a file")
        if path.is_dir() and any(path.iterdir()):
            held = "holds a comparison" if (path / _LIST).is_file() else "is not empty"
            go_on = "; --continue goes on with it" if (path / _LIST).is_file() else ""
            raise UsageError(f"{path} {held}; choose another folder{go_on}")
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"cannot create {path}: {error.strerror}") from None
        folder = cls(path, plan, ())
        folder._write()
        return folder

    @classmethod
    def go_on(cls, path: Path, plan: dict[str, Any]) -> Folder:
        """Raises UsageError if another comparison was begun there, or none."""
        try:
            held = json.loads((path / _LIST).read_text())
            runs = [Run(Turn(**r["turn"]), r["seconds"], tuple(r["files"])) for r in held["runs"]]
            known = held["schema"] == _SCHEMA
        except FileNotFoundError:
            raise UsageError(f"--continue: {path} holds no comparison") from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UnreadableInputError(f"{path / _LIST} is damaged ({error}); begin again") from None
        if not known:
            raise UnreadableInputError(f"{path / _LIST} is of another version of profiling-lab; begin again")
        if held["plan"] != json.loads(json.dumps(plan)):
            other = next((key for key in plan if held["plan"].get(key) != plan[key]), "plan")
            raise UsageError(
                f"--continue: {path} holds another comparison, its {other} is {held['plan'].get(other)}"
            )
        whole = [run for run in runs if all((path / _run_folder(run.turn) / f).is_file() for f in run.files)]
        return cls(path, plan, whole)

    def __len__(self) -> int:
        return len(self._runs)

    def run(self, turn: Turn) -> Run | None:
        return self._runs.get(turn)

    def make_room(self, turn: Turn) -> Path:
        """An empty folder for a run. What is left of an earlier attempt is deleted."""
        shutil.rmtree(self.of(turn), ignore_errors=True)
        self.of(turn).mkdir()
        return self.of(turn)

    def add(self, turn: Turn, seconds: float) -> Run:
        """A run that ended well. Raises NotEnoughDataError if nothing was recorded."""
        files = tuple(sorted(file.name for file in self.of(turn).glob("*.sqlite")))
        if not files:
            raise NotEnoughDataError(
                f"{turn.name} recorded nothing: no Python process of it used the GPU ({self.of(turn)}/stderr)"
            )
        self._runs[turn] = Run(turn, seconds, files)
        self._write()
        return self._runs[turn]

    def of(self, turn: Turn) -> Path:
        return self.path / _run_folder(turn)

    def recording(self, turn: Turn) -> Path:
        """Where a run is recorded. Its processes may add their rank or a number to the name."""
        return self.of(turn) / f"{_run_folder(turn)}.sqlite"

    def one_file(self, turn: Turn) -> Path:
        """The recording of all processes of a run."""
        from profiling_lab.recording.merging.merge import merge

        run = self._runs[turn]
        if len(run.files) == 1:
            return self.of(turn) / run.files[0]
        whole = self.of(turn) / "merged" / f"{_run_folder(turn)}.sqlite"
        if not whole.is_file():
            whole.parent.mkdir(exist_ok=True)
            merge([self.of(turn) / file for file in run.files], whole)
        return whole

    def left_s(self, turns: Sequence[Turn]) -> float | None:
        """How long these runs will take, as far as those of the same side tell. None: there are none yet."""
        known = {side: [r.seconds for t, r in self._runs.items() if t.side == side] for side in "ab"}
        every = [*known["a"], *known["b"]]
        if not every:
            return None
        mean = {side: sum(each) / len(each) for side, each in ((s, known[s] or every) for s in "ab")}
        return sum(mean[turn.side] for turn in turns)

    def _write(self) -> None:
        runs = [asdict(run) for run in self._runs.values()]
        text = json.dumps({"schema": _SCHEMA, "plan": self._plan, "runs": runs}, indent=1)
        temporary = self.path / f"{_LIST}.tmp"
        temporary.write_text(text)
        os.replace(temporary, self.path / _LIST)


def _run_folder(turn: Turn) -> str:
    return f"{turn.side}{turn.number}"
