# SPDX-License-Identifier: Apache-2.0
"""From a CUDA call to the SQLite file, driven by the fake CUPTI."""

from __future__ import annotations

import json
import sqlite3
import stat
from pathlib import Path
from typing import Any

import pytest


def test_every_kind_of_event_arrives(run: Any, query: Any, tmp_path: Path) -> None:
    run("""
with profiling_lab.record(OUT) as recorder:
    kernel = fake.kernel("_ZN2at6native4fillIfEEvPT_i", ns=2000, stream=13, grid=9, block=64)
    copy = fake.copy(nbytes=4096, ns=300, kind=1)
    now = time.time_ns()
    fake.peer_copy(fake.call(COPY), now, now + 40, 77)
    set_ = fake.call(SET); fake.memset(set_, now, now + 10, 128, 255)
    fake.call(STREAM_SYNC)
    graph = fake.call(GRAPH); fake.graph(graph, now, now + 500, 3)
    fake.call(MALLOC, result=2)
    fake.call(LAST_ERROR)
s = recorder.summary
assert (s.kernels, s.copies, s.launches, s.stacks, s.dropped) == (1, 2, 7, 7, 0), s
assert s.path.name == "out.sqlite" and s.seconds > 0 and not recorder.spool_path.exists()
""")
    name = "(SELECT value FROM StringIds WHERE id = {})"
    columns = "end - start, streamId, gridX, gridY, blockX, registersPerThread, dynamicSharedMemory, clusterX"
    kernels = query(
        f"SELECT {name.format('demangledName')}, {name.format('shortName')}, {name.format('mangledName')}, "
        f"{columns}, localMemoryTotal, launchType, cacheConfig FROM CUPTI_ACTIVITY_KIND_KERNEL"
    )
    demangled = "void at::native::fill<float>(float*, int)"
    expected = (
        demangled,
        "fill",
        "_ZN2at6native4fillIfEEvPT_i",
        2000,
        13,
        9,
        2,
        64,
        32,
        1024,
        2,
        5 << 32,
        1,
        1,
    )
    assert kernels == [expected]
    copies = query(
        "SELECT bytes, copyKind, srcKind, dstKind, srcDeviceId, dstDeviceId, dstContextId, copyCount "
        "FROM CUPTI_ACTIVITY_KIND_MEMCPY ORDER BY bytes"
    )
    assert copies == [(77, 10, 2, 2, 0, 1, 2, 1), (4096, 1, 1, 2, None, None, None, 1)]
    assert query("SELECT bytes, value, memKind FROM CUPTI_ACTIVITY_KIND_MEMSET") == [(128, 255, 2)]
    assert query("SELECT syncType, streamId FROM CUPTI_ACTIVITY_KIND_SYNCHRONIZATION") == [(3, 7)]
    assert query("SELECT end - start, graphId FROM CUPTI_ACTIVITY_KIND_GRAPH_TRACE") == [(500, 3)]
    calls = query(
        f"SELECT {name.format('nameId')}, eventClass, returnValue "
        "FROM CUPTI_ACTIVITY_KIND_RUNTIME ORDER BY start"
    )
    assert [c[0] for c in calls] == [
        "cudaLaunchKernel_v7000", "cudaMemcpyAsync_v3020", "cudaMemcpyAsync_v3020", "cudaMemsetAsync_v3020",
        "cudaStreamSynchronize_v3020", "cudaGraphLaunch_v10000", "cudaMalloc_v3020",
    ]  # fmt: skip
    assert [c[1:] for c in calls] == [(0, 0)] * 6 + [(0, 2)]
    assert query("SELECT contextId, nullStreamId FROM TARGET_INFO_CUDA_CONTEXT_INFO") == [(1, 7)]
    assert query("SELECT streamId, flag FROM TARGET_INFO_CUDA_STREAM ORDER BY 1") == [(7, 3), (13, 0)]
    assert stat.S_IMODE((tmp_path / "out.sqlite").stat().st_mode) == 0o600


def test_a_runtime_launch_and_the_driver_launch_inside_it_are_one_call(run: Any, query: Any) -> None:
    run("""
with profiling_lab.record(OUT):
    fake.launch()
    fake.call(DRIVER_LAUNCH_EX, domain=DRIVER)
    fake.call(HOST_FUNCTION, domain=DRIVER)
""")
    sql = "SELECT correlationId, eventClass FROM CUPTI_ACTIVITY_KIND_RUNTIME ORDER BY 1"
    assert query(sql) == [(1, 0), (2, 1)]


def test_a_missed_exit_costs_that_call_alone(run: Any, query: Any) -> None:
    run("""
with profiling_lab.record(OUT):
    fake.enter(RUNTIME, LAUNCH)
    fake.launch()
    fake.exit(RUNTIME, LAUNCH, 1, 0)
    fake.launch()
""")
    assert query("SELECT correlationId FROM PYREC_LAUNCH ORDER BY 1") == [(2,), (3,)]


def test_every_launch_has_the_line_that_made_it(run: Any, launch_lines: Any, query: Any) -> None:
    run("""
def layer():
    fake.kernel("a")
    fake.kernel("b")

with profiling_lab.record(OUT):
    layer()
    (lambda: fake.kernel("c"))()
    for _ in sorted([1, 2], key=lambda n: fake.kernel("d")): pass
""")
    assert launch_lines() == [
        (1, 2, "layer"), (2, 3, "layer"), (3, 7, "<lambda>"), (4, 8, "<lambda>"), (5, 8, "<lambda>"),
    ]  # fmt: skip
    joined = query(
        "SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL "
        "JOIN CUPTI_ACTIVITY_KIND_RUNTIME r USING (correlationId) "
        "JOIN PYREC_LAUNCH l USING (correlationId) WHERE r.globalTid = l.globalTid"
    )
    assert joined == [(5,)]


def test_stacks_are_in_nsys_form_at_their_call(run: Any, query: Any) -> None:
    run("""
def layer():
    fake.kernel("a")

with profiling_lab.record(OUT):
    for _ in range(3): layer()
""")
    rows = query(
        "SELECT s.value, n.domainId, n.color FROM NVTX_EVENTS n JOIN StringIds s ON s.id = n.jsonTextId "
        "JOIN CUPTI_ACTIVITY_KIND_RUNTIME r ON r.start = n.start AND r.globalTid = n.globalTid "
        "WHERE n.eventType = 34"
    )
    assert len(rows) == 3 and len({text for text, *_ in rows}) == 1
    payload = json.loads(rows[0][0])["Python Backtrace on CUDA"]
    names = dict(query("SELECT id, value FROM StringIds"))
    frames = [(names[f["Function"]], f["Line"] - 1) for f in payload["Frames"]]
    assert payload["Frames count"] == len(frames)
    assert frames[-2:] == [("layer", 2), ("<module>", 5)]
    assert query("SELECT text FROM NVTX_EVENTS WHERE eventType = 75") == [("Python Backtrace on CUDA",)]


def test_each_line_of_code_that_is_compiled_again_and_again(run: Any, launch_lines: Any) -> None:
    """A freed code object's address is used again; its lines must not be."""
    run("""
with profiling_lab.record(OUT):
    for n in range(200):
        scope = {"fake": fake}
        exec(compile("\\n" * n + f"def made_{n}(): fake.launch()", "made_script.py", "exec"), scope)
        scope[f"made_{n}"]()
        del scope
""")
    lines = launch_lines()
    assert [(line + 1, function) for _, line, function in lines] == [(n + 1, f"made_{n}") for n in range(200)]


def test_threads_and_a_thread_without_python(run: Any, query: Any) -> None:
    run("""
import threading, ctypes
pthread = ctypes.CDLL(None)
def work():
    for _ in range(100): fake.launch()
with profiling_lab.record(OUT) as recorder:
    threads = [threading.Thread(target=work) for _ in range(4)]
    [t.start() for t in threads]; [t.join() for t in threads]
    handle = ctypes.c_ulong()
    entry = ctypes.cast(fake.library.fake_launch, ctypes.c_void_p)
    pthread.pthread_create(ctypes.byref(handle), None, entry, None)
    pthread.pthread_join(handle, None)
assert recorder.summary.launches == 401 and recorder.summary.stacks == 400, recorder.summary
""")
    per_thread = query("SELECT count(*), sum(stackId > 0) FROM PYREC_LAUNCH GROUP BY globalTid ORDER BY 1")
    assert per_thread == [(1, 0)] + [(100, 100)] * 4
    assert query("SELECT count(*) - count(DISTINCT correlationId) FROM PYREC_LAUNCH") == [(0,)]


def test_a_launch_does_not_wait_for_the_gil(run: Any) -> None:
    """Another thread holds it for a second: a callback that wanted it would take as long."""
    run("""
import ctypes, threading
def work(): slowest.append(fake.slowest_launch(1500))
slowest = []
with profiling_lab.record(OUT) as recorder:
    thread = threading.Thread(target=work); thread.start()
    time.sleep(0.2)
    ctypes.PyDLL(None).usleep(1_000_000)  # PyDLL keeps the GIL
    thread.join()
assert recorder.summary.launches > 1000 and recorder.summary.stacks == recorder.summary.launches
assert slowest[0] < 200_000_000, slowest
""")


def test_thousands_of_short_threads_leave_nothing_behind(run: Any) -> None:
    run("""
import threading
def rss(): return int(open("/proc/self/statm").read().split()[1]) * 4096
with profiling_lab.record(OUT) as recorder:
    def some(count):
        for _ in range(count):
            t = threading.Thread(target=fake.launch); t.start(); t.join()
    some(500); before = rss(); some(3000); grown = rss() - before
assert recorder.summary.launches == 3500
assert grown < 64 << 20, grown  # a ring is 1.2 MB; 3000 of them would be 3.5 GB
""")


def test_counts_of_many_launches_are_exact(run: Any, query: Any) -> None:
    run("""
with profiling_lab.record(OUT) as recorder:
    for _ in range(40):
        fake.launches(5000); time.sleep(0.03)
assert recorder.summary.launches + recorder.summary.dropped == 200_000
assert recorder.summary.dropped == 0, recorder.summary
""")
    assert query("SELECT count(*), count(DISTINCT correlationId) FROM PYREC_LAUNCH") == [(200_000, 200_000)]
    assert int(dict(query("SELECT * FROM PYREC_META"))["overhead_callback_ns"]) > 0


def test_each_call_says_what_we_took_of_it(run: Any, query: Any) -> None:
    """From its begin on, so no more than it lasted; behind it one of many is timed."""
    run("""
with profiling_lab.record(OUT):
    def deep(n):
        fake.launches(50) if n == 0 else deep(n - 1)
    for n in (0, 200): deep(n)
""")
    rows = query(
        "SELECT ownNs, end - start FROM PYREC_LAUNCH l JOIN CUPTI_ACTIVITY_KIND_RUNTIME r "
        "ON r.correlationId = l.correlationId ORDER BY l.correlationId"
    )
    assert len(rows) == 100 and all(0 < own <= took + 1 for own, took in rows)
    meta = dict(query("SELECT * FROM PYREC_META"))
    mean = sum(own for own, _ in rows) // len(rows)
    assert int(meta["overhead_callback_ns"]) == mean + int(meta["overhead_exit_ns"])


def test_a_full_ring_counts_what_it_drops(run: Any) -> None:
    run("""
with profiling_lab.record(OUT) as recorder:
    fake.launches(400_000)
s = recorder.summary
assert s.launches + s.dropped == 400_000 and s.launches >= 16_384, s
""")


def test_buffers_run_out_without_stalling_or_crashing(run: Any) -> None:
    run("""
from profiling_lab import _recorder
_recorder.start(spool_path=OUT + ".spool", cupti_override=os.environ["PROFILING_LAB_CUPTI"],
                buffer_bytes=1 << 16, buffers_ahead=2, buffers_most=2, flush_period_ms=100_000)
slowest = 0
for _ in range(3000):
    begin = time.perf_counter_ns(); fake.kernel("k"); slowest = max(slowest, time.perf_counter_ns() - begin)
_recorder.stop({})
meta = _recorder.read_spool(OUT + ".spool")["meta"]
recorded, refused = int(meta["kernels"]), int(meta["starved_buffer_requests"])
assert recorded + int(meta["dropped_records"]) == 3000 and refused > 0, meta
assert recorded >= 2 * (1 << 16) // 216 - 2, meta
""")


def test_a_loss_is_counted_once(run: Any, tmp_path: Path) -> None:
    """CUPTI counts the records that it drops for want of a buffer; the requests are no further losses."""
    run("""
recorder = profiling_lab.recording.Recorder(OUT, buffer_bytes=1 << 12, flush_period_ms=100_000)
recorder.start()
fake.work(10_000, b"faster than the consumer")
summary = recorder.stop()
assert summary.kernels + summary.dropped == 10_000, summary
assert int(summary.meta["starved_buffer_requests"]) > 0 and int(summary.meta["dropped_calls"]) == 0, summary
""")
    from profiling_lab.analysis.lines import lines
    from profiling_lab.trace import Trace

    with Trace.open(tmp_path / "out.sqlite") as trace:
        lost = trace.recorder_facts["dropped_records"]
        assert f"{lost} events were lost while recording" in lines(trace).coverage.notes


def test_a_burst_that_is_faster_than_the_consumer_loses_nothing(run: Any) -> None:
    """As when many threads begin at once, and CUPTI wants a buffer for each."""
    run("""
from profiling_lab import _recorder
_recorder.start(spool_path=OUT + ".spool", cupti_override=os.environ["PROFILING_LAB_CUPTI"],
                buffer_bytes=1 << 12, buffers_ahead=1, buffers_most=500, flush_period_ms=100_000)
for _ in range(3000): fake.kernel("k")
_recorder.stop({})
meta = _recorder.read_spool(OUT + ".spool")["meta"]
assert int(meta["kernels"]) == 3000 and int(meta["starved_buffer_requests"]) == 0, meta
""")


def test_old_cupti_never_gets_a_null_buffer(run: Any) -> None:
    run("""
from profiling_lab import _recorder
fake.version(26)
_recorder.start(spool_path=OUT + ".spool", cupti_override=os.environ["PROFILING_LAB_CUPTI"],
                buffer_bytes=1 << 16, buffers_ahead=1, buffers_most=1, flush_period_ms=100_000)
for _ in range(3000): fake.kernel("k")
_recorder.stop({})
meta = _recorder.read_spool(OUT + ".spool")["meta"]
discarded = int(meta["starved_buffer_requests"])
assert discarded > 0 and int(meta["dropped_records"]) == discarded, meta  # at least one record each
""")


def test_unknown_records_are_counted_and_skipped(run: Any, query: Any) -> None:
    run("""
with profiling_lab.record(OUT):
    fake.kernel("a"); fake.unknown_record(); fake.kernel("b"); fake.unknown_record()
""")
    assert query("SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL") == [(2,)]
    assert query("SELECT value FROM PYREC_META WHERE name = 'records_unknown'") == [("2",)]


def test_kernels_that_never_got_a_time_are_counted_not_invented(run: Any, query: Any) -> None:
    run("""
with profiling_lab.record(OUT) as recorder:
    fake.kernel("a")
    fake.library.fake_kernel(fake.launch(), 0, 0, b"b", 7, 1, 1)
assert recorder.summary.kernels == 1 and recorder.summary.dropped == 1
""")
    assert query("SELECT value FROM PYREC_META WHERE name = 'records_without_time'") == [("1",)]


def test_an_old_cupti_has_no_cluster_fields(run: Any, query: Any) -> None:
    run("""
fake.version(17)
with profiling_lab.record(OUT): fake.kernel("a")
""")
    assert query("SELECT clusterX, localMemoryTotal FROM CUPTI_ACTIVITY_KIND_KERNEL") == [(0, 0)]


def test_waits_are_rows_made_of_their_calls(run: Any, query: Any) -> None:
    """CUPTI's own records of waits make every later CUDA call slower, so that kind must never be on."""
    run("""
SYNCHRONIZATION = 38
with profiling_lab.record(OUT) as recorder:
    assert not fake.kind_enabled(SYNCHRONIZATION)
    for call in (EVENT_SYNC, STREAM_WAIT, STREAM_SYNC, DEVICE_SYNC, LAUNCH):
        fake.call(call)
assert recorder.summary.meta["syncs"] == "4"
""")
    rows = query(
        "SELECT s.syncType, s.streamId, s.eventId, s.contextId, s.start = r.start, s.end = r.end "
        "FROM CUPTI_ACTIVITY_KIND_SYNCHRONIZATION s JOIN CUPTI_ACTIVITY_KIND_RUNTIME r USING (correlationId)"
    )
    none = 2**32 - 1
    assert rows == [
        (1, none, none, 1, 1, 1),
        (2, 7, none, 1, 1, 1),
        (3, 7, none, 1, 1, 1),
        (4, none, none, 1, 1, 1),
    ]


@pytest.mark.parametrize("before", ["fake.fail(b'GetStreamIdEx', 1)", "pass"])
def test_a_wait_of_an_unknown_stream_is_a_row_without_one(run: Any, query: Any, before: str) -> None:
    run(f"""
{before}
with profiling_lab.record(OUT): fake.call(STREAM_SYNC)
""")
    stream = 7 if before == "pass" else 2**32 - 1
    assert query("SELECT syncType, streamId FROM CUPTI_ACTIVITY_KIND_SYNCHRONIZATION") == [(3, stream)]


def test_nothing_of_the_environment_or_the_arguments_is_in_the_file(run: Any, tmp_path: Path) -> None:
    run(
        """
sys.argv += ["--api-key", "argument-secret-1"]
with profiling_lab.record(OUT): fake.kernel("a")
""",
        env={"MY_TOKEN": "environment-secret-2"},
    )
    content = (tmp_path / "out.sqlite").read_bytes()
    assert b"secret-1" not in content and b"secret-2" not in content


def test_the_file_is_a_whole_database(run: Any, query: Any, tmp_path: Path) -> None:
    run("""
with profiling_lab.record(OUT): fake.kernel("a")
""")
    assert query("PRAGMA integrity_check") == [("ok",)]
    assert query("PRAGMA user_version") == [(0,)] and query("PRAGMA journal_mode") == [("delete",)]
    assert not list(tmp_path.glob("*.tmp")) and not list(tmp_path.glob("*.spool"))
    with sqlite3.connect(tmp_path / "out.sqlite") as file:
        types = file.execute("SELECT DISTINCT type FROM sqlite_master").fetchall()
    assert types == [("table",)]


def test_the_place_in_a_job_is_noted(run: Any, query: Any) -> None:
    code = """
with profiling_lab.record(OUT) as recorder:
    fake.kernel("k", ns=10)
assert recorder.path.name == "out.rank3.sqlite"
os.rename(recorder.path, OUT)
"""
    run(code, env={"RANK": "3", "WORLD_SIZE": "eight"})  # what is no number is not noted
    assert query("SELECT value FROM PYREC_META WHERE name = 'rank'") == [("3",)]
    assert query("SELECT value FROM PYREC_META WHERE name = 'world_size'") == []


def test_ctrl_c_while_the_converter_is_imported_leaves_a_whole_capture(run: Any, tmp_path: Path) -> None:
    run("""
from profiling_lab import _recorder
from profiling_lab.recording import Recorder
class Interrupt:
    def find_spec(self, name, *_):
        if name == "profiling_lab.recording.convert":
            sys.meta_path.remove(self)
            raise KeyboardInterrupt
recorder = Recorder(OUT)
recorder.start()
sys.meta_path.insert(0, Interrupt())
try: recorder.stop()
except KeyboardInterrupt: pass
else: raise SystemExit("was not interrupted")
assert not _recorder.recording()
""")
    assert [path.name for path in tmp_path.glob("out.sqlite*")] == ["out.sqlite.spool"]
