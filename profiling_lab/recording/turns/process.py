# SPDX-License-Identifier: Apache-2.0
"""One recorded run of a program in processes of its own, its output in files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import profiling_lab

_ROOT = str(Path(profiling_lab.__file__).resolve().parents[1])

# `python -m profiling_lab`, but the folder of the program cannot bring a profiling_lab of its own, and ours
# is found where only the calling process can find it. The program's search path is the one it has without us.
_START = """\
import sys
kept = sys.path[:]
sys.path[:] = [*(path for path in kept if path), sys.argv.pop(1)]
from profiling_lab.cli import main
sys.path[:] = kept
sys.exit(main())
"""


class Stopped(BaseException):
    """A signal asked this process to end; the program has ended."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@dataclass(frozen=True, slots=True)
class Place:
    """Where a program runs."""

    folder: Path
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Ended:
    exit_code: int
    """negative: the signal that ended it"""
    seconds: float


def run_recorded(arguments: Sequence[str], place: Place, stdout: Path, stderr: Path) -> Ended:
    """Run `profiling-lab record` with these arguments, in a session of its own, without standard input.

    A signal to this process goes to `record`, once, which ends the program and finishes its file; a second
    one kills all of them. Raises Stopped when they have ended.
    """
    began = time.monotonic()
    with open(stdout, "wb") as out, open(stderr, "wb") as err, _Signals() as signals:
        child = subprocess.Popen(
            [sys.executable, "-c", _START, _ROOT, "record", *arguments],
            cwd=place.folder,
            env=place.environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,  # a Ctrl-C in the terminal reaches this process alone
        )
        signals.go_to(child)
        code = child.wait()
    if signals.received:
        raise Stopped(signals.received[0])
    return Ended(code, time.monotonic() - began)


@contextmanager
def stoppable() -> Iterator[None]:
    """Signals that end a process raise Stopped in this context, so that it can clean up."""

    def stop(number: int, _: FrameType | None) -> None:
        raise Stopped(number)

    before = _handled(stop)
    try:
        yield
    finally:
        _put_back(before)


def _handled(handler: Callable[[int, FrameType | None], None]) -> dict[int, Any]:
    """What is ignored, as under nohup, stays ignored, here and in the child. Returns what there was."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    mine = [number for number in numbers if signal.getsignal(number) != signal.SIG_IGN]
    return {number: signal.signal(number, handler) for number in mine}


def _put_back(handlers: dict[int, Any]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, handler)


class _Signals:
    """While in this context, signals that end a process go to the child instead."""

    def __init__(self) -> None:
        self.received: list[int] = []
        self._child: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> _Signals:
        self._before = _handled(self._receive)
        return self

    def __exit__(self, *_: object) -> None:
        _put_back(self._before)

    def go_to(self, child: subprocess.Popen[bytes]) -> None:
        self._child = child
        if self.received:  # before there was a child
            child.send_signal(self.received[0])

    def _receive(self, number: int, _: FrameType | None) -> None:
        self.received.append(number)
        if self._child is None:
            return
        if len(self.received) == 1:
            self._child.send_signal(number)
        else:
            with suppress(ProcessLookupError):
                os.killpg(self._child.pid, signal.SIGKILL)
