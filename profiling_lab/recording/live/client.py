# SPDX-License-Identifier: Apache-2.0
"""Asks a live process for a recording, and makes the file from what the process captured."""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from profiling_lab.errors import LabError, NotEnoughDataError, UsageError
from profiling_lab.recording.live import control_socket
from profiling_lab.recording.live.request import Request
from profiling_lab.recording.summary import RecordingSummary, summarize

_SECONDS_FOR_AN_ANSWER = 30.0


class LiveProcess:
    """A connection to one process that listens. Raises UsageError, LabError where there is none."""

    def __init__(self, process: int) -> None:
        self.process = process
        self._socket = control_socket.connect(process)
        self._watched = select.poll()
        self._watched.register(self._socket, select.POLLIN)
        self._death = -1
        # A fork that the program made in C keeps its end of the socket open: ask the kernel, too.
        with contextlib.suppress(OSError, AttributeError):
            self._death = os.pidfd_open(process)
            self._watched.register(self._death, select.POLLIN)

    def __enter__(self) -> LiveProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        if self._death >= 0:
            os.close(self._death)

    def status(self) -> dict[str, Any]:
        """What the process says about itself."""
        return self._ask({"do": "status"})

    def detach(self) -> dict[str, Any]:
        """End the window, whoever asked for it. Raises UsageError if there is none."""
        return self._ask({"do": "detach"})

    def attach(self, request: Request) -> dict[str, Any]:
        """Ask for a window; the answer says where its capture is."""
        return self._ask({"do": "attach", **request.as_message()})

    def let_go(self) -> None:
        """End the own window; next_event() tells when that is done."""
        with contextlib.suppress(OSError):
            control_socket.send(self._socket, {"do": "detach"})

    def ask_status(self) -> None:
        """next_event() brings the answer, between others."""
        with contextlib.suppress(OSError):
            control_socket.send(self._socket, {"do": "status"})

    def next_event(self, seconds: float | None) -> dict[str, Any] | None:
        """The next thing that the process tells, {} if it is silent for so long; None: it is gone."""
        ready = self._watched.poll(None if seconds is None else max(0, seconds) * 1000)
        if not ready:
            return {}
        if all(number == self._death for number, _ in ready):
            self._socket.setblocking(False)
        try:
            return control_socket.receive(self._socket)
        except BlockingIOError:
            return None  # dead, and there is nothing more to read
        except (OSError, ValueError) as error:
            raise LabError(
                f"process {self.process} answers what this version does not know: {error}"
            ) from None

    def _ask(self, message: dict[str, Any]) -> dict[str, Any]:
        gone = f"process {self.process} ended before it answered"
        try:
            control_socket.send(self._socket, message)
        except OSError:
            raise LabError(gone) from None
        ends = time.monotonic() + _SECONDS_FOR_AN_ANSWER
        answer = self.next_event(_SECONDS_FOR_AN_ANSWER)
        while answer is not None and answer.get("event") in _STORIES:
            answer = self.next_event(ends - time.monotonic())
        if answer is None:
            raise LabError(gone)
        if not answer:
            raise LabError(
                f"process {self.process} does not answer for {_SECONDS_FOR_AN_ANSWER:.0f} s: it is "
                "stopped, or in a long call that keeps Python's lock"
            )
        if answer.get("event") == "refused":
            kinds = {2: UsageError, 3: NotEnoughDataError}
            raise kinds.get(answer.get("exit_code", 1), LabError)(str(answer.get("why")))
        return answer


_STORIES = ("waiting", "warming up", "recording")  # told as they happen, and no answers


def live_processes(user: int) -> Iterator[tuple[int, dict[str, Any] | str]]:
    """Each process of this user that listens, with its status or why that is not known."""
    for process in control_socket.processes(user):
        try:
            with LiveProcess(process) as live:
                yield process, live.status()
        except UsageError:
            continue  # a socket that a dead process left
        except LabError as error:
            yield process, str(error)


def write_file(spool: Path, output: Path, finished: dict[str, Any]) -> RecordingSummary:
    """Make the file of a window that ended well; the capture is removed.

    Raises NotEnoughDataError if no window had begun, LabError if the file cannot be written.
    """
    from profiling_lab.recording.convert import convert

    meta: dict[str, str] = finished["meta"]
    if not finished["windows"]:
        with contextlib.suppress(OSError):
            spool.unlink()
        steps = finished["steps"]
        raise NotEnoughDataError(
            f"nothing was recorded: {finished['why'] or 'it ended'} before a window began; "
            f"{steps} {'step' if steps == 1 else 'steps'} ended meanwhile"
        )
    done = convert(spool, output, meta)
    with contextlib.suppress(OSError):
        spool.unlink()
    reasons = finished["reasons"] | ({"capture": done.unreadable} if done.unreadable else {})
    return summarize(output, done.meta, reasons, finished["seconds"])


def recover(spool: Path, output: Path) -> dict[str, int]:
    """Make a file of what a process captured that is gone; the capture stays. Returns its tables' rows."""
    from profiling_lab.recording.convert import convert

    if not spool.is_file():
        raise LabError(f"there is no capture {spool}: nothing was recorded")
    return convert(spool, output).rows
