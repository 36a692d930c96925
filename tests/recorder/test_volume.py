# SPDX-License-Identifier: Apache-2.0
"""Much and long: memory stays within bounds. benchmarks/recorder/recorder_volume.py does ten million."""

from __future__ import annotations

import os
from typing import Any

PEAK = """
def peak_bytes():
    (line,) = (line for line in open("/proc/self/status") if line.startswith("VmHWM"))
    return int(line.split()[1]) << 10
"""

# In pieces, so that a busy machine empties the rings in time.
WORK = (
    PEAK
    + """
import ctypes
from profiling_lab import _recorder
fake.library.fake_work.argtypes = (ctypes.c_uint32, ctypes.c_char_p)
def work(count):
    for _ in range(count // 2000):
        done = int(_recorder.status()["calls"])
        fake.work(2000, b"kernel")
        while int(_recorder.status()["calls"]) < done + 2000: time.sleep(0.001)
"""
)


def test_memory_while_recording_and_converting(run: Any, query: Any) -> None:
    """Recording takes what the buffers take; converting the capture's size and little more."""
    run(
        WORK
        + """
recorder = profiling_lab.recording.Recorder(OUT); recorder.start()
work(20_000); before = peak_bytes()
work(180_000); grown = peak_bytes() - before
status = _recorder.status()
assert status["calls"] == "200000" and status["dropped_calls"] == "0", status
assert grown < 48 << 20, grown  # buffers of 4 MB, of which more are kept when it is busy
_recorder.stop({})
os._exit(0)
"""
    )
    run(
        PEAK
        + """
import profiling_lab.recording.convert, pyarrow, adbc_driver_sqlite.dbapi, numpy
profiling_lab.recording.convert.convert  # imported, with all that it imports
before = peak_bytes()
capture = os.path.getsize(OUT + ".spool")
converted = profiling_lab.recording.convert.convert(OUT + ".spool", OUT)
grown = peak_bytes() - before
assert converted.rows["PYREC_LAUNCH"] == converted.rows["CUPTI_ACTIVITY_KIND_KERNEL"] == 200_000
assert grown < capture + (400 << 20), (grown, capture)
"""
    )
    assert query("SELECT count(*), count(DISTINCT correlationId) FROM PYREC_LAUNCH") == [(200_000,) * 2]
    assert query("PRAGMA integrity_check") == [("ok",)]


def test_one_core_for_everything_loses_nothing(run: Any, query: Any) -> None:
    """As under `taskset -c 0`, or in a container with one core: the consumer gets what launches leave it."""
    run("""
import threading
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
with profiling_lab.record(OUT) as recorder:
    def launches():
        for _ in range(10_000): fake.kernel("k")
    threads = [threading.Thread(target=launches) for _ in range(3)]
    [t.start() for t in threads]; launches(); [t.join() for t in threads]
assert recorder.summary.kernels == recorder.summary.launches == 40_000, recorder.summary
assert recorder.summary.dropped == 0, recorder.summary
""")
    assert query("SELECT count(*) FROM PYREC_LAUNCH WHERE stackId = 0") == [(0,)]


def test_pieces_make_the_same_file(run: Any, query: Any) -> None:
    """Rows in order of their start, none twice, none missing, wherever the cuts fall."""
    run("""
import random, threading
recorder = profiling_lab.recording.Recorder(OUT, sample_hz=2000); recorder.start()
def launches():
    for i in range(200): fake.kernel(f"k{i % 7}"); fake.copy()
threads = [threading.Thread(target=launches) for _ in range(3)]
[t.start() for t in threads]; [t.join() for t in threads]
while int(__import__("profiling_lab._recorder")._recorder.status()["sample_moments"]) < 20: pass
from profiling_lab import _recorder
_recorder.stop({})
from profiling_lab.recording import convert, spool
from profiling_lab.recording.tables import ranges
convert.convert(OUT + ".spool", OUT)
spool.PIECE_ROWS = ranges.PIECE_ROWS = 17
convert.convert(OUT + ".spool", OUT.replace("out", "pieces"))
import sqlite3
file = sqlite3.connect(OUT)
file.execute("ATTACH ? AS pieces", (OUT.replace("out", "pieces"),))
names = [name for name, in file.execute("SELECT name FROM main.sqlite_master WHERE type = 'table'")]
assert len(names) > 30
for name in names:
    if name in ("NVTX_EVENTS", "StringIds", "META_DATA_EXPORT"): continue
    whole, cut = (file.execute(f"SELECT * FROM {part}.{name}").fetchall() for part in ("main", "pieces"))
    assert whole == cut, name
events = (
    "SELECT n.start, n.globalTid, n.domainId, s.value FROM {0}.NVTX_EVENTS n "
    "LEFT JOIN {0}.StringIds s ON s.id = n.jsonTextId"
)
def frames(part):
    names = dict(file.execute(f"SELECT id, value FROM {part}.StringIds"))
    import json
    out = []
    for start, tid, domain, text in file.execute(events.format(part)):
        stack = [f for payload in json.loads(text).values() for f in payload["Frames"]] if text else []
        out.append((start, tid, domain, tuple((names[f["Function"]], f["Line"]) for f in stack)))
    return out
whole, cut = frames("main"), frames("pieces")
assert [start for start, *_ in cut] == sorted(start for start, *_ in cut)
assert sorted(whole) == sorted(cut) and len(cut) >= 1220
""")
    assert query("SELECT count(*) FROM PYREC_LAUNCH") == [(1200,)]


def test_a_long_recording_does_not_grow(run: Any) -> None:
    """As many flushes as in two hours, and in them threads, windows, kernels and copies that come and go."""
    cycles = int(os.environ.get("PROFILING_LAB_CYCLES", "7200"))
    run(
        WORK
        + f"""
import threading
def resident(): return int(open("/proc/self/statm").read().split()[1]) * 4096
_recorder.start(
    spool_path=os.devnull, spool_file=os.open(os.devnull, os.O_WRONLY),
    cupti_override=os.environ["PROFILING_LAB_CUPTI"],
    flush_period_ms=0, drain_period_ms=0,
)
flushes = lambda: int(_recorder.status()["overhead_flushes"])
def until(wanted):
    number = 0
    while flushes() < wanted:
        number += 1
        fake.kernel(f"kernel_{{number % 50}}"); fake.copy()
        if number % 50 == 0:
            thread = threading.Thread(target=fake.launch); thread.start(); thread.join()
        if number % 100 == 0:
            _recorder.pause(); _recorder.open_window()
until({cycles} // 10); before = resident()
until({cycles}); grown = resident() - before
_recorder.stop({{}})
assert grown < 24 << 20, grown
""",
        timeout=600,
    )
