# SPDX-License-Identifier: Apache-2.0
"""How every command ends where its output does, or its user's patience."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from builders import TraceBuilder
from package_root import PACKAGE_ROOT

from profiling_lab.cli import main

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(PACKAGE_ROOT)}


def test_a_full_disk_is_one_sentence(tmp_path: Path) -> None:
    trace = TraceBuilder().launch("gemm", 1000, stack="/app/train.py:5 main").write(tmp_path / "run.sqlite")
    command = [sys.executable, "-m", "profiling_lab", "lines", str(trace)]
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT, cwd="/", timeout=600
        )
    assert (done.returncode, done.stderr) == (4, "profiling-lab lines: No space left on device\n")


def test_a_closed_standard_output_is_one_sentence(tmp_path: Path) -> None:
    trace = TraceBuilder().launch("gemm", 1000, stack="/app/train.py:5 main").write(tmp_path / "run.sqlite")
    command = 'exec "$0" -m profiling_lab lines "$1" >&-'
    done = subprocess.run(
        ["sh", "-c", command, sys.executable, str(trace)],
        stderr=subprocess.PIPE, text=True, env=ENVIRONMENT, cwd="/", timeout=600,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (4, "profiling-lab lines: Bad file descriptor\n")


def test_a_reader_that_leaves_is_no_error(tmp_path: Path) -> None:
    trace = TraceBuilder().launch("gemm", 1000, stack="/app/train.py:5 main").write(tmp_path / "run.sqlite")
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "profiling_lab", "lines", str(trace)]
    done = subprocess.run(
        command, stdout=writer, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT, cwd="/", timeout=600
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


def test_ctrl_c_ends_a_command_without_a_traceback() -> None:
    code = """
import os, signal
from profiling_lab import cli
from profiling_lab.cli import info
signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever this process was started with
info.run = lambda args: os.kill(os.getpid(), signal.SIGINT)
cli.main(["info", "run.sqlite"])
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=ENVIRONMENT, cwd="/", timeout=600
    )
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")


@pytest.mark.parametrize(
    "words",
    [
        ("lines", "run.sqlite", "--limit", "many"),
        ("lines", "run.sqlite", "--depth", "deep"),
        ("lines", "run.sqlite", "--tree", "--min-share", "most"),
        ("copies", "run.sqlite", "--peak", "fast"),
        ("record", "--max-size", "huge", "train.py"),
        ("record", "--status", "often", "train.py"),
    ],
    ids=" ".join,
)
def test_a_value_that_is_not_a_number_names_what_was_expected(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(list(words))
    said = capsys.readouterr().err.splitlines()[-1]
    assert end.value.code == 2
    assert "expected" in said or "invalid int value" in said
    assert "invalid _" not in said


LONG = "x" * 300  # no file system has a file of this name: asking for it fails as a denied folder does


@pytest.mark.parametrize(
    ("command", "status"),
    [
        (["lines", LONG], 4),
        (["info", f"{LONG}/run.sqlite"], 4),
        (["check", LONG], 4),
        (["ranks", LONG], 4),
        (["ranks", "RUN", LONG], 4),
        (["report", "RUN", "-o", LONG], 2),
        (["report", "RUN", "-o", f"{LONG}/page.html"], 2),
        (["export", "RUN", "--to", "speedscope", "-o", LONG], 2),
    ],
)
def test_what_is_denied_is_no_finding(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: list[str], status: int
) -> None:
    run = TraceBuilder().launch("k", 1000, stack="/app/a.py:3 f").write(tmp_path / "run.sqlite")
    assert main([str(run) if word == "RUN" else word for word in command]) == status
    err = capsys.readouterr().err.splitlines()[-1]
    assert "File name too long" in err and ("cannot be read" in err or "cannot be written" in err)


THREADS = """
import os, sys
from profiling_lab import cli
own, sys.argv = sys.argv[1] == "argv", sys.argv[1:]
status = cli.main() if own else cli.main(sys.argv[1:])
print(status, len(os.listdir("/proc/self/task")), os.environ.get("OPENBLAS_NUM_THREADS"))
"""


def test_a_table_starts_no_threads_of_openblas(tmp_path: Path) -> None:
    """And leaves the environment, a user's choice and a calling program's numpy as they are."""
    trace = TraceBuilder().launch("gemm", 1000, stack="/app/train.py:5 main").write(tmp_path / "run.sqlite")

    def threads(how: str, **more: str) -> tuple[int, str]:
        unset = {name: text for name, text in ENVIRONMENT.items() if name != "OPENBLAS_NUM_THREADS"}
        command = [sys.executable, "-c", THREADS, how, "info", str(trace)]
        done = subprocess.run(
            command, capture_output=True, text=True, env=unset | more, cwd="/", timeout=600, check=True
        )
        status, count, variable = done.stdout.splitlines()[-1].split()
        assert status == "0"
        return int(count), variable

    quiet, loud = threads("argv"), threads("argv", OPENBLAS_NUM_THREADS="2")
    assert (quiet[1], loud[1]) == ("None", "2")
    called = threads("called")
    assert called[1] == "None"
    if loud[0] == called[0] == 1:
        pytest.skip("this numpy starts no threads")
    assert quiet[0] < loud[0] or quiet[0] < called[0]
