# SPDX-License-Identifier: Apache-2.0
"""Run code at the end of a process, while Python still works."""

from __future__ import annotations

import atexit

# pyarrow may import pandas, and pandas this module, which the end of a process is too late for.
import concurrent.futures.thread  # noqa: F401
import sys
from collections.abc import Callable


def call_then(action: Callable[[], None]) -> Callable[[], None]:
    """Call `action` when this process ends. Returns a function that cancels this.

    A worker of multiprocessing (of a DataLoader) does not run atexit handlers, but has its own finalizers.
    """
    atexit.register(action)
    processes = sys.modules.get("multiprocessing.process")
    if processes is None or processes.parent_process() is None:
        return lambda: atexit.unregister(action)
    from multiprocessing import util

    finalizer = util.Finalize(None, action, exitpriority=0)

    def give_up() -> None:
        atexit.unregister(action)
        finalizer.cancel()

    return give_up
