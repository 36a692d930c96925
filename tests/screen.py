# SPDX-License-Identifier: Apache-2.0
"""Runs a command of this process with a pseudo-terminal of a given size as its standard output."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import termios
import threading
from collections.abc import Sequence
from contextlib import redirect_stdout

from profiling_lab.cli import main


def on_screen(words: Sequence[str], columns: int, encoding: str = "utf-8") -> tuple[int, str]:
    """The exit code, and what the terminal got."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    got: list[bytes] = []

    def read() -> None:
        while True:
            try:
                got.append(os.read(ours, 1 << 16))
            except OSError:  # no process has the other end open any more
                return

    reader = threading.Thread(target=read)
    reader.start()
    try:
        with open(theirs, "w", encoding=encoding) as terminal, redirect_stdout(terminal):
            status = main(list(words))
    finally:
        reader.join()
        os.close(ours)
    return status, b"".join(got).decode(encoding).replace("\r\n", "\n")
