# SPDX-License-Identifier: Apache-2.0
"""What a recording must not hold, and who may read its files: in every file that is ever written."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from profiling_lab.recording.convert import convert
from profiling_lab.recording.merging.merge import merge

# Values that a program has at hand while it launches. Its lines, names, files and NVTX texts are recorded.
SECRETS = {
    "MY_TOKEN": "environment-secret-1",
    "HTTPS_PROXY": "http://user:environment-secret-2@proxy",
    "WANDB_API_KEY": "environment-secret-3",
}
PROGRAM = """
import shutil, stat
os.umask(0)
TOKEN, KEY = "MY_TOKEN", "WANDB_API_KEY"  # this line runs before the recording
sys.argv += ["--api-key", "argument-secret-4", "--password=argument-secret-5"]
def layer(token, *rest, **more):
    local = token.upper().lower()
    fake.kernel("a")
    while _recorder.status().get("sample_moments", "1") == "0": sum(range(100))
    return local
class Holder:
    def __init__(self): self.token = os.environ[TOKEN]
    def __repr__(self): return self.token
    def call(self): return layer(self.token, os.environ[KEY], key=sys.argv[-1], me=self)
from profiling_lab import _recorder
from profiling_lab.recording import convert
replace, modes = os.replace, {}
def look():
    for name in os.listdir("."):
        if name.startswith("out."): modes.setdefault(name, oct(os.stat(name).st_mode & 0o777))
def looked(source, target):  # the file is whole and not yet renamed
    shutil.copyfile(source, "copy-of-the-temporary-file")
    look(); replace(source, target); look()
os.replace = looked
recorder = profiling_lab.recording.Recorder(OUT, sample_hz=1000, flush_period_ms=20, overwrite=True)
recorder.start()
Holder().call()
try: raise ValueError(os.environ[TOKEN])
except ValueError: pass
time.sleep(0.2)
shutil.copyfile(OUT + ".spool", "copy-of-the-capture")
look()
recorder.stop()
print(sorted(modes.items()))
"""


@pytest.fixture
def recorded(run: Any, tmp_path: Path) -> str:
    """The folder holds a recording of PROGRAM, its capture and its temporary file; the modes they had."""
    return str(run(PROGRAM, env=SECRETS).stdout.strip())


def test_no_environment_no_arguments_no_values(recorded: str, tmp_path: Path) -> None:
    names = ["out.sqlite", "copy-of-the-capture", "copy-of-the-temporary-file"]
    assert all((tmp_path / name).stat().st_size > 1000 for name in names)
    convert(tmp_path / "copy-of-the-capture", tmp_path / "recovered.sqlite")
    for name in (*names, "recovered.sqlite"):
        content = (tmp_path / name).read_bytes()
        assert b"layer" in content  # it is there to be found
        for secret in (b"secret-", b"argument", b"user:", b"--api-key", b"MY_TOKEN", b"WANDB"):
            assert secret not in content, (name, secret)
        for variable in ("HOSTNAME", "USER", "LOGNAME"):
            value = os.environ.get(variable, "").encode()
            assert not value or b"\0" + value + b"\0" not in content


def test_only_the_owner_may_read_any_file(recorded: str) -> None:
    """Not even with a umask of 0, nor while it is being written; SQLite has no journal next to it."""
    files = ["out.sqlite", "out.sqlite.spool", "out.sqlite.tmp"]
    assert recorded == str([(name, "0o600") for name in files])


def test_an_older_file_of_the_same_name_lends_nothing(run: Any, tmp_path: Path) -> None:
    """Neither its mode nor its readers."""
    for name in ("out.sqlite", "out.sqlite.spool"):
        (tmp_path / name).write_text("older")
        (tmp_path / name).chmod(0o666)
    reader = (tmp_path / "out.sqlite.spool").open("rb")
    done = run("""
recorder = profiling_lab.recording.Recorder(OUT, overwrite=True); recorder.start(); fake.kernel("a")
print(oct(os.stat(OUT + ".spool").st_mode & 0o777))
recorder.stop()
print(oct(os.stat(OUT).st_mode & 0o777))
""")
    assert done.stdout.split() == ["0o600", "0o600"]
    assert reader.read() == b"older"
    reader.close()


def test_recovered_and_merged_files_too(run: Any, tmp_path: Path) -> None:
    run("""
os.umask(0)
for name in ("a", "b"):
    with profiling_lab.record(OUT.replace("out", name)): fake.kernel("a")
recorder = profiling_lab.recording.Recorder(OUT, flush_period_ms=20); recorder.start(); fake.kernel("a")
time.sleep(0.2)
os._exit(0)
""")
    before = os.umask(0)
    try:
        convert(tmp_path / "out.sqlite.spool", tmp_path / "recovered.sqlite")
        parts = [tmp_path / "a.sqlite", tmp_path / "b.sqlite"]
        seen: set[int] = set()

        def told(*_: object) -> None:
            seen.update(stat.S_IMODE(path.stat().st_mode) for path in tmp_path.glob("job*"))

        merge(parts, tmp_path / "job.sqlite", told)
    finally:
        os.umask(before)
    assert seen == {0o600}
    for name in ("recovered.sqlite", "job.sqlite"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600


def test_a_child_does_not_inherit_the_capture(run: Any) -> None:
    run("""
import subprocess
with profiling_lab.record(OUT):
    fake.kernel("a")
    look = (
        "import os; there = os.listdir('/proc/self/fd'); "
        "print([os.readlink(f'/proc/self/fd/{n}') for n in there if os.path.exists(f'/proc/self/fd/{n}')])"
    )
    command = [sys.executable, "-c", look]
    seen = subprocess.run(command, capture_output=True, text=True, check=True, close_fds=False).stdout
assert "spool" not in seen, seen
""")
