# SPDX-License-Identifier: Apache-2.0
"""Samples of the host's Python: of every thread, in nsys' form, and what they say of the GPU's idle time."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from profiling_lab.analysis.gaps.gaps import gaps
from profiling_lab.trace import Trace
from profiling_lab.trace.ownership import Ownership

SAMPLES = """
    SELECT s.value, n.globalTid % 0x1000000, n.start
    FROM NVTX_EVENTS n JOIN StringIds s ON s.id = n.jsonTextId
    WHERE n.eventType = 34 AND s.value LIKE '{"Python Periodic Sampling"%' ORDER BY n.start"""

# Until this number of samples was taken: no test depends on how fast the machine is.
# With a GPU, samples begin with the first launch.
UNTIL = """
from profiling_lab import _recorder
def moments(): return int(_recorder.status()["sample_moments"])
def until(count, act):
    wanted = moments() + count
    deadline = time.monotonic() + 600
    while moments() < wanted:
        assert time.monotonic() < deadline, _recorder.status()
        act()
"""


@pytest.fixture
def innermost(query: Any) -> Any:
    """(thread, function of the innermost frame, of the outermost) of every sample, counted."""

    def read() -> Counter[tuple[int, str, str]]:
        names = dict(query("SELECT id, value FROM StringIds"))
        out: Counter[tuple[int, str, str]] = Counter()
        for text, thread, _ in query(SAMPLES):
            payload = json.loads(text)["Python Periodic Sampling"]
            frames = [names[frame["Function"]] for frame in payload["Frames"]]
            assert payload["Frames count"] == len(frames) > 0
            out[thread, frames[0], frames[-1]] += 1
        return out

    return read


def test_every_thread_is_sampled_where_it_is(run: Any, query: Any, innermost: Any) -> None:
    run(
        UNTIL
        + """
import threading
def computing(): sum(range(300))
def waiting(): time.sleep(0.02)
def other(): go.wait()
with profiling_lab.record(OUT, sample_hz=500) as recorder:
    fake.kernel("a")
    go = threading.Event()
    thread = threading.Thread(target=other); thread.start()
    while moments() == 0: pass
    until(20, computing)
    until(5, waiting)
    go.set(); thread.join()
    print(os.getpid(), thread.native_id)
meta = recorder.summary.meta
assert meta["samples_lost"] == "0" and int(meta["overhead_sampling_ns"]) > 0, meta
"""
    )
    assert query("SELECT value FROM PYREC_META WHERE name = 'samples_per_second'") == [("500",)]
    found = innermost()
    functions = {(function, outermost) for _, function, outermost in found}
    assert ("computing", "<module>") in functions and ("waiting", "<module>") in functions, found
    mine = {thread for thread, _, outermost in found if outermost == "<module>"}
    others = {thread for thread, _, outermost in found if outermost == "Thread._bootstrap"}
    assert len(mine) == len(others) == 1 and mine != others
    (pid,) = query("SELECT pid FROM PROCESSES")[0]
    assert mine == {pid}  # the main thread has the number of the process
    waiting = sum(count for (_, function, _), count in found.items() if function == "waiting")
    assert waiting >= 4  # the main thread was in C code and did not hold the GIL


def test_samples_say_what_the_gpu_waited_for(run: Any, tmp_path: Path) -> None:
    run(
        UNTIL
        + """
def load_data(): sum(range(300))
def train():
    fake.kernel("a")
    until(30, load_data)
    fake.kernel("b")
with profiling_lab.record(OUT, sample_hz=500): train()
"""
    )
    with Trace.open(tmp_path / "out.sqlite") as trace:
        samples = trace.source.samples(Ownership())
        (row,) = [row for row in gaps(trace).rows if row.cause == "host code"]
    assert len(samples) >= 30
    places = {place.rsplit(" ", 1)[1] for place, _ in row.sampled}
    assert "load_data" in places and sum(count for _, count in row.sampled) >= 28


def test_samples_have_a_domain_and_a_layout_of_their_own(run: Any, query: Any) -> None:
    run(
        UNTIL
        + """
with profiling_lab.record(OUT, sample_hz=1000):
    fake.kernel("a")
    until(3, lambda: None)
"""
    )
    domains = dict(query("SELECT text, domainId FROM NVTX_EVENTS WHERE eventType = 75"))
    assert domains == {"Python Backtrace on CUDA": 1, "Python Periodic Sampling": 2}
    marks = query("SELECT DISTINCT domainId FROM NVTX_EVENTS WHERE eventType = 34 ORDER BY 1")
    assert marks == [(1,), (2,)]
    schemas = (
        "SELECT domainId, name, type, numEntries FROM NVTX_PAYLOAD_SCHEMAS WHERE name NOT NULL ORDER BY 1"
    )
    assert query(schemas) == [(1, "Python Backtrace on CUDA", 2, 4), (2, "Python Periodic Sampling", 2, 4)]
    assert query("SELECT count(*) - count(DISTINCT schemaId) FROM NVTX_PAYLOAD_SCHEMAS") == [(0,)]


def test_without_being_asked_nothing_is_sampled(run: Any, query: Any) -> None:
    run("""
from profiling_lab import _recorder
with profiling_lab.record(OUT) as recorder:
    fake.kernel("a")
    assert "sample_moments" not in _recorder.status()
assert "sample_moments" not in recorder.summary.meta
""")
    assert query(SAMPLES) == []


def test_a_pause_is_not_sampled(run: Any, query: Any) -> None:
    run(
        UNTIL
        + """
def outside(): time.sleep(0.05)
def inside(): sum(range(300))
with profiling_lab.record(OUT, sample_hz=1000) as recorder:
    fake.kernel("a")
    until(5, inside)
    recorder.pause()
    before = moments(); outside(); outside(); assert moments() <= before + 1
    recorder.resume()
    until(5, inside)
"""
    )
    assert sum("outside" in text for text, *_ in query(SAMPLES)) == 0
    windows = query("SELECT start, end FROM PYREC_WINDOW ORDER BY start")
    assert len(windows) == 2
    assert all(any(a <= start <= b for a, b in windows) for *_, start in query(SAMPLES))


def test_short_threads_forks_and_many_recordings(run: Any) -> None:
    """Threads come and go while their frames are looked at; a child has no sampler."""
    run(
        UNTIL
        + """
import threading, warnings
warnings.simplefilter("ignore")
def short(): sum(range(100))
for turn in range(5):
    with profiling_lab.record(OUT, sample_hz=2000, overwrite=True) as recorder:
        fake.kernel("a")
        for _ in range(60):
            threads = [threading.Thread(target=short) for _ in range(4)]
            [t.start() for t in threads]; [t.join() for t in threads]
        until(3, short)
        child = os.fork()
        if child == 0:
            for _ in range(10000): short()
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert recorder.summary.meta["samples_lost"] == "0", recorder.summary.meta
"""
    )


def test_a_thread_that_python_never_saw_appears_while_it_samples(run: Any) -> None:
    """Its state is in the interpreter's list before it is set up, and nothing holds the GIL meanwhile."""
    run(
        UNTIL
        + """
import ctypes, threading
libc = ctypes.CDLL(None)
begin = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(lambda _: None)
over = False
def foreign():
    threads = (ctypes.c_ulong * 8)()
    while not over:
        for i in range(8): libc.pthread_create(ctypes.byref(threads, 8 * i), None, begin, None)
        for thread in threads: libc.pthread_join(ctypes.c_ulong(thread), None)
with profiling_lab.record(OUT, sample_hz=2000):
    fake.kernel("a")
    thread = threading.Thread(target=foreign); thread.start()
    until(6000, lambda: sum(range(100)))
    over = True; thread.join()
"""
    )


def test_c_code_that_keeps_the_gil_is_one_sample(run: Any) -> None:
    """Nobody can look at a thread meanwhile: the ticks that pass are counted, and nothing waits for us."""
    run(
        UNTIL
        + """
import ctypes
with profiling_lab.record(OUT, sample_hz=1000) as recorder:
    fake.kernel("a")
    until(1, lambda: None)
    ctypes.PyDLL(None).usleep(200_000)  # PyDLL keeps the GIL
    until(2, lambda: None)
assert int(recorder.summary.meta["samples_late"]) > 50, recorder.summary.meta
"""
    )


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ("sample_hz=5000", "1 to 2000 times a second, not 5000"),
        ("sample_hz=-1", "not -1"),
        ("sample_hz=10, stacks=False", "sample_hz needs stacks=True"),
    ],
)
def test_what_cannot_be_sampled(run: Any, options: str, text: str) -> None:
    done = run(f"profiling_lab.recording.Recorder(OUT, {options})", ok=False)
    assert done.returncode == 1 and text in done.stderr


def test_starting_during_a_stop_does_not_wait_for_it(run: Any) -> None:
    """The one that stops may need the interpreter's lock for the last sample, which the other one holds."""
    run("""
import threading
def stops():
    for _ in range(30):
        recorder = profiling_lab.recording.Recorder(OUT, sample_hz=2000, overwrite=True)
        try: recorder.start()
        except profiling_lab.errors.LabError: continue
        recorder.stop()
threads = [threading.Thread(target=stops) for _ in range(3)]
[t.start() for t in threads]; [t.join() for t in threads]
""")
