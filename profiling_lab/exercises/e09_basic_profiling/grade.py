# SPDX-License-Identifier: Apache-2.0
"""Grade E09. The right answers are computed from the Chrome trace that the learner's program wrote."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath

import numpy as np

from profiling_lab.analysis.ranges.ranges import ranges
from profiling_lab.errors import LabError
from profiling_lab.exercises.answers import Answers
from profiling_lab.exercises.clinic import explanation
from profiling_lab.exercises.entries import entry
from profiling_lab.exercises.exercise import Exercise, GradedCheck, Mistake, failed, not_checked, passed
from profiling_lab.trace import Trace

ENTRY = entry("basic-profiling")
PROGRAM = "profile_training.py"
RECORDED = "recorded/trace_cpu.json.gz"
PLANTED = "aten::sort"
PHASES = ("data", "forward", "backward", "optimizer", "metrics")
STEP = re.compile(r"ProfilerStep#(\d+)")
STEPS = 3
FIRST_AT_LEAST = 3
SHARE_SLACK = 3.0
WRAPS_FRAC = 0.9


@dataclass(frozen=True, slots=True)
class Profiled:
    """What a trace of torch.profiler says about the steps in it."""

    steps: tuple[int, ...]
    step_ns: int
    phases: frozenset[str]
    """those that are in every step"""
    self_ns: Mapping[str, int]
    """of each operator, without the operators that it calls"""
    total_ns: Mapping[str, int]
    """of each operator with all that it calls; a call of itself is not counted again"""
    phase_of: Mapping[str, str]
    """of each operator the phase with most of its own time"""
    around: Mapping[str, frozenset[str]]
    """the operators that call it"""
    function_of: Mapping[str, str]
    """of each operator the function of the program that calls it; empty without Python stacks"""

    @property
    def hottest(self) -> str:
        return max(self.self_ns, key=lambda name: self.self_ns[name])


def profiled(path: Path) -> Profiled:
    """Read a trace. Raises LabError if there is none with operators."""
    with Trace.open(path) as trace:
        rows = ranges(trace, tree=True).rows
        functions = _functions(trace)
    steps, step_ns = [], 0
    in_step: dict[str, set[str]] = {}
    own: dict[str, int] = {}
    total: dict[str, int] = {}
    phase_ns: dict[str, dict[str, int]] = {}
    around: dict[str, set[str]] = {}
    for row in rows:
        spent_ns, self_ns = row.host.total, row.host_self_ns or 0
        if found := STEP.fullmatch(row.name):
            steps.append(int(found[1]))
            step_ns += spent_ns
        for parent in row.parents:
            if STEP.fullmatch(parent):
                in_step.setdefault(parent, set()).add(row.name)
        if "::" not in row.name:
            continue
        own[row.name] = own.get(row.name, 0) + self_ns
        if row.name not in row.parents:
            total[row.name] = total.get(row.name, 0) + spent_ns
        phase = next((each for each in row.parents if each in PHASES), "")
        of_phase = phase_ns.setdefault(row.name, {})
        of_phase[phase] = of_phase.get(phase, 0) + self_ns
        callers = {each for each in row.parents if "::" in each and each != row.name}
        around.setdefault(row.name, set()).update(callers)
    phases = [names & set(PHASES) for names in in_step.values()]
    return Profiled(
        tuple(sorted(steps)),
        step_ns,
        frozenset(set.intersection(*phases) if phases else ()),
        own,
        total,
        {name: max(spent, key=lambda each: spent[each]) for name, spent in phase_ns.items()},
        {name: frozenset(names) for name, names in around.items()},
        functions,
    )


def _functions(trace: Trace) -> dict[str, str]:
    found = trace.ranges
    out: dict[str, str] = {}
    for row in np.flatnonzero(found.stack > 0).tolist():
        name = found.names[found.name[row]]
        if name in out:
            continue
        for frame in trace.stacks.of(int(found.stack[row])):
            if PurePath(frame.file).name == PROGRAM:
                out[name] = frame.function
                break
    return out


def findings(workspace: Path, answers: Answers) -> list[GradedCheck]:
    """The checks "recording", "steps", "phases", "op", "share", "wrapper", "phase", "function" and
    "explanation".
    """
    name = answers.text("trace")
    path = workspace / name if name else ENTRY.folder / RECORDED
    later = ("steps", "phases", "op", "share", "wrapper", "phase", "function")
    try:
        found = profiled(path)
    except LabError as error:
        why = f"{error}. `profiling-lab exercise profile` makes a new one"
        return _unusable(why, later)
    if not found.self_ns or found.hottest != PLANTED:
        return _unusable("this trace does not show the problem: was it made after the repair?", later)
    own = name and path.resolve() != (ENTRY.folder / RECORDED).resolve()
    return [
        passed("recording", "your own" if own else "the one that came with the exercise"),
        _steps(answers, found),
        _phases(found),
        _op(answers, found),
        _share(answers, found),
        _wrapper(answers, found),
        _phase(answers, found),
        _function(answers, found),
        explanation(answers),
    ]


def _unusable(why: str, later: tuple[str, ...]) -> list[GradedCheck]:
    reason = "there is no usable trace to check it against"
    return [failed("recording", why), *(not_checked(name, reason) for name in later)]


def _steps(answers: Answers, found: Profiled) -> GradedCheck:
    """Of the trace and of the answer."""
    if not found.steps:
        return failed(
            "steps", "the trace has no step: give profile a schedule, and call its step() after every step"
        )
    first, count = found.steps[0], len(found.steps)
    if first < FIRST_AT_LEAST:
        return failed("steps", "the trace begins with the first steps, which have one-time work: skip them")
    if count != STEPS:
        return failed("steps", f"the trace has {count} steps, expected {STEPS}: active={STEPS}, repeat=1")
    given = answers.integer("profile.first_step")
    if given is None:
        return failed("steps", "not answered yet: [profile] first_step, the number of the first step")
    if given != first:
        return failed("steps", "the trace begins with another step: the names ProfilerStep# have its number")
    return passed("steps", f"{count} steps from number {first}, after the warm-up")


def _phases(found: Profiled) -> GradedCheck:
    if missing := [name for name in PHASES if name not in found.phases]:
        return failed("phases", f"not every step has a range {missing[0]}: record_function around each phase")
    return passed("phases", "each step has its five phases")


def _op(answers: Answers, found: Profiled) -> GradedCheck:
    given = answers.text("finding.op")
    if given is None:
        return failed("op", "not answered yet: [finding] op, the operator with the most self time")
    if given == found.hottest:
        return passed("op", given)
    if given not in found.self_ns:
        return failed("op", f"no operator of this trace is called {given!r}: write it as in the table")
    if found.total_ns[given] >= WRAPS_FRAC * found.total_ns[found.hottest]:
        return failed("op", f"{given} has much total time, but spends it in another operator that it calls")
    return failed("op", "another operator has more self time")


def _share(answers: Answers, found: Profiled) -> GradedCheck:
    given = answers.number("finding.self_share")
    if given is None:
        return failed(
            "share", "not answered yet: [finding] self_share, of the time of the steps, in per cent"
        )
    if not found.step_ns:
        return not_checked("share", "the trace has no step")
    true = 100 * found.self_ns[found.hottest] / found.step_ns
    if abs(given - true) <= SHARE_SLACK:
        return passed("share", f"{given:g}, recomputed {true:.1f}")
    if abs(100 * given - true) <= SHARE_SLACK:
        return failed("share", "write the value in per cent, not as a fraction")
    return failed("share", "another value: the operator's self time, of the time of all profiled steps")


def _wrapper(answers: Answers, found: Profiled) -> GradedCheck:
    given = answers.text("finding.wrapper")
    if given is None:
        return failed("wrapper", "not answered yet: [finding] wrapper, an operator that only calls the other")
    if given in found.around[found.hottest]:
        return passed("wrapper", given)
    return failed("wrapper", f"{given} does not call the operator that does the work")


def _phase(answers: Answers, found: Profiled) -> GradedCheck:
    given = answers.text("finding.phase")
    if given is None:
        return failed("phase", "not answered yet: [finding] phase, one of the five")
    right = found.phase_of[found.hottest]
    if not right:
        return not_checked("phase", "the operator is in none of the phases of this trace")
    return passed("phase", given) if given == right else failed("phase", "it runs in another phase")


def _function(answers: Answers, found: Profiled) -> GradedCheck:
    right = found.function_of.get(found.hottest)
    if right is None:
        return failed("function", "the trace has no Python stacks: with_stack=True")
    given = answers.text("finding.function")
    if given is None:
        return failed("function", f"not answered yet: [finding] function, of {PROGRAM}")
    if given.removesuffix("()") == right:
        return passed("function", given)
    return failed("function", "another function calls it: the innermost one of the program in its stack")


def repair(workspace: Path, _: Answers) -> list[GradedCheck]:
    from profiling_lab.exercises.e09_basic_profiling import repair  # imports torch: only for grading

    return repair.checks(ENTRY.folder / PROGRAM, workspace / PROGRAM)


EXERCISE = Exercise(
    entry=ENTRY,
    question="Which operator takes the time, and which steps were profiled?",
    starter=("README.md", PROGRAM, "answer.toml", "recorded"),
    findings=findings,
    repair=repair,
    program=(PROGRAM,),
    recording=RECORDED,
    rules=(),
    mistakes=(
        Mistake("the operator with the most total time", {"finding.op": "aten::argsort"}, "op"),
        Mistake("the operator that is known to be expensive", {"finding.op": "aten::mm"}, "op"),
        Mistake("an operator that is not there", {"finding.op": "aten::softmax"}, "op"),
        Mistake(
            "the total time, with a call of itself counted twice", {"finding.self_share": 146.0}, "share"
        ),
        Mistake("a fraction instead of a percentage", {"finding.self_share": 0.667}, "share"),
        Mistake("an operator that does not call it", {"finding.wrapper": "aten::linear"}, "wrapper"),
        Mistake("the operator itself", {"finding.wrapper": PLANTED}, "wrapper"),
        Mistake("another phase", {"finding.phase": "forward"}, "phase"),
        Mistake("the function that calls the function", {"finding.function": "training_step"}, "function"),
        Mistake("the first step of the program", {"profile.first_step": 1}, "steps"),
        Mistake("no cause written down", {"fix.cause": ""}, "explanation"),
    ),
    writes="trace.json",
    look="ranges --tree",
)
