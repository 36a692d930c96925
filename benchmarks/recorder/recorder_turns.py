# SPDX-License-Identifier: Apache-2.0
"""Whole programs that are measured against each other at fine grain, by a socket that gives them turns."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from subprocess import Popen
from typing import TextIO


def take_turns(path: str, name: str, block: Callable[[], int]) -> None:
    """In a program: whenever it is `name`'s turn, run `block`, which returns nanoseconds; until the end."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        line = connection.makefile("rw", encoding="utf-8")
        print(name, file=line, flush=True)
        while line.readline().strip() == "go":
            print(block(), file=line, flush=True)


class Turns:
    """Programs that all run and wait, so that one after another can make a block of steps.

    A program's step wanders within seconds, and a process takes many to start: processes that run one after
    another differ by more than what is to be seen.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(path))
        self._socket.listen()
        self._lines: dict[str, TextIO] = {}

    def wait_for(
        self, names: Iterable[str], started: Mapping[str, Popen[bytes]], seconds: float = 120
    ) -> None:
        """Until all have connected. Ends this process with a sentence if one of them ends or time is up."""
        self._socket.settimeout(1)
        waiting = set(names)
        end = time.monotonic() + seconds
        while waiting:
            try:
                connection, _ = self._socket.accept()
            except TimeoutError:
                for name in waiting:
                    if (code := started[name].poll()) is not None:
                        raise SystemExit(f"{name} ended with {code} before its first turn") from None
                if time.monotonic() > end:
                    raise SystemExit(f"these did not begin: {', '.join(sorted(waiting))}") from None
                continue
            connection.settimeout(seconds)
            line = connection.makefile("rw", encoding="utf-8")
            name = line.readline().strip()
            self._lines[name] = line
            waiting.remove(name)

    def block(self, name: str) -> int:
        """Nanoseconds of a step of this program, just now."""
        print("go", file=self._lines[name], flush=True)
        return int(self._lines[name].readline())

    def end(self) -> None:
        for line in self._lines.values():
            line.close()
        self._socket.close()


def pin_threads() -> None:
    """One core, and no neighbour on it, for the main thread and for autograd's first; the rest elsewhere."""
    cores = whole_cores(os.sched_getaffinity(0))
    if len(cores) < 4:
        return
    rest = {cpu for core in cores[2:] for cpu in core}
    for task in Path("/proc/self/task").iterdir():
        name = (task / "comm").read_text().strip()
        main, autograd = int(task.name) == os.getpid(), name == "pt_autograd_0"
        os.sched_setaffinity(int(task.name), {cores[0][0]} if main else {cores[1][0]} if autograd else rest)


def whole_cores(allowed: set[int]) -> list[list[int]]:
    """The allowed processors, those of one core together, the first core (interrupts) last."""
    cores: dict[str, list[int]] = {}
    for cpu in sorted(allowed):
        siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        cores.setdefault(siblings.read_text() if siblings.exists() else str(cpu), []).append(cpu)
    ordered = list(cores.values())
    return ordered[1:] + ordered[:1]
