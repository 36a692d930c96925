# SPDX-License-Identifier: Apache-2.0
"""The client side of attach: request a recording from a live process, and convert its capture."""

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
    """A connection to a listening process. Raises UsageError or LabError if there is none."""

    def __init__(self, process: int) -> None:
        self.process = process
        self._socket = control_socket.connect(process)
        self._watched = select.poll()
        self._watched.register(self._socket, select.POLLIN)
        self._death = -1
        # A fork made in C keeps its end of the socket open, so the kernel is asked too.
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
        """The status of the process."""
        return self._ask({"do": "status"})

    def detach(self) -> dict[str, Any]:
        """End the window, also one requested by another client. Raises UsageError if there is none."""
        return self._ask({"do": "detach"})

    def attach(self, request: Request) -> dict[str, Any]:
        """Request a window; the answer contains the path of its capture."""
        return self._ask({"do": "attach", **request.as_message()})

    def let_go(self) -> None:
        """End our own window; next_event() reports when that is done."""
        with contextlib.suppress(OSError):
            control_socket.send(self._socket, {"do": "detach"})

    def ask_status(self) -> None:
        """Request the status; next_event() returns the answer among other events."""
        with contextlib.suppress(OSError):
            control_socket.send(self._socket, {"do": "status"})

    def next_event(self, seconds: float | None) -> dict[str, Any] | None:
        """The next event of the process, {} after a timeout; None: the process is gone."""
        ready = self._watched.poll(None if seconds is None else max(0, seconds) * 1000)
        if not ready:
            return {}
        if all(number == self._death for number, _ in ready):
            self._socket.setblocking(False)
        try:
            return control_socket.receive(self._socket)
        except BlockingIOError:
            return None  # the process has ended, and there is nothing more to read
        except (OSError, ValueError) as error:
            raise LabError(
                f"process {self.process} sent an answer that this version does not understand: {error}"
            ) from None

    def _ask(self, message: dict[str, Any]) -> dict[str, Any]:
        gone = f"process {self.process} ended before it answered"
        try:
            control_socket.send(self._socket, message)
        except OSError:
            raise LabError(gone) from None
        ends = time.monotonic() + _SECONDS_FOR_AN_ANSWER
        answer = self.next_event(_SECONDS_FOR_AN_ANSWER)
        while answer is not None and answer.get("event") in _PROGRESS_EVENTS:
            answer = self.next_event(ends - time.monotonic())
        if answer is None:
            raise LabError(gone)
        if not answer:
            raise LabError(
                f"process {self.process} has not answered for {_SECONDS_FOR_AN_ANSWER:.0f} s: it is "
                "stopped, or in a long call that holds the GIL"
            )
        if answer.get("event") == "refused":
            kinds = {2: UsageError, 3: NotEnoughDataError}
            raise kinds.get(answer.get("exit_code", 1), LabError)(str(answer.get("why")))
        return answer


_PROGRESS_EVENTS = ("waiting", "warming up", "recording")  # sent as they happen; they are not answers


def live_processes(user: int) -> Iterator[tuple[int, dict[str, Any] | str]]:
    """Each listening process of this user, with its status, or the reason why that is not known."""
    for process in control_socket.processes(user):
        try:
            with LiveProcess(process) as live:
                yield process, live.status()
        except UsageError:
            continue  # the socket of a dead process
        except LabError as error:
            yield process, str(error)


def write_file(spool: Path, output: Path, finished: dict[str, Any]) -> RecordingSummary:
    """Write the file of a finished window and remove the capture.

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
    """Write a file from the capture of a process that is gone; the capture stays. Returns rows per table."""
    from profiling_lab.recording.convert import convert

    if not spool.is_file():
        raise LabError(f"there is no capture {spool}: nothing was recorded")
    return convert(spool, output).rows
