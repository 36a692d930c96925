# SPDX-License-Identifier: Apache-2.0
"""Processes that read files: each gets one function call after the other on its standard input.

multiprocessing would import the program's main module in each of them: a script that calls `ranks` without a
guard would run again there. These processes import this package alone.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from threading import local
from typing import IO, Any

_START = "import sys; sys.path[:] = {path!r}; from profiling_lab.analysis.ranks.worker import serve; serve()"


class WorkerDied(Exception):
    """The process ended before it answered."""


def serve() -> None:
    """Answer calls until there are no more. What functions print goes to standard error."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    while True:
        try:
            function, arguments = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            answer: tuple[bool, Any] = (True, function(*arguments))
        except Exception as error:
            answer = (False, error)
        pickle.dump(answer, answers)
        answers.flush()


class _Worker:
    def __init__(self) -> None:
        start = _START.format(path=sys.path)
        self._process = subprocess.Popen(
            [sys.executable, "-c", start], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def call(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        """Raises what the function raises, and WorkerDied."""
        to, answers = self._process.stdin, self._process.stdout
        assert to is not None and answers is not None
        try:
            _send(to, (function, arguments))
            done, value = pickle.load(answers)
        except (EOFError, OSError, pickle.UnpicklingError):
            self.close()
            raise WorkerDied from None
        if not done:
            raise value
        return value

    def close(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):  # what was not sent to a process that is gone
                    pipe.close()
        self._process.wait()


def _send(to: IO[bytes], what: Any) -> None:
    pickle.dump(what, to)
    to.flush()


def in_processes(
    function: Callable[..., Any],
    calls: Sequence[tuple[Any, ...]],
    jobs: int,
    done: Callable[[int], None] = lambda _: None,
) -> list[Any]:
    """function(*arguments) for each of `calls`, in as many processes: values in order, WorkerDied where the
    process died. Raises what a function raises.
    """
    own, workers = local(), []

    def one(arguments: tuple[Any, ...]) -> Any:
        if not hasattr(own, "worker"):
            own.worker = _Worker()
            workers.append(own.worker)
        try:
            return own.worker.call(function, arguments)
        except WorkerDied as died:
            del own.worker
            return died

    executor = ThreadPoolExecutor(min(jobs, max(len(calls), 1)))
    try:
        futures = [executor.submit(one, arguments) for arguments in calls]
        for count, future in enumerate(as_completed(futures), 1):
            future.result()
            done(count)
        return [future.result() for future in futures]
    finally:
        executor.shutdown(wait=True, cancel_futures=True)
        for worker in workers:
            worker.close()
