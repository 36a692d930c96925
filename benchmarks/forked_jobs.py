# SPDX-License-Identifier: Apache-2.0
"""Jobs of several processes, forked from one that has imported what they need, with a limit on everything.

Starting a job with torchrun takes most of ten seconds for imports alone. Here the processes of a job find the
environment that torchrun would give them, do one piece of work after the other, and say what came of each.
Where one fails, hangs or dies, all of the job's processes end, and another job goes on with the rest.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

_END_WITH_PARENT = 1
"""PR_SET_PDEATHSIG of prctl"""

_MOST_STARTS = 2
"""jobs in a row that could not be set up: then no other is started"""

Work = Callable[[str], Any]
"""does the piece of this name on this rank, and returns what can be written as JSON"""


@dataclass(frozen=True)
class Outcome:
    """What came of one piece of work."""

    name: str
    results: tuple[Any, ...] = ()
    """of each rank, where all of them were done"""
    failure: str = ""
    seconds: float = 0.0


@dataclass
class _Process:
    pid: int
    """0 once it was waited for"""
    group: int
    pipe: int
    text: bytes = b""
    done: dict[str, Any] = field(default_factory=dict)
    failure: str = ""
    ended: bool = False


def run(
    start: Callable[[], Work],
    names: Sequence[str],
    ranks: int,
    log: Path,
    *,
    environment: Mapping[str, str] | None = None,
    start_s: float = 60,
    piece_s: float = 40,
    until: float = float("inf"),
) -> Iterator[Outcome]:
    """Do these pieces of work, in order, each on all ranks at once.

    start: called in each process, after the fork; sets it up and returns what does a piece. log: the file
    that gets what the processes print. start_s, piece_s: how long setting up, and a piece, may take. until:
    the moment of time.monotonic() from which on no piece begins, and at which one that runs is ended.
    """
    left, not_started, why = list(names), 0, "the time was over"
    while left and time.monotonic() < until and not_started < _MOST_STARTS:
        job = _started(start, left, ranks, log, dict(environment or {}))
        try:
            for outcome in _outcomes(job, left, start_s, piece_s, until):
                left.remove(outcome.name)
                yield outcome
                if outcome.failure:
                    break
        finally:
            _end(job)
        not_started = 0 if all("" in process.done for process in job) else not_started + 1
        if not_started == _MOST_STARTS:
            why = f"{_MOST_STARTS} jobs could not start"
    for name in left:
        yield Outcome(name, failure=why)


def _started(
    start: Callable[[], Work], names: Sequence[str], ranks: int, log: Path, environment: dict[str, str]
) -> list[_Process]:
    port = free_port()
    out = []
    for rank in range(ranks):
        reading, writing = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        child = os.fork()
        if child == 0:
            os.close(reading)
            environment |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
            environment |= {"LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            _be_child(start, names, writing, log, environment)
        os.close(writing)
        _lead_a_group(child)
        out.append(_Process(child, child, reading))
    return out


def _be_child(
    start: Callable[[], Work], names: Sequence[str], writing: int, log: Path, environment: dict[str, str]
) -> None:
    """Never returns."""
    try:
        ctypes.CDLL(None).prctl(_END_WITH_PARENT, signal.SIGKILL)
        _lead_a_group(0)
        text = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(text, 1)
        os.dup2(text, 2)
        os.environ.update(environment)
        faulthandler.enable(text)

        def say(**facts: Any) -> None:
            os.write(writing, json.dumps(facts).encode() + b"\n")

        name = ""
        try:
            work = start()
            say(name="")
            for name in names:
                print(f"== rank {environment['RANK']}: {name}", flush=True)
                say(name=name, result=work(name))
            while True:  # until it is ended: other ranks may need this one
                time.sleep(1)
        except BaseException as error:
            traceback.print_exc()
            say(name=name, failure=f"rank {environment['RANK']}: {type(error).__name__}: {error}"[-1500:])
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)


def _outcomes(
    job: list[_Process], names: Sequence[str], start_s: float, piece_s: float, until: float
) -> Iterator[Outcome]:
    with selectors.DefaultSelector() as selector:
        for process in job:
            selector.register(process.pipe, selectors.EVENT_READ, process)
        limit_s, began = start_s, time.monotonic()
        for name in list(names):
            while True:
                ready = all(name in process.done for process in job)
                # A rank that is done with this piece has failed in a later one.
                failures = [p.failure for p in job if p.failure and name not in p.done]
                over = time.monotonic() >= min(began + limit_s, until)
                died = [r for r, process in enumerate(job) if process.ended and name not in process.done]
                if ready or failures or over or died:
                    break
                _read(selector, min(began + limit_s, until))
                if limit_s == start_s and all("" in process.done for process in job):
                    limit_s, began = piece_s, time.monotonic()
            seconds = time.monotonic() - began
            if ready:
                results = tuple(process.done[name] for process in job)
                yield Outcome(name, results, seconds=seconds)
            else:
                # The other ranks often fail for the same reason, a moment later.
                late = time.monotonic() + 1
                while failures and time.monotonic() < late and not all(p.ended for p in job):
                    _read(selector, late)
                told = [p.failure for p in job if p.failure and name not in p.done]
                ends = ", ".join(f"rank {rank} {_how_it_died(job[rank])}" for rank in died)
                why = "; ".join(dict.fromkeys(told)) or ends
                if not why:
                    why = "the time was over" if time.monotonic() >= until else f"not done in {limit_s:.0f} s"
                yield Outcome(name, failure=why, seconds=seconds)
                return
            limit_s, began = piece_s, time.monotonic()


def _read(selector: selectors.BaseSelector, until: float) -> None:
    for key, _ in selector.select(max(0.0, min(until - time.monotonic(), 1.0))):
        process: _Process = key.data
        data = os.read(process.pipe, 1 << 16)
        if not data:
            process.ended = True
            selector.unregister(process.pipe)
        *lines, process.text = (process.text + data).split(b"\n")
        for facts in map(json.loads, lines):
            if "failure" in facts:
                process.failure = facts["failure"]
            else:
                process.done[facts.get("name", "")] = facts.get("result")


def _how_it_died(process: _Process) -> str:
    _, status = os.waitpid(process.pid, 0)
    process.pid = 0
    code = os.waitstatus_to_exitcode(status)
    return f"died of signal {-code}" if code < 0 else f"ended with exit code {code}"


def _end(job: list[_Process]) -> None:
    """All of its processes, and what they started."""
    if not all(process.ended for process in job):
        time.sleep(0.1)
    for process in job:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.group, signal.SIGKILL)
        os.close(process.pipe)
        if process.pid:
            os.waitpid(process.pid, 0)


def _lead_a_group(process: int) -> None:
    """So that what it starts can be ended with it. Parent and child both see to it: either may be first."""
    with contextlib.suppress(PermissionError, ProcessLookupError):
        os.setpgid(process, process)


def run_command(words: Sequence[str], log: TextIO, limit_s: float, **options: Any) -> str:
    """Run a command with a limit. Returns why it failed, "" if it did not. What it started ends with it.

    options: of Popen.
    """
    log.flush()
    with subprocess.Popen(words, stdout=log, stderr=log, start_new_session=True, **options) as process:
        try:
            code = process.wait(timeout=max(limit_s, 0))
        except subprocess.TimeoutExpired:
            code = None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    return "" if code == 0 else f"not done in {limit_s:.0f} s" if code is None else f"exit code {code}"


def free_port() -> str:
    """A port of this machine that nothing listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return str(found.getsockname()[1])
