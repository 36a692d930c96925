# SPDX-License-Identifier: Apache-2.0
"""Grade the repaired convert.py: the same shards from a measurement that it has not seen, with far fewer
reads and writes.

The kernel itself counts the reads and writes of a process, in /proc/PID/io. Each program runs in a process of
its own and the grader reads the counter from outside, before and after `convert`. This number depends on
neither the machine nor its load. Work in further processes would not be counted, so it is refused.
"""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from profiling_lab.exercises.answers import Answers
from profiling_lab.exercises.e22_osrt_tracing.calls import NotARecordingError, by_function, read
from profiling_lab.exercises.exercise import GradedCheck, failed, not_checked, passed
from profiling_lab.exercises.program_repair import load
from profiling_lab.exercises.work_repair import PROCESSES

RECORDS = 1000
AT_MOST_FRAC = 0.05
SHARDS = 4
SAVES_AT_MOST = 4 * SHARDS
LIMIT_S = 120
CHILD = f"""
import importlib.util, json, sys
hidden = []
sys.addaudithook(lambda event, _: hidden.append(event) if event in {PROCESSES!r} else None)
spec = importlib.util.spec_from_file_location("program", sys.argv[1])
program = importlib.util.module_from_spec(spec)
spec.loader.exec_module(program)
said, sys.stdout = sys.stdout, sys.stderr
print("ready", file=said, flush=True)
sys.stdin.readline()
found = [int(each) for each in program.convert(sys.argv[2], sys.argv[3])]
print(json.dumps([found, hidden]), file=said, flush=True)
sys.stdin.readline()
"""


class ProgramError(Exception):
    """The program ended with an error; the message is for the learner."""


@dataclass(frozen=True, slots=True)
class Run:
    """What a program wrote, and how often it asked the system for it."""

    found: list[int]
    shards: dict[str, bytes]
    calls: int | None
    """reads and writes; None where the system does not count them"""
    hidden: list[str]


def checks(workspace: Path, answers: Answers, starter: Path) -> list[GradedCheck]:
    """The checks "result", "work" and "after"."""
    return [*_program(workspace / starter.name, starter), _after(workspace, answers)]


def _program(repaired: Path, starter: Path) -> list[GradedCheck]:
    if not repaired.is_file():
        return [failed("result", f"there is no {repaired.name} in this folder")]
    if repaired.read_bytes() == starter.read_bytes():
        return [failed("result", f"{repaired.name} is unchanged: nothing is repaired yet")]
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "measurement.bin"
        load(starter, "starter_program").write_records(source, RECORDS, secrets.randbelow(2**31))
        try:
            old, new = (run(program, source) for program in (starter, repaired))
        except ProgramError as error:
            return [failed("result", str(error))]
        accepts = _accepts_damage(repaired, source)
    wrong = _difference(old, new) or (f"{repaired.name} accepts a wrong checksum" if accepts else "")
    if wrong:
        return [failed("result", wrong), not_checked("work", "it does not matter while the result differs")]
    result = passed("result", "the same shards, from a new random measurement")
    if new.hidden:
        return [result, failed("work", "the program starts another process: its work is still work")]
    if old.calls is None or new.calls is None:
        return [result, not_checked("work", "this system has no /proc/PID/io, which counts reads and writes")]
    said = f"{new.calls:,} reads and writes for {RECORDS:,} records, {old.calls:,} before"
    if new.calls <= AT_MOST_FRAC * old.calls:
        return [result, passed("work", said)]
    return [result, failed("work", f"{said}; the goal is at most {100 * AT_MOST_FRAC:g} %")]


def run(program: Path, source: Path) -> Run:
    """Convert in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        child = subprocess.Popen(
            (sys.executable, "-c", CHILD, str(program), str(source), folder),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert child.stdin is not None and child.stdout is not None
        try:
            ready = child.stdout.readline()
            before = _counted(child.pid)
            if ready:
                child.stdin.write("\n")
                child.stdin.flush()
            told = child.stdout.readline()
            after = _counted(child.pid)
            _, errors = child.communicate("\n" if told else None, timeout=LIMIT_S)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            child.kill()
            _, errors = child.communicate()
            told = ""
        if not told:
            last = (errors.strip().splitlines() or ["it ended without a result"])[-1]
            raise ProgramError(f"{program.name} fails: {last}")
        found, hidden = json.loads(told)
        shards = {path.name: path.read_bytes() for path in Path(folder).glob("*") if path.is_file()}
    return Run(found, shards, None if before is None or after is None else after - before, hidden)


def _accepts_damage(program: Path, source: Path) -> bool:
    """Whether the program converts a measurement with one wrong bit in the last checksum."""
    data = bytearray(source.read_bytes())
    data[-1] ^= 1
    source.write_bytes(data)
    try:
        run(program, source)
    except ProgramError:
        return False
    return True


def _counted(pid: int) -> int | None:
    """Reads and writes of a process so far."""
    try:
        lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    except OSError:
        return None
    values = dict(line.split(": ") for line in lines)
    return int(values["syscr"]) + int(values["syscw"])


def _difference(old: Run, new: Run) -> str:
    if old.found != new.found:
        return f"convert returns {new.found}, expected {old.found}"
    if old.shards.keys() != new.shards.keys():
        return f"{sorted(old.shards.keys() ^ new.shards.keys())[0]} is missing or new"
    wrong = [name for name, data in old.shards.items() if new.shards[name] != data]
    return f"{wrong[0]} has other bytes" if wrong else ""


def _after(workspace: Path, answers: Answers) -> GradedCheck:
    """In the recording of the repaired program every shard is saved, and no more than that."""
    name = answers.text("fix.after")
    if name is None:
        return not_checked("after", "no recording of the repaired program: [fix] after (the last step)")
    try:
        number = {function: count for function, count, _ in by_function(read(workspace / name))}
    except NotARecordingError as error:
        return failed("after", str(error))
    reads, saves = number.get("read", 0), number.get("fsync", 0) + number.get("fdatasync", 0)
    said = f"{reads:,} calls of read and {saves} of fsync"
    if saves < SHARDS:
        return failed("after", f"{said}: each of the {SHARDS} shards must be saved before convert returns")
    if saves > SAVES_AT_MOST or reads > RECORDS:
        return failed("after", f"{said}: still one for every few records")
    return passed("after", said)
