# SPDX-License-Identifier: Apache-2.0
"""Run a program as a shell does: its output, its signals and its exit code are not changed."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable, Mapping

from profiling_lab.errors import LabError

_SCRIPTS = (".py", ".pyw", ".pyc", ".pyz")
_FROM_THE_TERMINAL = (signal.SIGINT, signal.SIGQUIT)
_PASSED_ON = (*_FROM_THE_TERMINAL, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def find_program(name: str) -> str | None:
    """The executable with this name. None if `name` is a Python script or does not exist.

    A file in the working folder comes before a program on PATH. It is a program if it is executable and has a
    `#!` line or the format of an executable.
    """
    if os.path.isfile(name):
        return None if name.endswith(_SCRIPTS) or not _is_executable(name) else os.path.abspath(name)
    if os.path.isfile(os.path.join(name, "__main__.py")):
        return None
    return shutil.which(name) if os.path.basename(name) == name else None


def _is_executable(path: str) -> bool:
    if not os.access(path, os.X_OK):
        return False
    try:
        with open(path, "rb") as file:
            return file.read(4).startswith((b"#!", b"\x7fELF"))
    except OSError:  # executable, but not readable
        return True


def run_program(
    program: str,
    command: list[str],
    environment: Mapping[str, str],
    takes_signal: Callable[[int], bool] = lambda number: False,
    *,
    stdout: int | None = None,
) -> tuple[int, bool]:
    """The exit code, as a shell reports it, and whether Ctrl-C ended it. Raises LabError if it cannot start.

    Signals to this process are forwarded to the program, unless `takes_signal` handled them. Ctrl-C is not
    forwarded: the terminal sends it to both. stdout: the descriptor that the program writes to instead.
    """
    watched = {signal.SIGCHLD, *_PASSED_ON}
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if it were ignored, waitpid could not report the exit
    before = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    try:
        sys.stdout.flush()
        try:
            child = os.posix_spawn(
                program,
                command,
                environment,
                file_actions=() if stdout is None else ((os.POSIX_SPAWN_DUP2, stdout, 1),),
                setsigmask=before,
                setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],  # which Python ignores
            )
        except OSError as error:
            raise LabError(f"cannot start {program}: {error.strerror}") from None
        status = _watch(child, watched, takes_signal)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    code = os.waitstatus_to_exitcode(status)
    return (code, False) if code >= 0 else (128 - code, -code == signal.SIGINT)


def _watch(child: int, watched: set[signal.Signals], takes_signal: Callable[[int], bool]) -> int:
    while True:
        received = signal.sigwaitinfo(watched)
        number = received.si_signo
        if number == signal.SIGCHLD:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                return status
        elif number in _FROM_THE_TERMINAL and received.si_code > 0:
            pass  # sent by the kernel to the whole process group
        elif not takes_signal(number):
            os.kill(child, number)
