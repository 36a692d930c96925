# SPDX-License-Identifier: Apache-2.0
"""Grade E37. Rounds on the GPU were measured with and without their defect; the sampled one is recomputed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePath

from profiling_lab.analysis.lines_host import host_stacks
from profiling_lab.exercises.answers import Answers
from profiling_lab.exercises.entries import entry
from profiling_lab.exercises.exercise import Exercise, GradedCheck, Mistake, failed, passed
from profiling_lab.trace import Trace

ENTRY = entry("profile-before-source")
PROGRAMS = ("a", "b", "c")
CAUSES = (
    "many small kernels",
    "waits for the GPU",
    "pageable copy",
    "copy without overlap",
    "garbage collection",
    "data loading",
    "host work",
    "layout copies",
    "no tensor cores",
    "double precision",
    "memory-bound kernels",
)
SLACK = 8.0
"""per cent of a step, or of the run"""
NEAR_LINES = 4


@dataclass(frozen=True, slots=True)
class Known:
    """What is known about one round."""

    program: str
    lines: tuple[int, ...]
    """any of them is right"""
    recorded: tuple[str, str, str]
    """the programs of benchmarks/diagnosis in the order of their letters; empty: those in solutions/"""
    cause: str = ""
    """empty: the function that the line calls, from the samples"""
    step_ms: float = 0.0
    """measured on the H200, without a recorder"""
    repaired_ms: float = 0.0


KNOWN = {
    "round1": Known(
        "b",
        (61,),
        ("healthy_mlp", "garbage_collection", "healthy_logging"),
        "garbage collection",
        229.054,
        1.785,
    ),
    "round2": Known(
        "c",
        (35, 36),
        ("healthy_inference", "healthy_tf32", "fp32_products"),
        "no tensor cores",
        67.058,
        7.577,
    ),
    "round3": Known(
        "a",
        (51,),
        ("pageable_upload", "healthy_prefetched", "healthy_convolutions"),
        "pageable copy",
        16.29,
        4.153,
    ),
    "round4": Known("b", (30,), ("", "", "")),
}


def recording(name: str, program: str) -> Path:
    """The trace of one program of a round."""
    kind = "h200" if KNOWN[name].cause else "cpu"
    return ENTRY.folder / "recorded" / f"{name}_{program}_{kind}.sqlite"


def source(name: str) -> Path:
    """The slow program of a round."""
    return ENTRY.folder / "solutions" / f"{name}_{KNOWN[name].program}.py"


@cache
def sampled(path: Path, line: int) -> tuple[float, str]:
    """The percentage of samples below this line of the program, and the function that it calls most."""
    everything = below = 0
    called: dict[str, int] = {}
    with Trace.open(path) as trace:
        for stack in host_stacks(trace):
            everything += stack.ns
            numbers = [
                number
                for number, frame in enumerate(stack.frames)
                if PurePath(frame.file).name == "program.py" and frame.line == line
            ]
            if not numbers:
                continue
            below += stack.ns
            inner = stack.frames[numbers[0] - 1] if numbers[0] else None
            if inner is not None:
                name = f"{PurePath(inner.file).stem}.{inner.function}"
                called[name] = called.get(name, 0) + stack.ns
    return 100 * below / everything, max(called, key=lambda name: called[name], default="")


def findings(_: Path, answers: Answers) -> list[GradedCheck]:
    """For each round: the program, its line, the cause, what a repair saves, and the evidence."""
    checks = []
    for name, known in KNOWN.items():
        checks += [
            _program(name, known, answers),
            _line(name, known, answers),
            _cause(name, known, answers),
            _lost(name, known, answers),
            _why(name, answers),
        ]
    return checks


def _program(name: str, known: Known, answers: Answers) -> GradedCheck:
    check, given = f"{name} program", (answers.text(f"{name}.program") or "").strip().lower()
    if not given:
        return failed(check, "not answered yet: which of the three programs?")
    if given not in PROGRAMS:
        return failed(check, f"{given!r} is no program of this round: write one letter")
    if given != known.program:
        return failed(check, "this one is healthy: its time goes into the work that it is for")
    return passed(check, given)


def _line(name: str, known: Known, answers: Answers) -> GradedCheck:
    check, given = f"{name} line", answers.integer(f"{name}.line")
    if given is None:
        return failed(check, "not answered yet: the line of the slow program, as the tables show it")
    if given in known.lines:
        return passed(
            check, f"line {given}: {source(name).read_text('utf-8').splitlines()[given - 1].strip()}"
        )
    if any(abs(given - line) <= NEAR_LINES for line in known.lines):
        return failed(check, "close, but the tables show the executing line: use that one")
    return failed(check, "the time is not lost on this line of the slow program")


def _cause(name: str, known: Known, answers: Answers) -> GradedCheck:
    check = f"{name} cause"
    given = " ".join((answers.text(f"{name}.cause") or "").split())
    if not known.cause:
        function = sampled(recording(name, known.program), known.lines[0])[1]
        if not given:
            return failed(check, 'not answered yet: the function that the line calls, as "module.function"')
        if given.removesuffix("()") == function:
            return passed(check, given)
        return failed(check, "the line calls another function: the outermost one below it in its samples")
    if not given:
        return failed(check, "not answered yet: one of the causes of README.md")
    if given.lower() not in {cause.lower() for cause in CAUSES}:
        return failed(check, f"{given!r} is not one of the causes of README.md")
    if given.lower() != known.cause:
        return failed(check, "something else: which table shows the time that this step loses?")
    return passed(check, given)


def _lost(name: str, known: Known, answers: Answers) -> GradedCheck:
    check, given = f"{name} lost", answers.number(f"{name}.lost")
    if given is None:
        return failed(check, "not answered yet: the part that a repair saves, in per cent")
    if known.cause:
        right = 100 * (1 - known.repaired_ms / known.step_ms)
        said = f"measured on the H200: {known.step_ms:g} ms per step, repaired {known.repaired_ms:g} ms"
    else:
        right = sampled(recording(name, known.program), known.lines[0])[0]
        said = f"recomputed {right:.1f}"
    if abs(given - right) <= SLACK and given < 100:
        return passed(check, f"{given:g} %; {said}")
    if abs(100 * given - right) <= SLACK:
        return failed(check, "write the value in per cent, not as a fraction")
    if given >= 100:
        return failed(check, "something is left: the program still has its work to do")
    return failed(check, "too much: what is left when the cause is gone?" if given > right else "too little")


def _why(name: str, answers: Answers) -> GradedCheck:
    if answers.text(f"{name}.why") is None:
        return failed(f"{name} why", "not answered yet: the evidence in your own words")
    return passed(f"{name} why", "written down; this check does not judge its content")


EXERCISE = Exercise(
    entry=ENTRY,
    question="Which of three programs is slow, on which line, and why? From the trace alone.",
    starter=("README.md", "answer.toml", "recorded"),
    findings=findings,
    repair=lambda _workspace, _answers: [],
    program=(),
    recording="recorded/round1_b_h200.sqlite",
    sources=("round1_b.py", "round2_c.py", "round3_a.py", "round4_a.py", "round4_b.py", "round4_c.py"),
    mistakes=(
        Mistake("the healthy program of the same size", {"round1.program": "c"}, "round1 program"),
        Mistake("all of them", {"round1.program": "a, b, c"}, "round1 program"),
        Mistake("the line with the most GPU time", {"round1.line": 36}, "round1 line"),
        Mistake("a symptom that is no cause", {"round1.cause": "GPU idle"}, "round1 cause"),
        Mistake("the host works, but on what?", {"round1.cause": "host work"}, "round1 cause"),
        Mistake("a fraction instead of a percentage", {"round1.lost": 0.99}, "round1 lost"),
        Mistake("nothing is left of the step", {"round1.lost": 100.0}, "round1 lost"),
        Mistake("a GPU that is busy is healthy", {"round2.program": "a"}, "round2 program"),
        Mistake("busy, so bound by memory", {"round2.cause": "memory-bound kernels"}, "round2 cause"),
        Mistake("the wait at the end of the timer", {"round2.line": 18}, "round2 line"),
        Mistake("the longest step", {"round3.program": "c"}, "round3 program"),
        Mistake("the whole copy is saved", {"round3.lost": 83.5}, "round3 lost"),
        Mistake("a pinned copy", {"round3.cause": "copy without overlap"}, "round3 cause"),
        Mistake("near the line", {"round3.line": 52}, "round3 line"),
        Mistake("the caller of the line", {"round4.line": 49}, "round4 line"),
        Mistake("parsing is known to be slow", {"round4.cause": "json.loads"}, "round4 cause"),
        Mistake("where the samples end", {"round4.cause": "inspect.getmodule"}, "round4 cause"),
        Mistake("the samples of one line of the library", {"round4.lost": 28.7}, "round4 lost"),
        Mistake("the answer of another round", {"round3.line": 61}, "round3 line"),
        Mistake("no evidence", {"round2.why": ""}, "round2 why"),
    ),
)
