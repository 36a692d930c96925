# SPDX-License-Identifier: Apache-2.0
"""Threads: the program's, which may call us until they end, and ours, which must stay unnoticed."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

SOURCE = Path(__file__).with_name("late_calls.cpp")


@pytest.fixture
def late(tmp_path: Path) -> dict[str, str]:
    """The environment that names the library `late`."""
    return {"LATE": str(build(tmp_path / "liblate.so"))}


@pytest.fixture
def memory(tmp_path: Path) -> dict[str, str]:
    """The environment in which malloc() is ours."""
    library = str(build(tmp_path / "libmemory.so", "-DWITH_MALLOC"))
    return {"LATE": library, "LD_PRELOAD": library}


def build(library: Path, *flags: str) -> Path:
    compiler = os.environ.get("CXX") or shutil.which("g++") or "c++"
    flags = (*flags, "-std=c++20", "-O1", "-shared", "-fPIC", "-fvisibility=hidden", "-pthread")
    subprocess.run([compiler, *flags, str(SOURCE), "-o", str(library)], check=True)
    return library


DRAINED = """
from profiling_lab import _recorder
def wait(done):
    while not done(): time.sleep(0.005)
def flushes(): return int(_recorder.status()["overhead_flushes"])
def drained():  # the recorder has seen all that has happened by now
    now = flushes(); wait(lambda: flushes() > now + 1)
"""
LATE = f"""
import ctypes
late = ctypes.CDLL(os.environ["LATE"])
{DRAINED}"""


def test_cuda_calls_in_destructors_that_come_after_ours(run: Any, query: Any, late: dict[str, str]) -> None:
    """Ours ended first, and what it left was taken away, when the program's destructors launch."""
    run(
        LATE
        + """
with profiling_lab.record(OUT, flush_period_ms=20) as recorder:
    late.late_start(3, fake.library.fake_launch, fake.library.fake_launch)
    wait(lambda: late.late_ended() == 3); drained()
    late.late_join()
assert recorder.summary.launches == 9 and recorder.summary.dropped == 0, recorder.summary
""",
        env=late,
    )
    assert query("SELECT count(DISTINCT correlationId) FROM PYREC_LAUNCH") == [(9,)]


def test_ranges_in_destructors_that_come_after_ours(
    run: Any, query: Any, late: dict[str, str], apps: dict[str, str]
) -> None:
    run(
        LATE
        + """
from nvtx_app import app
with profiling_lab.record(OUT, flush_period_ms=20) as recorder:
    one = app("one.so")
    one.app_pop()  # it wakes up
    late.late_start(3, one.app_pop, one.app_push)
    wait(lambda: late.late_ended() == 3); drained()
    late.late_join()
    one.app_push(b"mine"); one.app_pop()
assert recorder.summary.ranges == 7, recorder.summary
""",
        env=late | apps,
    )
    names = "SELECT COALESCE(text, value), count(*) FROM NVTX_EVENTS LEFT JOIN StringIds ON id = textId"
    named = dict(query(f"{names} WHERE eventType = 59 AND domainId = 0 GROUP BY 1"))
    assert named == {"late": 6, "mine": 1}


def test_our_threads_take_no_signals(run: Any, query: Any) -> None:
    """A program that blocks SIGTERM for a critical section must not be killed through one of our threads."""
    run(
        """
import signal
from profiling_lab.cli._live_status import report_every
from profiling_lab.recording import Schedule
before = set(os.listdir("/proc/self/task"))
signals = {signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGALRM, signal.SIGCHLD, signal.SIGPROF}
recorder = profiling_lab.recording.Recorder(OUT, sample_hz=100, schedule=Schedule(duration_s=60))
mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
recorder.start(); quiet = report_every(60)
assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == mask
fake.kernel("a")
ours = sorted(set(os.listdir("/proc/self/task")) - before)
names = set()
def state(thread):
    lines = open(f"/proc/self/task/{thread}/status").read().splitlines()
    status = dict(line.split(":\\t") for line in lines)
    return status["Name"], int(status["SigBlk"], 16)
def blocks(mask, number): return mask >> number - 1 & 1
# glibc starts a thread with every signal blocked; it opens SIGSEGV and takes its name when it first runs.
while any(blocks(state(thread)[1], signal.SIGSEGV) for thread in ours): time.sleep(0.005)
expected = {"plab-recorder", "plab-sampler", "fake-cupti"}
while not expected <= {state(thread)[0] for thread in ours}: time.sleep(0.005)
assert len(ours) >= 5
for thread in ours:
    name, mask = state(thread)
    for number in signals: assert blocks(mask, number), (name, number)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
os.kill(os.getpid(), signal.SIGTERM)
fake.kernel("b"); recorder.stop()
assert signal.SIGTERM in signal.sigpending()
""",
        env={"FAKE_CUPTI_WORKER": "1"},
    )
    assert query("SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL") == [(2,)]


@pytest.mark.parametrize("thread", ["plab-recorder", "plab-sampler"])
def test_a_thread_of_ours_without_memory_ends_nothing(
    run: Any, query: Any, memory: dict[str, str], apps: dict[str, str], thread: str
) -> None:
    """What could not be done is done when there is memory again, told once, and the program goes on."""
    done = run(
        LATE
        + f"""
from nvtx_app import app
with profiling_lab.record(OUT, flush_period_ms=20, sample_hz=500) as recorder:
    one = app("one.so")
    for _ in range(100): fake.launch()
    drained()
    late.starve({thread.encode()!r})
    def work(depth):
        if depth: return work(depth - 1)
        for name in ("x", "y"):
            one.app_push(name.encode() * 50); one.app_pop()
            for _ in range(500): fake.launch()
    while late.times_refused() < 100: work(20); time.sleep(0.01)
    late.starve(None)
    drained()
    fake.kernel("after")
meta = recorder.summary.meta
if {thread!r} == "plab-recorder":
    assert "out of memory" in recorder.summary.reasons["memory"] and int(meta["recorder_failures"]) > 0
assert recorder.summary.dropped == int(meta["dropped_calls"]) + int(meta["dropped_ranges"])
made = fake.launch() - 1  # correlation ids count from 1
assert recorder.summary.launches + int(meta["dropped_calls"]) == made, (made, recorder.summary)
assert recorder.summary.stacks == recorder.summary.launches, recorder.summary
""",
        env=memory | apps,
    )
    assert "terminate" not in done.stderr
    assert query("SELECT count(*) - count(DISTINCT correlationId) FROM PYREC_LAUNCH") == [(0,)]
    assert query("SELECT count(*) FROM PYREC_LAUNCH WHERE stackId = 0") == [(0,)]
    assert query("SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL") == [(1,)]
    functions = query(
        "SELECT DISTINCT value FROM PYREC_FRAME f JOIN PYREC_STACK s ON s.frameId = f.id "
        "JOIN StringIds i ON i.id = f.functionId"
    )
    assert {("<module>",)} <= set(functions)
    if thread == "plab-recorder":
        assert ("work",) in functions
        told = query("SELECT text FROM DIAGNOSTIC_EVENT")
        assert told == [("the recorder had no memory for some of its work",)]


@pytest.mark.parametrize("microseconds", [20_000, 300_000])
def test_a_fork_while_another_thread_names_something(
    run: Any, memory: dict[str, str], apps: dict[str, str], microseconds: int
) -> None:
    """The child lacks that thread, and must not wait for its lock: it names things, records, and ends."""
    run(
        LATE
        + f"""
import signal, threading
from nvtx_app import app
with profiling_lab.record(OUT): one = app("one.so"); one.app_domain(b"a domain with quite a long name")
def name():
    late.hold(number, {microseconds})
    one.app_domain(b"another domain with quite a long name")
for number in range(1, 7):  # of its allocations some are made under a lock of ours
    late.hold(0, 0)
    thread = threading.Thread(target=name); thread.start()
    wait(lambda: late.is_holding() or not thread.is_alive())
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        one.app_domain(b"a domain of the child with a long name")
        with profiling_lab.record(OUT + ".child", overwrite=True) as recorder: fake.kernel("a")
        assert recorder.summary.kernels == 1
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    thread.join()
    one.app_domain(b"a third domain with quite a long name")
""",
        env=memory | apps,
    )


def test_forks_and_spawns_under_load_lose_nothing(run: Any, query: Any, apps: dict[str, str]) -> None:
    run(
        """
import subprocess, threading
from nvtx_app import app
with profiling_lab.record(OUT) as recorder:
    one = app("one.so")
    going = True
    made = []
    def work():
        count = 0
        while going:
            fake.kernel("k"); one.app_push(b"range"); one.app_domain(b"domain"); one.app_pop()
            count += 1
            time.sleep(0.0005)  # a busy machine must not make the ring overflow
        made.append(count)
    threads = [threading.Thread(target=work) for _ in range(3)]
    [t.start() for t in threads]
    for _ in range(30):
        child = os.fork()
        if child == 0:
            import signal; signal.alarm(60)
            fake.kernel("child"); one.app_push(b"child"); one.app_domain(b"child"); one.app_pop()
            try: profiling_lab.record("child.sqlite").__enter__()
            except profiling_lab.errors.LabError as error: os._exit("forked" not in str(error))
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
    for _ in range(3): subprocess.run([sys.executable, "-c", "import profiling_lab.recording"], check=True)
    going = False; [t.join() for t in threads]
assert recorder.summary.kernels == recorder.summary.launches == sum(made), (recorder.summary, made)
assert recorder.summary.ranges == sum(made) and recorder.summary.dropped == 0, recorder.summary
assert recorder.summary.reasons.keys() <= {"autograd"}, recorder.summary
""",
        env=apps,
    )
    assert query("PRAGMA integrity_check") == [("ok",)]


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGINT"])
def test_a_signal_under_load_ends_the_process_as_without_us(run: Any, tmp_path: Path, name: str) -> None:
    """The process dies of the signal, and every kernel older than its last but one flush can be recovered."""
    import signal

    from profiling_lab.recording.convert import convert

    done = run(
        DRAINED
        + f"""
import signal, threading
signal.signal(signal.{name}, signal.SIG_DFL)
recorder = profiling_lab.recording.Recorder(OUT, flush_period_ms=20, sample_hz=200); recorder.start()
def work():
    while True: fake.kernel("k"); time.sleep(0.0005)
threads = [threading.Thread(target=work, daemon=True) for _ in range(3)]
[t.start() for t in threads]
for _ in range(100): fake.kernel("main")
drained(); drained()
os.kill(os.getpid(), signal.{name})
time.sleep(60)
""",
        ok=False,
    )
    assert done.returncode == -getattr(signal, name), done.stderr
    assert convert(tmp_path / "out.sqlite.spool", tmp_path / "out.sqlite").rows["PYREC_LAUNCH"] >= 100
