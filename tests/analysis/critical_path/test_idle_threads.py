# SPDX-License-Identifier: Apache-2.0
"""A thread of a pool waits for work: what it does next follows the thread that gave it."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_traces.machine import Machine, made

WORK_NS, HANDED_NS, EVERY_NS = 600_000, 5_000, 100_000
LOOP = "/usr/lib/python3.12/threading.py:1010 Thread.run > "
FUTURES = LOOP + "/usr/lib/python3.12/concurrent/futures/thread.py:89 _worker"
POOL = LOOP + "/usr/lib/python3.12/multiprocessing/pool.py:114 worker > /usr/lib/python3.12/queue.py:180 get"
WORKING = FUTURES + " > /usr/lib/python3.12/concurrent/futures/thread.py:58 _WorkItem.run"
OF_THE_PROGRAM = FUTURES + " > /app/train.py:20 crop"


class Handed:
    """The main thread prepares something at line 10, and a thread of a pool launches more with it."""

    def __init__(self, seen: str) -> None:
        self.seen = seen

    def __call__(self, machine: Machine) -> None:
        waits_since_ns = machine.now_ns.setdefault(2, machine.now_ns[1])
        machine.host(10, WORK_NS)
        for _ in range(5):
            machine.kernel(10, 1_000)
        machine.now_ns[2] = machine.now_ns[1] + HANDED_NS
        for time_ns in range(waits_since_ns + EVERY_NS, machine.now_ns[2], EVERY_NS):
            machine.builder.sample(time_ns, self.seen, thread=2)
        for _ in range(3):
            machine.kernel(11, 1_000, thread=2)
        machine.now_ns[1] = machine.now_ns[2] + HANDED_NS


@pytest.mark.parametrize("seen", [FUTURES, POOL])
def test_less_work_of_the_thread_that_gives_it_is_won(seen: str, tmp_path: Path) -> None:
    found = made(Handed(seen), tmp_path / "run.sqlite")
    (row,) = found.what_if(["train.py:10=0.5"]).rows
    really = made(Handed(seen), tmp_path / "half.sqlite", {10: 0.5}).by_line().step.length_ns
    assert row.before_ns - row.gain_ns == pytest.approx(really, abs=4 * HANDED_NS)


@pytest.mark.parametrize("seen", [WORKING, OF_THE_PROGRAM])
def test_a_thread_that_works_does_not_wait(seen: str, tmp_path: Path) -> None:
    (row,) = made(Handed(seen), tmp_path / "run.sqlite").what_if(["train.py:10=0.5"]).rows
    assert row.gain_ns < 0.1 * WORK_NS, "its own work takes as long as before"
