# SPDX-License-Identifier: Apache-2.0
"""`profiling-lab record PROGRAM` behaves as PROGRAM: its output, its signals, its exit code."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from recorder.jobs import PYTHON, TRAIN, Job, not_ours, prepare, said


@pytest.fixture
def job(tmp_path: Path, fake_library: Path) -> Job:
    return prepare(tmp_path, fake_library)


def test_pytest_from_path(job: Job) -> None:
    job.write("test_gpu.py", TRAIN + "def test_it(): assert False\n")
    command = ("pytest", "-q", "-p", "no:cacheprovider", "test_gpu.py")
    done = job.record(*command)
    assert done.returncode == 1 and "1 failed" in done.stdout, done.stderr
    assert job.files() == {"pytest.sqlite": 2}


PROGRAMS = {
    "python": ["python", "train.py"],
    "console script": ["./tool"],
    "shell script": ["./run.sh"],
    "shell": ["sh", "-c", "python train.py"],
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_programs(job: Job, program: str) -> None:
    job.write("tool", f"#!{PYTHON}\n{TRAIN}")
    job.write("run.sh", "#!/bin/sh\nexec python train.py\n")
    done = job.record("-o", "run.sqlite", *PROGRAMS[program])
    assert done.returncode == 0 and not_ours(done) == "", done.stderr
    assert job.files() == {"run.sqlite": 2}
    assert said(done).startswith(f"profiling-lab: recorded 1 process of {PROGRAMS[program][0]}: run.sqlite (")


def test_what_was_captured_says_its_own_script(job: Job) -> None:
    job.write("other.py", TRAIN)
    done = job.record("sh", "-c", "python train.py; python other.py; python train.py")
    assert done.returncode == 0, done.stderr
    assert job.files() == {"train.sqlite": 2, "other.sqlite": 2, "train-2.sqlite": 2}
    assert job.meta("other.sqlite")["script"] == "other.py"


ENDINGS = {"exit 0": 0, "exit 7": 7, "kill -9 $$": 128 + 9, "kill -TERM $$": 128 + 15, "kill -INT $$": -2}


@pytest.mark.parametrize("ending", ENDINGS)
def test_output_and_exit_code_are_the_programs(job: Job, ending: str) -> None:
    done = job.record("sh", "-c", f"echo out; echo err >&2; {ending}")
    assert done.returncode == ENDINGS[ending]
    assert done.stdout == "out\n" and not_ours(done) == "err\n"
    assert said(done).startswith("profiling-lab: recorded nothing: no process of sh used the GPU")
    assert job.files() == {}


def launch(job: Job, code: str, *options: str) -> subprocess.Popen[str]:
    """A recorded Python program that has said that it is ready."""
    job.write("program.py", code)
    process = subprocess.Popen(
        [PYTHON, "-m", "profiling_lab", "record", *options, "python", "program.py"],
        cwd=job.folder,
        env=job.environ(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # whatever this one was started with
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process


HANDLES = """
import os, signal, sys, time
def handle(number, frame):
    os.write(1, b"got %d\\n" % number); sys.exit(9)
signal.signal(signal.{name}, handle)
os.write(1, b"ready\\n")  # not print(), which a handler may interrupt
while True: time.sleep(0.01)  # a signal just before a long sleep would wait for its end
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGUSR1", "SIGINT"])
def test_a_signal_goes_to_the_program(job: Job, name: str) -> None:
    process = launch(job, HANDLES.format(name=name))
    number = getattr(signal, name)
    process.send_signal(number)
    out, err = process.communicate(timeout=600)
    assert (process.returncode, out) == (9, f"got {int(number)}\n"), err


@contextmanager
def at_a_terminal(job: Job, code: str) -> Iterator[tuple[subprocess.Popen[str], Callable[[], object]]]:
    """The recorded program at a terminal of its own, and what presses Ctrl-C there."""
    keyboard, terminal = os.openpty()
    job.write("program.py", code)
    process = subprocess.Popen(
        ["setsid", "--ctty", PYTHON, "-m", "profiling_lab", "record", "python", "program.py"],
        cwd=job.folder,
        env=job.environ(),
        stdin=terminal,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # whatever this one was started with
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        yield process, lambda: os.write(keyboard, b"\x03")
    finally:
        process.kill()
        os.close(keyboard)
        os.close(terminal)


def test_ctrl_c_ends_both_and_the_file_is_written(job: Job) -> None:
    code = f"""{TRAIN}
import time
try:
    print("ready", flush=True)
    while True: time.sleep(0.01)
finally:
    print("cleaned up", flush=True)
"""
    with at_a_terminal(job, code) as (process, press_ctrl_c):
        press_ctrl_c()
        out, err = process.communicate(timeout=600)
        assert process.returncode == -signal.SIGINT and out == "cleaned up\n", err
    assert err.count("KeyboardInterrupt") == 1, err
    assert job.files() == {"program.sqlite": 2}


def test_ctrl_c_comes_once(job: Job) -> None:
    """The terminal has told the program already, and a second one would end its cleaning up."""
    code = """
import os, signal, sys, time
count = 0
def interrupted(*_):
    global count
    count += 1
    os.write(1, b"%d\\n" % count)
signal.signal(signal.SIGINT, interrupted)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(count))
os.write(1, b"ready\\n")  # not print(), which a handler may interrupt
while True: time.sleep(0.01)
"""
    with at_a_terminal(job, code) as (process, press_ctrl_c):
        for _ in range(5):
            press_ctrl_c()
            assert process.stdout is not None and process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=600)
        assert process.returncode == 5


def test_windows_by_signal_are_opened_in_the_recorded_process(job: Job) -> None:
    """The signal that the launcher itself would die of goes to whom it is for."""
    process = launch(
        job,
        TRAIN
        + """
from profiling_lab import _recorder
import time
print("ready", flush=True)
while "windows" not in _recorder.status() or _recorder.status()["windows"] == "0": time.sleep(0.01)
cupy.Fake().kernel("in the window")
""",
        "--signal",
        "USR1",
    )
    process.send_signal(signal.SIGUSR1)
    _, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    assert job.files() == {"program.sqlite": 1}


REFUSED = {
    "unknown braces": (
        ["-o", "run.{step}.sqlite", "sh", "-c", "echo ran"],
        2,
        "{step} in run.{step}.sqlite is",
    ),
    "unknown braces of a script": (["-o", "{x}.sqlite", "train.py"], 2, "{x} in {x}.sqlite is unknown"),
    "no such folder": (["-o", "no/run.sqlite", "sh", "-c", "echo ran"], 2, "the folder no does not exist"),
    "name taken": (["-o", "old.sqlite", "sh", "-c", "echo ran"], 2, "old.sqlite exists already"),
    "no children": (["--no-children", "sh", "-c", "echo ran"], 2, "--no-children leaves nothing"),
    "status": (["--status", "1", "sh", "-c", "echo ran"], 2, "--status works only with a Python script"),
    "nothing of this name": (["no-such-program"], 4, "there is no script no-such-program (looked in "),
    "a bad interpreter": (["./bad"], 1, "cannot start"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_before_anything_starts(job: Job, case: str) -> None:
    arguments, code, sentence = REFUSED[case]
    job.write("bad", "#!/no/such/interpreter\n")
    (job.folder / "old.sqlite").touch()
    done = job.record(*arguments)
    assert done.returncode == code, done.stderr
    assert sentence in done.stderr and "Traceback" not in done.stderr
    assert done.stdout == ""
