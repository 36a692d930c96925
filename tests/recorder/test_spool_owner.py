# SPDX-License-Identifier: Apache-2.0
"""Its files belong to one recording alone: two recordings, a killed one, links, a program that closes files."""

from __future__ import annotations

from typing import Any

import pytest

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
        assert "is being written by a recording that runs (process %d)" % os.getppid() in str(error), error
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
