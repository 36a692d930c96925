# SPDX-License-Identifier: Apache-2.0
"""The progress of a long command, on stderr. A short command prints nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_WAIT_S = {True: 0.2, False: 10.0}  # on a terminal one line that is updated, in a log a new line now and then


@contextmanager
def progress() -> Iterator[Callable[[str, int, int], None]]:
    """Yields a function that reports the current task, how much is done, and how much there is in total."""
    from time import monotonic

    stream, on_terminal = sys.stderr, sys.stderr.isatty()
    last = monotonic() + _WAIT_S[on_terminal]
    shown = False

    def told(what: str, done: int, total: int) -> None:
        nonlocal last, shown
        if monotonic() < last:
            return
        last, shown = monotonic() + _WAIT_S[on_terminal], True
        text = f"{what}: {done:,} of {total:,}"
        stream.write(f"\r\x1b[K{text}" if on_terminal else f"{text}\n")
        stream.flush()

    try:
        yield told
    finally:
        if shown and on_terminal:
            stream.write("\r\x1b[K")
            stream.flush()
