# SPDX-License-Identifier: Apache-2.0
"""Garbage collections and compilations: pauses of the host that Python and torch tell of, with their line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from profiling_lab.trace import Trace

EVENTS = """
    SELECT s.value, f.value, p.line, e.end - e.start, e.globalTid % 0x1000000, (e.globalTid >> 24) % 0x1000000
    FROM PYREC_HOST_EVENT e JOIN StringIds s ON s.id = e.nameId
    LEFT JOIN PYREC_STACK k ON k.id = e.stackId LEFT JOIN PYREC_FRAME p ON p.id = k.frameId
    LEFT JOIN StringIds f ON f.id = p.functionId ORDER BY e.start"""
SHORTEST_NS = 1_000_000

# Each collection calls back into the program while it runs: how long one takes is not left to the machine.
COLLECT = """
import gc
gc.disable()
class Slow:
    def __init__(self, seconds): self.me, self.seconds = self, seconds
    def __del__(self): time.sleep(self.seconds)
def collect(seconds):
    Slow(seconds)
    gc.collect()  # the cause
gc.collect()
"""


def test_a_collection_is_noted_with_the_line_that_caused_it(run: Any, query: Any, tmp_path: Path) -> None:
    run(
        COLLECT
        + """
with profiling_lab.record(OUT):
    fake.kernel("a")
    collect(0.02)
    fake.kernel("b")
"""
    )
    (event,) = query(EVENTS)
    text, function, line, took_ns, thread, pid = event
    assert text == "garbage collection, generation 2" and function == "collect"
    assert (tmp_path / "script.py").read_text().splitlines()[line - 1].endswith("# the cause")
    assert took_ns >= 20_000_000 and thread == pid
    with Trace.open(tmp_path / "out.sqlite") as trace:
        events = trace.source.host_events()
    assert events.names == (text,) and events.stack.tolist() != [0]
    assert (events.end_ns - events.start_ns).tolist() == [took_ns]


def test_short_collections_are_not_kept(run: Any, query: Any) -> None:
    run(
        COLLECT
        + """
with profiling_lab.record(OUT):
    fake.kernel("a")
    for _ in range(20): gc.collect(0)
    collect(0.02)
"""
    )
    assert all(took_ns >= SHORTEST_NS for *_, took_ns, _, _ in query(EVENTS))
    assert sum(function == "collect" for _, function, *_ in query(EVENTS)) == 1


def test_compilations_by_torch_are_noted(run: Any, query: Any) -> None:
    pytest.importorskip("torch")
    run("""
def trained():
    import torch  # only now: the recording waits for the compiler's import
    @torch.compile(backend="eager")
    def step(x): return (x * 2 + 1).relu()
    return step(torch.ones(3))
with profiling_lab.record(OUT):
    fake.kernel("a")
    trained()
""")
    events = [event for event in query(EVENTS) if event[0] == "torch.compile"]
    assert events, query(EVENTS)
    with_line = query(
        "SELECT count(*) FROM PYREC_HOST_EVENT e JOIN StringIds s ON s.id = e.nameId "
        "WHERE s.value = 'torch.compile' AND e.stackId > 0"
    )
    assert with_line == [(len(events),)]


def test_without_stacks_no_gc_callback_is_installed(run: Any, query: Any) -> None:
    run(
        COLLECT
        + """
before = list(gc.callbacks)
with profiling_lab.record(OUT, stacks=False):
    fake.kernel("a")
    assert gc.callbacks == before
    collect(0.02)
"""
    )
    assert query("SELECT name FROM sqlite_master WHERE name = 'PYREC_HOST_EVENT'") == []


def test_the_programs_own_callbacks_stay(run: Any, query: Any) -> None:
    run(
        COLLECT
        + """
mine = lambda phase, info: None
gc.callbacks.append(mine)
with profiling_lab.record(OUT):
    fake.kernel("a")
    assert len(gc.callbacks) == 2
    gc.callbacks.clear()  # a program may do that
    gc.callbacks.append(mine)
    collect(0.02)
assert gc.callbacks == [mine]
with profiling_lab.record(OUT, overwrite=True):
    fake.kernel("a")
    collect(0.02)
assert gc.callbacks == [mine], gc.callbacks
"""
    )
    assert len(query(EVENTS)) == 1, "the second recording heard of its own"


def test_a_forked_child_reports_nothing(run: Any, query: Any) -> None:
    run(
        COLLECT
        + """
import warnings
warnings.simplefilter("ignore")
with profiling_lab.record(OUT):
    fake.kernel("a")
    child = os.fork()
    if child == 0:
        collect(0.02)
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    collect(0.02)
    print(os.getpid())
"""
    )
    (event,) = query(EVENTS)
    assert event[4] == event[5] == query("SELECT pid FROM PROCESSES")[0][0]


def test_what_happens_in_a_pause_is_left_out(run: Any, query: Any) -> None:
    run(
        COLLECT
        + """
with profiling_lab.record(OUT) as recorder:
    fake.kernel("a")
    recorder.pause()
    collect(0.02)
    recorder.resume()
    fake.kernel("b")
    collect(0.03)
"""
    )
    (event,) = query(EVENTS)
    assert event[3] >= 30_000_000
