# SPDX-License-Identifier: Apache-2.0
"""Judge a benchmark by what it does: it runs on simulated devices that note every call and clock reading.

Nothing here depends on how fast this machine is. Each reported time must be the difference of two readings of
the device's clock, so the calls between them are known, and with them the errors of the measurement.
"""

from __future__ import annotations

import itertools
import math
import secrets
import statistics
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from profiling_lab.exercises.exercise import GradedCheck, failed, not_checked, passed
from profiling_lab.exercises.program_repair import load

FOLDER = Path(__file__).parent
PROGRAM = "benchmark.py"
NAMES = ("old", "new")
LEAST_TIMES = 20
EXACT = 1e-9  # a reported time is a difference of two clock readings, in other units
STATISTIC_SLACK_FRAC = 0.03
TRUTH_SLACK_FRAC = 0.1
LEAST_SWITCHES_FRAC = 0.25

ERRORS = (
    "no-synchronisation",
    "no-warm-up",
    "input-in-the-time",
    "different-dtype",
    "warm-cache",
    "one-after-the-other",
    "wrong-statistic",
)
"""what can be wrong with a benchmark, and can be seen in what it does"""


@dataclass(slots=True)
class Interval:
    """What happened between two readings of the clock that follow each other."""

    begin_s: float
    is_busy: bool
    """the GPU still had work when the clock was read, at the beginning or at the end"""
    end_s: float = math.nan
    inputs: int = 0
    calls: list[str] = field(default_factory=list)
    dtypes: set[str] = field(default_factory=set)
    first: int = 0
    cached: int = 0


class Watched:
    """A simulated device that notes what is done with it. The program can reach nothing else of it."""

    def __init__(self, device: Any) -> None:
        intervals: list[Interval] = [Interval(math.nan, False)]
        self.intervals = intervals
        made: dict[int, Any] = {}

        def now() -> float:
            time_s: float = device.now()
            is_busy = device.free_s > time_s
            intervals[-1].end_s = time_s
            intervals[-1].is_busy |= is_busy
            intervals.append(Interval(time_s, is_busy))
            return time_s

        def make_input(dtype: str, seed: int) -> Any:
            intervals[-1].inputs += 1
            x = device.make_input(dtype, seed)
            made[id(x)] = x  # kept, so the number is not used again
            return x

        def call(name: str, x: Any) -> Any:
            if id(x) not in made:
                raise ValueError(f"{name} got something that make_input did not make")
            at = intervals[-1]
            at.calls.append(name)
            at.dtypes.add(x["dtype"])
            at.first += (name, x["dtype"]) not in device.compiled
            at.cached += device.cached == x["number"]
            return getattr(device, name)(x)

        self.now, self.make_input, self.synchronize = now, make_input, device.synchronize
        self.old, self.new = (lambda x: call("old", x)), (lambda x: call("new", x))


def checks(workspace: Path, seed: int | None = None) -> list[GradedCheck]:
    """The checks "result", "fair" and "speedup" of the learner's benchmark.py."""
    path = workspace / PROGRAM
    if not path.is_file():
        return [failed("result", f"there is no {PROGRAM} in this folder")]
    if path.read_bytes() == (FOLDER / PROGRAM).read_bytes():
        return [failed("result", f"{PROGRAM} is unchanged: nothing is repaired yet")]
    start = secrets.randbelow(2**31) if seed is None else seed
    try:
        with device_module() as device:
            program = load(path, "repaired_benchmark")
            for number, (old_ms, new_ms) in enumerate(((1.7, 0.9), (0.6, 0.9), (1.2, 1.1))):
                found, intervals = watched(program, device.SimulatedGPU(start + number, old_ms, new_ms))
                if wrong := unreal(found, intervals):
                    reason = "nothing is known about times that were not measured"
                    return [failed("result", wrong), not_checked("fair", reason)]
                if unfair := errors(found, intervals):
                    return [
                        passed("result", "every time is a difference of two clock readings"),
                        failed("fair", next(iter(unfair.values()))),
                    ]
                if not _is_near(found["speedup"], old_ms / new_ms, TRUTH_SLACK_FRAC):
                    return [
                        failed("result", "the speedup is not that of this device: are any calls left out?")
                    ]
    except (
        Exception,
        SystemExit,
    ) as error:  # a learner's code may raise anything, and the learner must see it
        return [failed("result", f"{PROGRAM} raises {type(error).__name__}: {error}")]
    return [
        passed("result", "every time is a difference of two clock readings"),
        passed("fair", "on three simulated devices, one of which has a slower new implementation"),
    ]


@contextmanager
def device_module() -> Iterator[ModuleType]:
    """The exercise's own device.py under the name that benchmark.py imports."""
    before = sys.modules.get("device")
    module = load(FOLDER / "device.py", "device")
    sys.modules["device"] = module
    try:
        yield module
    finally:
        del sys.modules["device"]
        if before is not None:
            sys.modules["device"] = before


def watched(program: ModuleType, device: Any) -> tuple[Mapping[str, Any], list[Interval]]:
    """What `compare` returns on this device, and what it did there."""
    watching = Watched(device)
    found = program.compare(watching)
    return found, watching.intervals


def unreal(found: Mapping[str, Any], intervals: list[Interval]) -> str:
    """Why these are not measured times of both implementations; empty if they are."""
    if not isinstance(found, Mapping) or not {"old_ms", "new_ms", "speedup"} <= found.keys():
        return "compare must return old_ms, new_ms and speedup"
    for name in NAMES:
        times = found[f"{name}_ms"]
        if len(times) < LEAST_TIMES:
            return f"{name}_ms holds {len(times)} times, expected at least {LEAST_TIMES}"
        if missing := len(times) - len(timed(found, name, intervals)):
            return (
                f"{missing} of the times in {name}_ms are not the time between two clock readings "
                f"in which only {name} was called"
            )
    return ""


def timed(found: Mapping[str, Any], name: str, intervals: list[Interval]) -> list[tuple[int, Interval]]:
    """For each reported time its interval, in order, as far as they can be found."""
    out: list[tuple[int, Interval]] = []
    at = 0
    for time_ms in found[f"{name}_ms"]:
        for number in range(at, len(intervals)):
            each = intervals[number]
            if set(each.calls) == {name} and _is_its_time(time_ms / 1e3, each):
                out.append((number, each))
                at = number + 1
                break
    return out


def _is_its_time(time_s: float, each: Interval) -> bool:
    """Of one call, or of all of them."""
    took_s = each.end_s - each.begin_s
    return any(_is_near(time_s, took_s / calls, EXACT) for calls in {1, len(each.calls)})


def _is_near(given: float, true: float, slack_frac: float) -> bool:
    return abs(given - true) <= slack_frac * abs(true)


def errors(found: Mapping[str, Any], intervals: list[Interval]) -> dict[str, str]:
    """The errors of the measurement, by their names in ERRORS, each with what was seen."""
    of = {name: timed(found, name, intervals) for name in NAMES}
    every = [each for name in NAMES for _, each in of[name]]
    seen: dict[str, str] = {}
    if busy := sum(each.is_busy for each in every):
        seen["no-synchronisation"] = f"in {busy} of the times, the clock is read while the GPU still has work"
    if first := sum(each.first for each in every):
        seen["no-warm-up"] = f"{first} of the times hold the first call of an implementation"
    if inputs := sum(each.inputs for each in every):
        seen["input-in-the-time"] = f"{inputs} inputs are made within the times"
    old, new = ({dtype for _, each in of[name] for dtype in each.dtypes} for name in NAMES)
    if old != new:
        seen["different-dtype"] = f"old gets {_named(old)}, new gets {_named(new)}"
    warm = [
        sum(e.cached for _, e in of[name]) / max(sum(len(e.calls) for _, e in of[name]), 1) for name in NAMES
    ]
    if abs(warm[0] - warm[1]) > 0.1:
        seen["warm-cache"] = (
            f"{100 * warm[0]:.0f} % of old's calls and {100 * warm[1]:.0f} % of new's find their input in "
            "the cache"
        )
    order = [name for _, name in sorted((number, name) for name in NAMES for number, _ in of[name])]
    switches = sum(a != b for a, b in itertools.pairwise(order))
    if switches < LEAST_SWITCHES_FRAC * len(order):
        seen["one-after-the-other"] = (
            f"of {len(order)} times in order, the other implementation follows {switches} times only: the "
            "clock rate has changed"
        )
    median = statistics.median(found["old_ms"]) / statistics.median(found["new_ms"])
    if not _is_near(found["speedup"], median, STATISTIC_SLACK_FRAC):
        seen["wrong-statistic"] = (
            "the speedup is moved by a few of the times: it is not the ratio of typical ones"
        )
    return {name: seen[name] for name in ERRORS if name in seen}


def _named(dtypes: set[str]) -> str:
    return " and ".join(sorted(dtypes))
