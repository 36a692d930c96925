# SPDX-License-Identifier: Apache-2.0
"""A status line on standard error every few seconds."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable

from profiling_lab.recording.signals import blocked


def report_every(seconds: float) -> Callable[[], None]:
    """Print every `seconds` what has been recorded so far. Returns a function that ends it."""
    ended = threading.Event()
    process, began = os.getpid(), time.monotonic()

    def body() -> None:
        while not ended.wait(seconds) and os.getpid() == process:
            print(f"profiling-lab: {line(time.monotonic() - began)}", file=sys.stderr, flush=True)

    with blocked():
        threading.Thread(target=body, name="plab-status", daemon=True).start()
    return ended.set


def line(seconds: float) -> str:
    """One line about the contents of the running recording."""
    from profiling_lab import _recorder
    from profiling_lab.report import numbers

    status = _recorder.status()
    dropped = int(status["dropped_calls"]) + int(status["dropped_records"])
    parts = [
        f"{seconds:.0f} s",
        f"{int(status['kernels']):,} kernels" if status["gpu"] == "on" else "no GPU activity",
        f"{int(status['calls']):,} CUDA calls",
        f"{dropped:,} dropped" if dropped else "nothing dropped",
        f"capture {numbers.size(int(status['spool_bytes']))}",
    ]
    if "windows" in status:
        parts.append(f"{numbers.counted(int(status['windows']), 'window')} so far")
    if "write_error" in status:
        parts.append(f"the capture file cannot be written: {status['write_error']}")
    return ", ".join(parts)
