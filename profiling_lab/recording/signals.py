# SPDX-License-Identifier: Apache-2.0
"""The signal that opens and closes the windows of a recording."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator

from profiling_lab.errors import UsageError

# Ctrl-C must go on to end the script, and a fault that a handler returns from happens again for ever.
_NOT_TO_BE_HANDLED = ("SIGKILL", "SIGSTOP", "SIGINT", "SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT")


# Faults belong to the thread that made them.
_FAULTS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP, signal.SIGSYS}


@contextlib.contextmanager
def blocked() -> Iterator[None]:
    """Threads that are started in this block get no signals: they are the program's, which may block them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - _FAULTS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def signal_number(name: str) -> signal.Signals:
    """The signal of this name (USR1, SIGUSR1). Raises UsageError if no program can do without it."""
    full = name.upper() if name.upper().startswith("SIG") else f"SIG{name.upper()}"
    number = getattr(signal, full, None)
    if not isinstance(number, signal.Signals) or number.name in _NOT_TO_BE_HANDLED:
        raise UsageError(
            f"{name!r} is no signal that opens and closes windows; USR1 and USR2 are free to use"
        )
    return number


def check_thread() -> None:
    """Raises UsageError on a thread that cannot handle signals."""
    if threading.current_thread() is not threading.main_thread():
        raise UsageError("signals can be handled by the main thread alone; record from there")


def on_signal(name: str, action: Callable[[], None]) -> Callable[[], None]:
    """Call `action` on every signal of this name. Returns how to give that up.

    Raises UsageError as `signal_number` and `check_thread`.
    """
    check_thread()
    number = signal_number(name)

    def handle(*_: object) -> None:
        action()

    before = signal.signal(number, handle)

    def give_up() -> None:
        if signal.getsignal(number) is handle:  # else the program has put its own there meanwhile
            with contextlib.suppress(ValueError):  # on another thread, at exit
                # None: a handler that Python did not install, and cannot put back.
                signal.signal(number, signal.SIG_DFL if before is None else before)

    return give_up
