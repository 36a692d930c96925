# SPDX-License-Identifier: Apache-2.0
"""Samples all threads of this interpreter with the module in the folder given; prints what it found."""

from __future__ import annotations

import collections
import json
import sys
import threading
import time

sys.path.insert(0, sys.argv[1])
import stacks_only


def computing() -> None:
    sum(range(1000))


def sleeping() -> None:
    time.sleep(0.005)


def other(go: threading.Event) -> None:
    go.wait()


def functions(samples: list[tuple[int, int]]) -> dict[str, int]:
    """How often each function was found innermost, with the number of its thread."""
    found: collections.Counter[str] = collections.Counter()
    for thread, stack in samples:
        frames = [function.split(".")[-1] for _, function, _, _ in stacks_only.python_stacks.stack(stack)]
        mine = next(name for name in frames if name in ("computing", "sleeping", "other", "<module>"))
        found[f"{mine} {'main' if thread == threading.main_thread().native_id else thread}"] += 1
    return dict(found)


def main() -> None:
    stacks_only.python_stacks.start()
    go = threading.Event()
    thread = threading.Thread(target=other, args=(go,))
    thread.start()
    begin = time.perf_counter()
    found = {act.__name__: functions(stacks_only.sample(1_000_000, act, 30)) for act in (computing, sleeping)}
    go.set()
    thread.join()
    report = {"found": found, "other": thread.native_id, "seconds": time.perf_counter() - begin}
    print(json.dumps(report))


if __name__ == "__main__":
    main()
