# SPDX-License-Identifier: Apache-2.0
"""Its files belong to one recording: two recordings, a killed one, links, a program that closes files."""

from __future__ import annotations

from typing import Any

import pytest

from profiling_lab.recording.convert import convert

PYTHON_ERRORS = "from profiling_lab.errors import LabError, UsageError\n"

LEAVE_A_KILLED_ONE = """
child = os.fork()
if child == 0:
    recorder = profiling_lab.recording.Recorder(OUT, flush_period_ms=20); recorder.start()
    fake.kernel("of_the_killed")
    while int(profiling_lab._recorder.status()["spool_bytes"]) < 500: time.sleep(0.01)
    os._exit(9)
os.waitpid(child, 0)
spool = OUT + ".spool"
"""


def test_without_a_path_a_free_name_is_chosen_each_time(run: Any, tmp_path: Any) -> None:
    """As in a notebook's cell that is run twice."""
    run("""
open("recording-2.sqlite", "w").write("precious")
open("recording-3.sqlite.spool", "w").write("of another process")
names = []
for _ in range(2):
    with profiling_lab.record() as r:
        fake.kernel("a")
        assert r.spool_path.is_file()
    assert r.summary.path == r.path and r.path.is_file()
    names.append(r.path.name)
assert names == ["recording.sqlite", "recording-4.sqlite"], names
""")
    assert (tmp_path / "recording-2.sqlite").read_text() == "precious"
    assert (tmp_path / "recording-3.sqlite.spool").read_text() == "of another process"


def test_what_a_killed_recording_left_is_not_dropped(run: Any, tmp_path: Any) -> None:
    run(
        PYTHON_ERRORS
        + LEAVE_A_KILLED_ONE
        + """
before = open(spool, "rb").read()
try: profiling_lab.record(OUT).__enter__()
except UsageError as error:
    assert "was not finished: profiling-lab recover" in str(error) and spool in str(error), error
else: raise SystemExit("was not refused")
assert open(spool, "rb").read() == before
with profiling_lab.record(OUT, overwrite=True): fake.kernel("new")
assert not os.path.exists(spool)
"""
    )


@pytest.mark.parametrize("overwrite", [False, True])
def test_two_recordings_of_one_path(run: Any, query: Any, overwrite: bool) -> None:
    """The second is refused, whatever it allows; the first ends with its own events."""
    run(
        PYTHON_ERRORS
        + f"""
def other():
    try: profiling_lab.record(OUT, overwrite={overwrite}).__enter__()
    except UsageError as error:
        assert "is being written by a running recording (process %d)" % os.getppid() in str(error), error
        os._exit(7)
    os._exit(1)
import subprocess
if len(sys.argv) > 1: other()
with profiling_lab.record(OUT):
    fake.kernel("mine")
    code = subprocess.run([sys.executable, __file__, "other"]).returncode
    assert code == 7, code
    fake.kernel("mine")
"""
    )
    names = "SELECT value FROM CUPTI_ACTIVITY_KIND_KERNEL JOIN StringIds ON id = shortName"
    assert query(names) == [("mine",), ("mine",)]


def test_a_link_at_the_name_of_the_capture_is_not_followed(run: Any, tmp_path: Any) -> None:
    (tmp_path / "precious").write_text("kept")
    run(
        PYTHON_ERRORS
        + """
os.symlink("precious", OUT + ".spool")
for overwrite in (False, True):
    try: profiling_lab.record(OUT, overwrite=overwrite).__enter__()
    except UsageError as error: assert "a link" in str(error), error
    else: raise SystemExit("was followed")
from profiling_lab import _recorder
try: _recorder.start(spool_path=OUT + ".spool")
except RuntimeError as error: assert "File exists" in str(error), error
else: raise SystemExit("was followed")
os.unlink(OUT + ".spool")
os.symlink("precious", OUT + ".tmp")
try:
    with profiling_lab.record(OUT): fake.kernel("a")
except LabError as error: assert ".tmp is in the way" in str(error), error
else: raise SystemExit("was followed")
"""
    )
    assert (tmp_path / "precious").read_text() == "kept"
    assert (tmp_path / "out.sqlite.spool").is_file()


CLOSED = """
import fcntl, resource
with profiling_lab.record(OUT, flush_period_ms=20) as recorder:
    ours = [int(fd) for fd in os.listdir("/proc/self/fd")
            if os.path.realpath(f"/proc/self/fd/{fd}") == OUT + ".spool"]
    assert ours and min(ours) >= 512, ours  # a program that closes the first few hundred does not meet it
    fake.kernel("before")
    while int(profiling_lab._recorder.status()["kernels"]) < 1: time.sleep(0.01)
    os.closerange(3, 1 << 20)
    user = os.open("users", os.O_RDWR | os.O_CREAT)
    for number in ours: os.dup2(user, number)
    os.write(user, b"precious")
    CHANGE
    fake.kernel("after")
assert os.pread(user, 1000, 0) == b"precious"
for number in (user, *ours): os.fstat(number)  # not closed behind the program's back
"""


def test_a_program_that_closes_all_files(run: Any, query: Any) -> None:
    """The user's file with our number is left alone; the capture, opened again at its path, goes on."""
    run(CLOSED.replace("CHANGE", "pass") + "assert not recorder.summary.reasons.get('write')\n")
    names = "SELECT value FROM CUPTI_ACTIVITY_KIND_KERNEL JOIN StringIds ON id = shortName"
    assert sorted(query(names)) == [("after",), ("before",)]


def test_a_program_that_closes_all_files_and_puts_another_in_the_place(run: Any, tmp_path: Any) -> None:
    change = """os.rename(OUT + ".spool", "moved"); open(OUT + ".spool", "w").write("users too")"""
    run(
        "recorder = None\ntry:\n"
        + "\n".join("    " + line for line in CLOSED.replace("CHANGE", change).split("\n"))
        + """
except profiling_lab.errors.LabError as error:
    assert "is lost" in str(error) and "closed by the program" in str(error), error
else: raise SystemExit("nothing was said")
assert os.pread(user, 1000, 0) == b"precious"
for number in (user, *ours): os.fstat(number)
with profiling_lab.record("next.sqlite"): fake.kernel("c")
"""
    )
    assert (tmp_path / "out.sqlite.spool").read_text() == "users too"
    assert convert(tmp_path / "moved", tmp_path / "moved.sqlite").rows["CUPTI_ACTIVITY_KIND_KERNEL"] == 1


def test_what_another_put_at_the_path_is_neither_converted_nor_deleted(run: Any, query: Any) -> None:
    run("""
with profiling_lab.record(OUT):
    fake.kernel("mine")
    os.unlink(OUT + ".spool")
    open(OUT + ".spool", "w").write("of another")
assert open(OUT + ".spool").read() == "of another"
""")
    names = "SELECT value FROM CUPTI_ACTIVITY_KIND_KERNEL JOIN StringIds ON id = shortName"
    assert query(names) == [("mine",)]


def test_a_file_made_meanwhile_is_not_replaced(run: Any, tmp_path: Any) -> None:
    run(
        PYTHON_ERRORS
        + """
try:
    with profiling_lab.record(OUT):
        fake.kernel("a")
        open(OUT, "w").write("precious")
except UsageError as error: assert "created meanwhile" in str(error) and OUT + ".spool" in str(error), error
else: raise SystemExit("was replaced")
"""
    )
    assert (tmp_path / "out.sqlite").read_text() == "precious"
    assert not (tmp_path / "out.sqlite.tmp").exists()
    rows = convert(tmp_path / "out.sqlite.spool", tmp_path / "other.sqlite").rows
    assert rows["CUPTI_ACTIVITY_KIND_KERNEL"] == 1


@pytest.mark.parametrize("locks", [True, False])
def test_recover_refuses_what_is_still_written(run: Any, locks: bool) -> None:
    """Without locks on the file system, what was written to in the last minute counts as such."""
    without = (
        "import errno, fcntl\ndef none(*_): raise OSError(errno.ENOLCK, 'no locks')\nfcntl.flock = none\n"
    )
    run(
        ("" if locks else without)
        + """
from profiling_lab.cli import main
import contextlib, io
spool = OUT + ".spool"
with profiling_lab.record(OUT):
    fake.kernel("a")
    said = io.StringIO()
    with contextlib.redirect_stderr(said): code = main(["recover", spool, "-o", "x.sqlite"])
    assert code == 2
    assert f"still being written by a running recording (process {os.getpid()})" in said.getvalue()
    assert not os.path.exists("x.sqlite") and os.path.exists(spool)
"""
        + LEAVE_A_KILLED_ONE.replace("OUT", "'killed.sqlite'")
        + ("" if locks else "os.utime(spool, (1, 1))\n")
        + """
assert main(["recover", spool, "-o", "x.sqlite"]) == 0
"""
    )


def test_a_forked_child_that_lives_on_holds_no_lock(run: Any) -> None:
    run("""
from profiling_lab.recording import spool_file
begin, done = os.pipe(), os.pipe()
child = os.fork()
if child == 0:
    recorder = profiling_lab.recording.Recorder(OUT); recorder.start()
    if os.fork() == 0:
        os.write(begin[1], b"x"); os.read(done[0], 1); os._exit(0)
    os.read(begin[0], 1)
    os._exit(9)
os.waitpid(child, 0)
os.close(spool_file.open_finished(recorder_path := __import__("pathlib").Path(OUT + ".spool")))
os.write(done[1], b"x")
""")
