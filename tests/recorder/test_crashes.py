# SPDX-License-Identifier: Apache-2.0
"""Every way in which a recording can be cut off, and what is left of it then."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from profiling_lab.cli import main
from profiling_lab.recording.convert import convert

ATTEMPTS = 50

# One process that has imported everything makes all that are killed, so that each lives for a moment only.
KILLED = f"""
import random, signal, sqlite3
from profiling_lab import _recorder
from profiling_lab.recording import Recorder
from profiling_lab.recording.convert import convert
import adbc_driver_sqlite.dbapi, pyarrow, numpy as np
generator = random.Random(1)

def flushes(): return int(_recorder.status()["overhead_flushes"])

def program(out, log):  # notes each kernel with the flushes that were over before it
    Recorder(out, flush_period_ms=20).start()
    with open(log, "w", buffering=1) as file:
        while True:
            before = flushes()
            numbers = " ".join(str(fake.kernel("k")) for _ in range(25))
            file.write(f"{{before}} {{numbers}} .\\n")
            time.sleep(0.001)  # a busy machine must not make the ring overflow

def noted(log):
    lines = [line.split() for line in open(log).read().splitlines() if line.endswith(" .")]
    return [(int(before), [int(c) for c in numbers]) for before, *numbers, _ in lines]

def has_old_ones(log):  # a busy machine may flush before the first note
    lines = os.path.exists(log) and noted(log)
    return lines and lines[-1][0] >= max(4, lines[0][0] + 3)

def check(out, log):
    spool, lines = out + ".spool", noted(log)
    last = lines[-1][0]
    # A flush writes a clock when it has been counted.
    clocks = len(_recorder.read_spool(spool)["clocks"])
    assert clocks >= last, (clocks, last)
    converted = convert(spool, out)
    assert "finished" not in converted.meta
    with sqlite3.connect(out) as file:
        assert file.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        calls = {{c for c, in file.execute("SELECT correlationId FROM PYREC_LAUNCH")}}
        kernels = {{c for c, in file.execute("SELECT correlationId FROM CUPTI_ACTIVITY_KIND_KERNEL")}}
        meta = dict(file.execute("SELECT name, value FROM PYREC_META"))
        domains = file.execute("SELECT count(*) FROM PYREC_LAUNCH WHERE stackId = 0").fetchone()
    assert meta["stacks_lost"] == "0" and meta["finished"] == "no" and domains == (0,), meta
    # What was launched before a flush began is in the file when the flush after the next one is over.
    old = {{c for before, numbers in lines if before <= last - 3 for c in numbers}}
    assert old and old <= calls and old <= kernels, (len(old), len(calls), len(kernels))

for attempt in range({ATTEMPTS}):
    out, log = f"{{attempt}}.sqlite", f"{{attempt}}.log"
    child = os.fork()
    if child == 0:
        try: program(out, log)
        finally: os._exit(1)
    while not has_old_ones(log): time.sleep(0.005)
    time.sleep(generator.random() / 8)
    os.kill(child, signal.SIGKILL)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    check(out, log)
    for name in (out, log, out + ".spool"): os.unlink(name)
"""


def test_killed_at_random_moments_nothing_older_than_a_flush_is_lost(run: Any) -> None:
    run(KILLED, timeout=600)


# c: it records, s: it stops, w: the file is being written, r: it gets its name, e: all is done.
KILLED_AT_EVERY_STAGE = f"""
import random, signal, sqlite3
from profiling_lab import _recorder
from profiling_lab.recording import Recorder
from profiling_lab.recording import convert as converter
import adbc_driver_sqlite.dbapi, pyarrow, numpy as np
generator = random.Random(2)
KERNELS = 300
def flushes(): return int(_recorder.status()["overhead_flushes"])

def program(out, reached):
    recorder = Recorder(out, flush_period_ms=5); recorder.start()
    write, link = converter._write, os.link
    def and_say(stage, function):
        def said(*arguments):
            reached(stage)
            return function(*arguments)
        return said
    converter._write, os.link = and_say("w", write), and_say("r", link)
    for _ in range(KERNELS): fake.kernel("k")
    now = flushes()
    reached("c")
    while flushes() < now + 3: time.sleep(0.001)
    reached("s")
    recorder.stop()
    reached("e")
    time.sleep(600)

def life(out, frozen, seconds):  # kills one in its life; returns how far it came
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        def reached(stage):
            os.write(theirs, stage.encode())
            if stage == frozen: time.sleep(600)
        try: program(out, reached)
        finally: os._exit(1)
    os.close(theirs)
    stages = ""
    while not stages or (frozen and frozen not in stages):
        said = os.read(ours, 1).decode()
        assert said, f"it ended by itself after {{stages!r}}"
        stages += said
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    stages += os.read(ours, 100).decode(); os.close(ours)
    return stages

def check(out, stages):
    if os.path.exists(out): assert stages[-1] in "re", stages
    else: assert stages[-1] in "cswr", stages
    if not os.path.exists(out):
        converted = converter.convert(out + ".spool", out)
        if stages[-1] in "wr": assert converted.meta["finished"] == "yes", stages
    with sqlite3.connect(out) as file:
        assert file.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        counts = [
            file.execute(f"SELECT count(*) FROM sqlite_master WHERE name = '{{table}}'").fetchone()[0]
            and file.execute(f"SELECT count(*) FROM {{table}}").fetchone()[0]
            for table in ("PYREC_LAUNCH", "CUPTI_ACTIVITY_KIND_KERNEL")
        ]
    assert stages == "c" or counts == [KERNELS, KERNELS], (stages, counts)

ended = set()
for attempt in range({ATTEMPTS}):
    out = f"{{attempt}}.sqlite"
    frozen = "cswre"[attempt // 2 % 5] if attempt % 2 else ""
    stages = life(out, frozen, generator.random() / 5 if not frozen else 0)
    check(out, stages)
    ended.add(stages[-1])
    for name in (out, out + ".spool", out + ".tmp"):
        if os.path.exists(name): os.unlink(name)
assert ended == set("cswre"), ended
"""


def test_killed_at_every_stage_the_recording_is_there(run: Any) -> None:
    """Whole, or to be recovered whole, from the moment at which its last flush was over."""
    run(KILLED_AT_EVERY_STAGE, timeout=600)


def test_the_pieces_of_a_killed_conversion_are_no_file(run: Any, tmp_path: Path) -> None:
    """Whoever is killed while writing leaves the capture and a .tmp, which the next attempt replaces."""
    run(
        """
from profiling_lab.recording import convert
recorder = profiling_lab.recording.Recorder(OUT); recorder.start()
for _ in range(100): fake.kernel("a")
def killed(*_): os._exit(9)
os.link = killed
recorder.stop()
""",
        ok=False,
    )
    assert sorted(path.name for path in tmp_path.glob("out*")) == ["out.sqlite.spool", "out.sqlite.tmp"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.glob("out*")} == {0o600}
    assert convert(tmp_path / "out.sqlite.spool", tmp_path / "out.sqlite").rows["PYREC_LAUNCH"] == 100
    assert not (tmp_path / "out.sqlite.tmp").exists()


def test_no_room_for_the_capture(run: Any) -> None:
    run("""
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
try: profiling_lab.record(OUT).__enter__()
except profiling_lab.errors.LabError as error: assert "File too large" in str(error), error
else: raise SystemExit("was not refused")
assert not os.path.exists(OUT + ".spool")
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
with profiling_lab.record(OUT): fake.kernel("a")  # nothing of the first attempt is in the way
""")


def test_no_room_for_the_file_keeps_the_capture(run: Any, tmp_path: Path) -> None:
    done = run("""
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
recorder = profiling_lab.recording.Recorder(OUT); recorder.start()
for _ in range(200): fake.kernel("a")
from profiling_lab import _recorder
resource.setrlimit(resource.RLIMIT_FSIZE, (120_000, resource.RLIM_INFINITY))
try: recorder.stop()
except profiling_lab.errors.LabError as error: print(error)
else: raise SystemExit("no error")
assert not recorder.is_recording and not _recorder.recording()
""")
    assert done.stdout.startswith("cannot write /") and "the capture is kept in" in done.stdout
    assert [path.name for path in tmp_path.glob("out*")] == ["out.sqlite.spool"]
    rows = convert(tmp_path / "out.sqlite.spool", tmp_path / "out.sqlite").rows
    assert rows["PYREC_LAUNCH"] == rows["CUPTI_ACTIVITY_KIND_KERNEL"] == 200


def test_a_folder_that_is_not_writable(run: Any) -> None:
    run("""
try: profiling_lab.record("/proc/self/out.sqlite").__enter__()
except profiling_lab.errors.LabError as error: assert str(error).startswith("cannot write /proc/"), error
else: raise SystemExit("was not refused")
""")


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write into any folder")
def test_a_read_only_folder(run: Any, tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o500)
    run("""
try: profiling_lab.record("closed/out.sqlite").__enter__()
except profiling_lab.errors.LabError as error: assert "Permission denied" in str(error), error
else: raise SystemExit("was not refused")
""")


def test_a_folder_that_is_renamed_meanwhile(run: Any, tmp_path: Path) -> None:
    """One sentence; the capture went along and is whole."""
    run("""
os.mkdir("sub")
recorder = profiling_lab.recording.Recorder("sub/out.sqlite"); recorder.start(); fake.kernel("a")
os.rename("sub", "elsewhere")
fake.kernel("b")
try: recorder.stop()
except profiling_lab.errors.LabError as error: assert "elsewhere/out.sqlite.spool" in str(error), error
else: raise SystemExit("no error")
with profiling_lab.record(OUT): fake.kernel("c")
""")
    spool = tmp_path / "elsewhere" / "out.sqlite.spool"
    assert convert(spool, tmp_path / "saved.sqlite").rows["CUPTI_ACTIVITY_KIND_KERNEL"] == 2


def test_a_folder_that_is_removed_meanwhile(run: Any, query: Any) -> None:
    run("""
import shutil
os.mkdir("sub")
recorder = profiling_lab.recording.Recorder("sub/out.sqlite"); recorder.start(); fake.kernel("a")
shutil.rmtree("sub")
fake.kernel("b")
try: recorder.stop()
except profiling_lab.errors.LabError as error: assert "the capture was deleted)" in str(error), error
else: raise SystemExit("no error")
with profiling_lab.record(OUT): fake.kernel("c")
""")
    assert query("SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL") == [(1,)]


def test_what_the_body_raised_goes_on(run: Any, query: Any) -> None:
    run("""
import warnings
try:
    with profiling_lab.record(OUT):
        fake.kernel("a")
        try: raise KeyError("first")
        except KeyError: raise ValueError("second")
except ValueError as error: assert isinstance(error.__context__, KeyError)
os.mkdir("sub")
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    try:
        with profiling_lab.record("sub/out.sqlite"):
            os.mkdir("sub/out.sqlite.tmp")
            raise ValueError("mine")
    except ValueError as error: assert error.__context__ is None
assert [str(w.message)[:36] for w in told] == ["the recording could not be finished:"], told
assert os.path.basename(told[0].filename) == "script.py"
""")
    assert query("SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL") == [(1,)]


def test_stopped_in_the_body_or_left_by_a_child(run: Any, query: Any) -> None:
    run("""
with profiling_lab.record(OUT) as recorder:
    fake.kernel("a"); recorder.stop()
with profiling_lab.record(OUT, overwrite=True):
    fake.kernel("b")
    child = os.fork()
if child == 0: os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
""")
    names = "SELECT value FROM CUPTI_ACTIVITY_KIND_KERNEL JOIN StringIds ON id = shortName"
    assert query(names) == [("b",)]


@pytest.mark.parametrize("in_thread", [False, True])
@pytest.mark.parametrize("raised", ["SystemExit(4)", "KeyboardInterrupt", "ValueError"])
def test_what_is_raised_during_the_recording(run: Any, query: Any, raised: str, in_thread: bool) -> None:
    run(f"""
import threading
threading.excepthook = lambda *_: None
def work():
    fake.kernel("a")
    raise {raised}
with profiling_lab.record(OUT):
    if {in_thread}:
        thread = threading.Thread(target=work); thread.start(); thread.join()
    else:
        try: work()
        except BaseException: pass
    fake.kernel("b")
""")
    assert query("SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL") == [(2,)]


def test_a_handler_of_sigterm_ends_the_recording(run: Any, query: Any) -> None:
    """As programs on clusters have one. Without it a recording is left to `recover`."""
    done = run(
        """
import signal
def stop(*_): raise SystemExit(143)
signal.signal(signal.SIGTERM, stop)
with profiling_lab.record(OUT):
    fake.kernel("a")
    signal.raise_signal(signal.SIGTERM)
""",
        ok=False,
    )
    assert done.returncode == 143
    assert query("SELECT value FROM PYREC_META WHERE name = 'finished'") == [("yes",)]


def test_what_was_cut_off_says_so(run: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(
        """
recorder = profiling_lab.recording.Recorder(OUT, flush_period_ms=20); recorder.start()
for _ in range(10): fake.kernel("a")
time.sleep(0.3)
os._exit(0)
"""
    )
    assert main(["recover", str(tmp_path / "out.sqlite.spool")]) == 0
    assert main(["lines", str(tmp_path / "out.sqlite")]) == 0
    assert "the recording was cut off before its end" in capsys.readouterr().out
    with closing(sqlite3.connect(tmp_path / "out.sqlite")) as file:
        assert file.execute("SELECT count(*) FROM PYREC_LAUNCH").fetchone() == (10,)


KILLED_CONVERSION = """
import random, signal, sqlite3, ctypes
from profiling_lab.recording import Recorder
from profiling_lab.recording.convert import convert
import adbc_driver_sqlite.dbapi, pyarrow
recorder = Recorder(OUT); recorder.start()
for i in range(300): fake.kernel(f"kernel_{i}")
os.link(OUT + ".spool", "kept")
recorder.stop(); os.unlink(OUT)
calls, killed = 0, 0
tracer = random.Random(2)
for attempt in range(25):
    os.link("kept", OUT + ".spool")
    child = os.fork()
    if child == 0:
        # At a random Python call of the conversion: no clock decides where.
        left = tracer.randrange(4000)
        def at_a_call(*_):
            global calls
            calls += 1
            if calls > left: os.kill(os.getpid(), signal.SIGKILL)
        sys.setprofile(at_a_call)
        convert(OUT + ".spool", OUT, overwrite=False)
        os._exit(0)
    tracer.random()
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert ended in (0, -signal.SIGKILL), ended
    killed += ended != 0
    assert os.path.samefile("kept", OUT + ".spool")
    if os.path.exists(OUT):  # it was whole when it got its name
        with sqlite3.connect(OUT) as file:
            assert file.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            assert file.execute("SELECT count(*) FROM PYREC_LAUNCH").fetchall() == [(300,)]
        os.unlink(OUT)
    assert convert(OUT + ".spool", OUT, overwrite=False).rows["PYREC_LAUNCH"] == 300
    assert not os.path.exists(OUT + ".tmp")
    os.unlink(OUT); os.unlink(OUT + ".spool")
assert killed >= 10, killed
"""


def test_killed_while_it_converts_nothing_is_lost(run: Any) -> None:
    run(KILLED_CONVERSION, timeout=600)


FULL = """
    #define _GNU_SOURCE
    #include <dlfcn.h>
    #include <errno.h>
    #include <sys/uio.h>
    #include <unistd.h>
    static long left = LIMIT;
    template <class F> static F* next(const char* name) { return (F*)dlsym(RTLD_NEXT, name); }
    extern "C" ssize_t writev(int file, const struct iovec* parts, int count) {
      static auto* const real = next<ssize_t(int, const struct iovec*, int)>("writev");
      long bytes = 0;
      for (int i = 0; i < count; ++i) bytes += parts[i].iov_len;
      if (left <= 0) { errno = ENOSPC; return -1; }
      left -= bytes;
      if (left >= 0) return real(file, parts, count);
      iovec some = {parts[0].iov_base, parts[0].iov_len / 2 + 1};  // a disk takes what it has room for
      left = 0;
      return real(file, &some, 1);
    }
"""


def test_a_disk_that_is_full_in_the_middle_of_a_block(run: Any, preload: Any, query: Any) -> None:
    """What was captured before is in the recording, which says what it lacks."""
    run(
        """
with profiling_lab.record(OUT, flush_period_ms=20) as recorder:
    fake.kernel("early")
    while int(profiling_lab._recorder.status()["kernels"]) < 1: time.sleep(0.01)
    for _ in range(2000): fake.kernel("late")
assert recorder.summary.reasons["write"].startswith("No space left on device"), recorder.summary
assert recorder.summary.dropped > 0 and recorder.summary.reasons["capture"], recorder.summary
assert not os.path.exists(OUT + ".spool")
""",
        env=preload(FULL.replace("LIMIT", "20000")),
    )
    assert query("SELECT count(*) FROM PYREC_LAUNCH")[0][0] >= 1
    facts = dict(query("SELECT name, value FROM PYREC_META"))
    assert int(facts["unwritten_records"]) > 0 and facts["write_error"] == "No space left on device"


def _may_mount() -> bool:
    unshare = shutil.which("unshare")
    command = [unshare or "", "-rm", "mount", "-t", "tmpfs", "none", "/mnt"]
    return unshare is not None and subprocess.run(command, capture_output=True).returncode == 0


def test_a_disk_without_room_for_the_file(run: Any, tmp_path: Path) -> None:
    """A real one, of 256 KB: the capture fits, the SQLite file does not."""
    if not _may_mount():
        pytest.skip("no file system may be mounted here")
    run(
        """
import subprocess, shutil
os.mkdir("disk"); subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", "disk"], check=True)
recorder = profiling_lab.recording.Recorder("disk/out.sqlite"); recorder.start()
for i in range(400): fake.kernel(f"kernel_{i}")
try: recorder.stop()
except profiling_lab.errors.LabError as error:
    assert "cannot write" in str(error) and "the capture is kept in" in str(error), error
else: raise SystemExit("no error")
assert os.listdir("disk") == ["out.sqlite.spool"], os.listdir("disk")
shutil.copy("disk/out.sqlite.spool", "copy.spool")
""",
        under=("unshare", "-rm"),
    )
    assert convert(tmp_path / "copy.spool", tmp_path / "copy.sqlite").rows["PYREC_LAUNCH"] == 400
