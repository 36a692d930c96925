# SPDX-License-Identifier: Apache-2.0
"""Grade a repaired program by its work: the same result, with fewer bytecode instructions of Python.

The number of instructions does not depend on the machine or on its load, as a time does. Both programs get
the same new random data, which neither has seen, so hard-coded and cached results fail. The baseline is the
exercise's own program. Work that the count cannot see, in another process or with tracing switched off, is
refused.
"""

from __future__ import annotations

import copy
import itertools
import secrets
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from profiling_lab.exercises.exercise import GradedCheck, failed, not_checked, passed
from profiling_lab.exercises.program_repair import load

PROCESSES = ("os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system", "subprocess.Popen")


@dataclass(frozen=True, slots=True)
class Work:
    """What both programs do, and how much less of it the repaired one may need."""

    data: Callable[[ModuleType, int, bool], Any]
    """the data, from the starter, a seed, and whether it is small"""
    run: Callable[[ModuleType, Any], Any]
    """the result of a program with these data"""
    difference: Callable[[Any, Any], str]
    """the first difference of two results, "" if there is none"""
    at_most_frac: float
    """the most instructions of the repaired program, as a fraction of the starter's"""
    what: str
    """what is counted: "the documents", "a batch" """


def checks(starter: Path, repaired: Path, work: Work) -> list[GradedCheck]:
    """The checks "result" and "work"."""
    if not repaired.is_file():
        return [failed("result", f"there is no {repaired.name} in this folder")]
    if repaired.read_bytes() == starter.read_bytes():
        return [failed("result", f"{repaired.name} is unchanged: nothing is repaired yet")]
    try:
        before, after = load(starter, "starter_program"), load(repaired, "repaired_program")
        for small in (True, False):
            data = work.data(before, secrets.randbelow(2**31), small)
            old, new = (Counted(work.run, program, copy.deepcopy(data)) for program in (before, after))
            if wrong := work.difference(old.result, new.result):
                reason = "the work does not matter while the result differs"
                return [failed("result", wrong), not_checked("work", reason)]
            if new.hidden:
                return [passed("result", "the same"), failed("work", new.hidden)]
    except (
        Exception,
        SystemExit,
    ) as error:  # a learner's code may raise anything, and the learner must see it
        return [failed("result", f"{repaired.name} raises {type(error).__name__}: {error}")]
    said = f"{new.instructions:,} instructions of Python for {work.what}, {old.instructions:,} before"
    is_less = new.instructions <= work.at_most_frac * old.instructions
    goal = f"the goal is at most {100 * work.at_most_frac:g} %"
    return [
        passed("result", "the same, on new random data"),
        passed("work", said) if is_less else failed("work", f"{said}; {goal}"),
    ]


class Counted:
    """A call, its result, and how many bytecode instructions it took in all threads of this process."""

    def __init__(self, call: Callable[..., Any], *arguments: Any) -> None:
        self.hidden = ""
        """why the number does not count; empty if it does"""
        ticks = itertools.count()  # next() on it is atomic

        def trace(frame: FrameType, event: str, _: Any) -> Any:
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
            if event == "opcode":
                next(ticks)
            return trace

        before = sys.gettrace()
        threading.settrace(trace)
        sys.settrace(trace)
        _watch(self)
        try:
            self.result = call(*arguments)
        finally:
            _watch(None)
            sys.settrace(before)
            threading.settrace(before)  # type: ignore[arg-type]
        self.instructions = next(ticks)


_watching: list[Counted] = []
_hooked: list[bool] = []


def _watch(counted: Counted | None) -> None:
    """Note in `counted` what would hide work from it. An audit hook cannot be removed, so there is one."""
    _watching[:] = [counted] if counted else []
    if not _hooked:
        _hooked.append(True)
        sys.addaudithook(_audit)


def _audit(event: str, _: tuple[Any, ...]) -> None:
    if not _watching:
        return
    if event in PROCESSES:
        _watching[0].hidden = "the program starts another process: its work is still work"
    elif event == "sys.settrace" and sys._getframe(1).f_globals.get("__name__") != "threading":
        # A new thread sets its trace function, in the module threading.
        _watching[0].hidden = "the program switches off the tracing that counts its instructions"
