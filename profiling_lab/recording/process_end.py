# SPDX-License-Identifier: Apache-2.0
"""The last moment at which a process can still run Python."""

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable


def call_then(action: Callable[[], None]) -> Callable[[], None]:
    """Call `action` when this process ends. Returns how to give that up.

    A worker of multiprocessing (a DataLoader's) leaves without Python's atexit, but it has its own.
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
