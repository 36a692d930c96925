# SPDX-License-Identifier: Apache-2.0
"""The signal that opens and closes the windows of a recording."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator

from profiling_lab.errors import UsageError

# Ctrl-C must still end the script, and returning from the handler of a fault repeats the fault forever.
_NOT_TO_BE_HANDLED = ("SIGKILL", "SIGSTOP", "SIGINT", "SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT")


# Faults are delivered to the thread that caused them.
_FAULTS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP, signal.SIGSYS}


@contextlib.contextmanager
def blocked() -> Iterator[None]:
    """Threads started in this block get no signals, because signals belong to the program's threads."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - _FAULTS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def signal_number(name: str) -> signal.Signals:
    """The signal with this name (USR1, SIGUSR1). Raises UsageError if programs depend on it."""
    full = name.upper() if name.upper().startswith("SIG") else f"SIG{name.upper()}"
    number = getattr(signal, full, None)
    if not isinstance(number, signal.Signals) or number.name in _NOT_TO_BE_HANDLED:
        raise UsageError(f"{name!r} cannot be used to open and close windows; use USR1 or USR2")
    return number


def check_thread() -> None:
    """Raises UsageError on a thread that cannot handle signals."""
    if threading.current_thread() is not threading.main_thread():
        raise UsageError("only the main thread can handle signals; start the recording there")


def on_signal(name: str, action: Callable[[], None]) -> Callable[[], None]:
    """Call `action` on every signal with this name. Returns a function that cancels this.

    Raises UsageError as `signal_number` and `check_thread`.
    """
    check_thread()
    number = signal_number(name)

    def handle(*_: object) -> None:
        action()

    before = signal.signal(number, handle)

    def give_up() -> None:
        if signal.getsignal(number) is handle:  # else the program installed its own handler meanwhile
            with contextlib.suppress(ValueError):  # on another thread, at exit
                # None: a handler that was not installed by Python and cannot be restored.
                signal.signal(number, signal.SIG_DFL if before is None else before)

    return give_up
