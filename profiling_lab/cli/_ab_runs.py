# SPDX-License-Identifier: Apache-2.0
"""The runs of `profiling-lab ab`: what is said meanwhile, and what is left when one fails or is stopped."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from profiling_lab.analysis.diff.measure import Capture, measure
from profiling_lab.analysis.diff.outputs import Output
from profiling_lab.analysis.own_files import check_own
from profiling_lab.cli._ab_sides import Program, Sides, check_exists
from profiling_lab.errors import LabError, NotEnoughDataError
from profiling_lab.recording.turns.checkout import Checkout, checked_out
from profiling_lab.recording.turns.folder import Folder, Turn, order
from profiling_lab.recording.turns.process import Ended, Place, Stopped, run_recorded, stoppable
from profiling_lab.trace import Trace

if TYPE_CHECKING:
    from typing import Any

SAYS = "profiling-lab: "
_LAST_LINES = 30
"""of a program that failed"""


class Recorded:
    """All runs of both sides."""

    def __init__(self, args: argparse.Namespace, folder: Folder, commit: str) -> None:
        self.commit = commit
        self.notes: list[str] = []
        self._args, self.folder = args, folder
        self._known: dict[tuple[Turn, bool], Capture] = {}
        self.turns = order(args.runs)

    def capture(self, turn: Turn, whole: bool) -> Capture:
        """Raises NotEnoughDataError if the run did nothing on a GPU."""
        if (turn, whole) not in self._known:
            own, steps_by = tuple(self._args.own), None if whole else self._args.steps_by
            with Trace.open(self.folder.one_file(turn)) as trace:
                self._known[turn, whole] = measure(trace, own, steps_by, whole=whole)
        return self._known[turn, whole]

    def captures(self, side: str, whole: bool) -> list[Capture]:
        return [self.capture(turn, whole) for turn in self._of(side)]

    def outputs(self, side: str) -> list[Output]:
        return [Output(turn.name, *_printed(self.folder.of(turn))) for turn in self._of(side)]

    def seconds(self, side: str) -> tuple[float, ...]:
        runs = (self.folder.run(turn) for turn in self._of(side))
        return tuple(round(run.seconds, 3) for run in runs if run is not None)

    def check_own(self) -> None:
        """Raises UsageError if --own names no file of either side."""
        if self._args.own:
            with ExitStack() as opened:
                files = [self.folder.one_file(turn) for turn in self.turns[:2]]
                check_own(self._args.own, [opened.enter_context(Trace.open(file)) for file in files])

    def _of(self, side: str) -> list[Turn]:
        return [turn for turn in self.turns if turn.side == side]


@contextmanager
def recorded_in_turns(args: argparse.Namespace, sides: Sides) -> Iterator[Recorded]:
    """Record what is missing. Without --keep the recordings are deleted after this context, unless something
    failed: then they stay, and the user is told where.

    Raises LabError if B fails, NotEnoughDataError if A does, Stopped after a signal.
    """
    here = Path.cwd()
    with stoppable(), ExitStack() as stack:
        checkout = stack.enter_context(checked_out(args.git, here, args.link)) if args.git else None
        places = {"a": Place(here, os.environ), "b": Place(here, os.environ)}
        programs = {"a": sides.a, "b": sides.b}
        if checkout is not None:
            places["a"] = checkout.place(here, os.environ)
            programs["a"] = sides.a.with_script(checkout.moved(sides.a.script))
        for side, program in programs.items():
            check_exists(program, str(places[side].folder), side.upper())
        folder = _folder(args, _plan(sides, here, checkout))
        recorded = Recorded(args, folder, checkout.name if checkout is not None else "")
        try:
            _record(args, recorded, sides.options, programs, places, checkout)
            yield recorded
        except BaseException as error:
            _say_what_is_left(args, recorded, error)
            raise
        if not args.keep:
            shutil.rmtree(folder.path, ignore_errors=True)


def _plan(sides: Sides, here: Path, checkout: Checkout | None) -> dict[str, Any]:
    """What a comparison must have in common with an earlier one that it continues."""
    commit = checkout.commit if checkout is not None else ""
    return {
        "A": list(sides.a.words), "B": list(sides.b.words), "commit": commit, "folder": str(here),
        "options of record": list(sides.options),
    }  # fmt: skip


def _folder(args: argparse.Namespace, plan: dict[str, Any]) -> Folder:
    # Absolute: a program of another commit runs in another folder.
    path = Path(args.keep or tempfile.mkdtemp(prefix="profiling-lab-ab-")).absolute()
    return Folder.go_on(path, plan) if args.go_on else Folder.begin(path, plan)


def _record(
    args: argparse.Namespace,
    recorded: Recorded,
    options: tuple[str, ...],
    programs: dict[str, Program],
    places: dict[str, Place],
    checkout: Checkout | None,
) -> None:
    folder, turns = recorded.folder, recorded.turns
    if have := sum(folder.run(turn) is not None for turn in turns):
        _say(f"{have} of {len(turns)} runs are in {folder.path} already, of the programs as they were then")
    for i, turn in enumerate(turns):
        if folder.run(turn) is None:
            left_s = folder.left_s([each for each in turns if folder.run(each) is None])
            left = f"; about {_duration(left_s)} left" if left_s is not None else ""
            _say(f"recording {i + 1} of {len(turns)}: {turn.name}{left}")
            where = folder.make_room(turn)
            ended = run_recorded(
                [*options, "-o", str(folder.recording(turn)), *programs[turn.side].words],
                places[turn.side],
                where / "stdout",
                where / "stderr",
            )
            if ended.exit_code:
                raise _failed(turn, ended, where, checkout)
            folder.add(turn, ended.seconds)
        _check(recorded, turn, args.whole, checkout)
        if i == 1:
            recorded.check_own()


def _check(recorded: Recorded, turn: Turn, whole: bool, checkout: Checkout | None) -> None:
    """What would make all further runs useless is said after the first."""
    try:
        capture = recorded.capture(turn, whole)
    except NotEnoughDataError as error:
        raise NotEnoughDataError(f"{turn.name}: {error}") from None
    if checkout is not None and turn == Turn("a", 1):
        files = sorted({place.file for place, _ in capture.places if place.file})
        if strays := checkout.strays(files):
            raise NotEnoughDataError(
                f"A ran {strays[0]} of the working tree, not of {checkout.name}: an absolute path, or a "
                "package that is installed from the working tree (pip install -e)"
            )


def _failed(turn: Turn, ended: Ended, where: Path, checkout: Checkout | None) -> LabError:
    """Show what the program printed last, and say how it ended."""
    stdout, stderr = ((where / name).read_text(errors="replace") for name in ("stdout", "stderr"))
    lines = (stderr or stdout).splitlines()
    for line in lines[-_LAST_LINES:]:
        print(line, file=sys.stderr)
    names = {each.value: each.name for each in signal.Signals}
    # A program that `record` launched ends as a shell reports it: 128 + the number of the signal.
    number = -ended.exit_code if ended.exit_code < 0 else ended.exit_code - 128
    how = f"was killed by {names[number]}" if number in names else f"failed with exit code {ended.exit_code}"
    spool = next(iter(where.glob("*.spool")), None)
    kept = f"; profiling-lab recover {spool} reads what was captured" if spool is not None else ""
    if turn.side == "b":
        return LabError(f"{turn.name} {how}, and A did not{kept}")
    lacks = "; files that git does not track are missing there, --link adds them" if checkout else ""
    at = f" at {checkout.name}" if checkout is not None else ""
    return NotEnoughDataError(f"{turn.name}{at} {how}{kept}{lacks}")


def _say_what_is_left(args: argparse.Namespace, recorded: Recorded, error: BaseException) -> None:
    folder, total = recorded.folder, len(recorded.turns)
    if isinstance(error, Stopped):
        _say(f"stopped by {signal.Signals(error.number).name}")
    if not any(folder.path.glob("*/*")):  # nothing ran
        if not args.keep:
            shutil.rmtree(folder.path, ignore_errors=True)
        return
    go_on = f"the same command with --keep {folder.path} --continue goes on"
    _say(f"{len(folder)} of {total} recordings, and all outputs, are in {folder.path}; {go_on}")


def _printed(folder: Path) -> tuple[str, str]:
    """The program's standard output, and its standard error without what we said there."""
    out, err = ((folder / name).read_text(errors="replace") for name in ("stdout", "stderr"))
    return out, "".join(line for line in err.splitlines(keepends=True) if not line.startswith(SAYS))


def _duration(seconds: float) -> str:
    whole = max(round(seconds), 1)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def _say(line: str) -> None:
    print(f"{SAYS}{line}", file=sys.stderr, flush=True)
