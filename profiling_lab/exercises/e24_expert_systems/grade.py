# SPDX-License-Identifier: Apache-2.0
"""Grade E24. The truth is known: each program was measured as it is and with its defect repaired."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePath

from profiling_lab.exercises.answers import Answers
from profiling_lab.exercises.e24_expert_systems import repair
from profiling_lab.exercises.entries import entry
from profiling_lab.exercises.exercise import Exercise, GradedCheck, Mistake, failed, passed

FOLDER = Path(__file__).parent
CAUSE, SYMPTOM, ALARM = "cause", "symptom", "false alarm"
KINDS = (CAUSE, SYMPTOM, ALARM)
NONE = "none"
LEAST_FRAC = 0.6  # of the measured gain; an estimate is at most the whole step


@dataclass(frozen=True, slots=True)
class Known:
    """What is known about one recording."""

    program: str
    """in benchmarks/diagnosis"""
    kinds: dict[str, str]
    """by rule"""
    lines: tuple[int, ...]
    """of train.py: any of them is right; none for a healthy program"""
    step_ms: float
    """measured on the H200, without a recorder"""
    repaired_ms: float


KNOWN = {
    "a": Known(
        "metrics_on_host",
        {"gap_cause": CAUSE, "low_utilisation": SYMPTOM, "dominant_line": ALARM},
        (43, 44, 45),
        17.171,
        1.613,
    ),
    "b": Known(
        "repeated_keys",
        {"layout_copies": CAUSE, "dominant_kernel": SYMPTOM, "queue_full": SYMPTOM},
        (29, 35),
        9.899,
        2.975,
    ),
    "c": Known(
        "healthy_mlp",
        {"dtype_casts": ALARM, "dominant_line": ALARM, "tiny_kernels": ALARM},
        (),
        8.608,
        8.693,
    ),
    "d": Known(
        "gradients_to_host",
        {"pageable_copy": CAUSE, "low_utilisation": SYMPTOM, "dominant_line": SYMPTOM},
        (55, 56),
        22.368,
        2.875,
    ),
}


def findings(_: Path, answers: Answers) -> list[GradedCheck]:
    """For each recording: every finding's kind, what to repair first, what it saves, and the evidence."""
    checks = []
    for name, known in KNOWN.items():
        checks += [_kinds(name, known, answers), _first(name, known, answers), _gain(name, known, answers)]
        checks.append(_why(name, answers))
    return checks


def _kinds(name: str, known: Known, answers: Answers) -> GradedCheck:
    check = f"{name} findings"
    given = {rule: (answers.text(f"{name}.{rule}") or "").strip().lower() for rule in known.kinds}
    if empty := [rule for rule, kind in given.items() if not kind]:
        return failed(check, f"not answered yet: {', '.join(empty)}")
    for rule, kind in given.items():
        if kind not in KINDS:
            return failed(check, f"{rule} is {kind!r}: write one of the three words of README.md")
    wrong = [rule for rule, kind in known.kinds.items() if given[rule] != kind]
    if wrong:
        return failed(check, f"{wrong[0]} is something else: {_ADVICE[given[wrong[0]]]}")
    return passed(check, f"all {len(given)}")


_ADVICE = {
    CAUSE: "would its remedy alone make the step shorter, and by how much?",
    SYMPTOM: "does its time go away when another finding is repaired?",
    ALARM: "what happens to the step if the thing that it reports is gone?",
}


def _first(name: str, known: Known, answers: Answers) -> GradedCheck:
    check, given = f"{name} first", answers.text(f"{name}.first")
    if given is None:
        return failed(check, f'not answered yet: the line to change first, as "train.py:12", or "{NONE}"')
    if given.strip().lower() == NONE:
        if not known.lines:
            return passed(check, "nothing to repair")
        return failed(check, "there is something to repair: which finding would shorten the step?")
    file, _, line = PurePath(given.strip()).name.partition(":")
    if not known.lines:
        return failed(check, "changing that line was measured, and the step stayed the same")
    if file == "train.py" and line.isdecimal() and int(line) in known.lines:
        return passed(check, f"{file}:{line}")
    return failed(check, f"{given!r} is not a line whose change shortens the step by much")


def _gain(name: str, known: Known, answers: Answers) -> GradedCheck:
    check, given = f"{name} gain", answers.number(f"{name}.gain_ms") or 0.0
    measured = f"measured on the H200: {known.step_ms:g} ms per step, repaired {known.repaired_ms:g} ms"
    gain_ms = known.step_ms - known.repaired_ms
    if not known.lines:
        if not given:
            return passed(check, f"nothing; {measured}")
        return failed(check, "costs are what a remedy could save at most, and here it saves nothing")
    if not given:
        return failed(check, "not answered yet: how many ms a step would save")
    if given > known.step_ms:
        return failed(
            check, "more than the whole step: a total, or costs of two findings that are the same time"
        )
    if given < LEAST_FRAC * gain_ms:
        return failed(check, "less than the repair saved: what is left of the step if the cause is gone?")
    return passed(check, f"{given:g} ms; {measured}")


def _why(name: str, answers: Answers) -> GradedCheck:
    if answers.text(f"{name}.why") is None:
        return failed(f"{name} why", "not answered yet: the evidence in your own words")
    return passed(f"{name} why", "written down; this check does not judge its content")


def _rule(old: str, new: str) -> dict[str, str]:
    """The right rule with a mistake."""
    text = (FOLDER / "solutions" / repair.FILE).read_text(encoding="utf-8")
    if old not in text:
        raise LookupError(f"{old!r} is not in the solution")
    return {repair.FILE: text.replace(old, new)}


FIRES, SILENT, COUNTS = repair.CHECKS

EXERCISE = Exercise(
    entry=entry("expert-systems"),
    question="Which finding is the cause, which a symptom, and which a false alarm?",
    starter=("README.md", "my_rules.py", "answer.toml", "recorded"),
    findings=findings,
    repair=lambda workspace, _: repair.checks(workspace),
    program=(),
    recording="recorded/a_h200.sqlite",
    mistakes=(
        Mistake("low utilisation is never the reason", {"a.low_utilisation": CAUSE}, "a findings"),
        Mistake("the line with most GPU time", {"a.dominant_line": CAUSE}, "a findings"),
        Mistake("the line with most GPU time first", {"a.first": "train.py:36"}, "a first"),
        Mistake("the total of the recording", {"b.gain_ms": 125.739}, "b gain"),
        Mistake("the wait at the end of the timer", {"b.first": "train.py:18"}, "b first"),
        Mistake("a full launch queue is a false alarm", {"b.queue_full": ALARM}, "b findings"),
        Mistake("every finding is a problem", {"c.dtype_casts": CAUSE}, "c findings"),
        Mistake("something must be wrong", {"c.first": "train.py:35"}, "c first"),
        Mistake("the sum of all costs", {"c.gain_ms": 8.1}, "c gain"),
        Mistake("costs of the same time added", {"d.gain_ms": 25.848}, "d gain"),
        Mistake("nothing to repair", {"d.first": NONE}, "d first"),
        Mistake("a kind that does not exist", {"d.pageable_copy": "problem"}, "d findings"),
        Mistake("no evidence", {"c.why": ""}, "c why"),
        Mistake("large copies count too", {}, COUNTS, _rule(" & (operations.size_bytes < view[SMALL])", "")),
        Mistake("copies within the GPU count too", {}, COUNTS, _rule(" & with_host", "")),
        Mistake("a cost from one recording", {}, COUNTS, _rule("int(took_ns.sum())", "1_000_000")),
        Mistake("no line", {}, COUNTS, _rule("view.hottest_line(rows, took_ns)", "None")),
        Mistake("a threshold that cannot be set", {}, SILENT, _rule("< view[MANY]", "< 3")),
        Mistake("never fires", {}, FIRES, _rule("if len(rows) < view[MANY]", "if True")),
        Mistake("an answer for every recording", {}, SILENT, _rule("return ()", "return None")),
    ),
)
