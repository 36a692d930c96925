# SPDX-License-Identifier: Apache-2.0
"""Grade E07. The right answers are computed from the learner's report of ncu, with the roofs in it."""

from __future__ import annotations

from pathlib import Path

from profiling_lab.analysis.ncu.consistency import LOADS, RATE, READ, WRITTEN
from profiling_lab.analysis.ncu.report import Report
from profiling_lab.exercises import ncu_questions
from profiling_lab.exercises.answers import Answers
from profiling_lab.exercises.clinic import explanation
from profiling_lab.exercises.e07_roofline_practice import repair as script
from profiling_lab.exercises.e07_roofline_practice.reports import (
    FLOPS,
    NEAR_ROOF_FRAC,
    Point,
    moved,
    peaks,
    points,
)
from profiling_lab.exercises.entries import entry
from profiling_lab.exercises.exercise import Exercise, GradedCheck, Mistake
from profiling_lab.exercises.ncu_questions import Name, Number, Question, Source

ENTRY = entry("roofline-practice")
PLACED = ("triad", "polynomial_16", "polynomial_512", "table_sums", "chain", "product_rows", "product_tiles")
KERNELS = ("peak_copy", "peak_fma", *PLACED)
COUNTERS = (*FLOPS, READ, WRITTEN, RATE, *LOADS)
BOUNDS = ("memory", "compute", "neither")
SECTOR_BYTES = 32
UNSURE_FRAC = 0.03


def _planted(report: Report) -> str:
    found = points(report)
    for name, bound in (("triad", "memory"), ("chain", "neither")):
        if found[name].bound != bound:
            return f"{name} is bound by {found[name].bound}, not by {bound}"
    return ""


def asked_tb_s(report: Report) -> float:
    """What the threads of table_sums ask for: mostly from the caches."""
    launch = report.last("table_sums")
    return SECTOR_BYTES * launch.value(LOADS[0]) / launch.duration_ns / 1e3


def _bound(kernel: str) -> Name:
    advice = "left or right of the ridge? And does it come near to that roof?"
    return Name(f"bound.{kernel}", lambda r: _bounds(points(r)[kernel]), advice, BOUNDS)


def _bounds(point: Point) -> tuple[str, ...]:
    """The right words: two, where the share is so near to the limit that another run may have the other."""
    if abs(point.share_frac - NEAR_ROOF_FRAC) > UNSURE_FRAC:
        return (point.bound,)
    return ("neither", "memory" if point.intensity < point.ridge else "compute")


SOURCE = Source(ENTRY.folder, "roofline_kernels", KERNELS, COUNTERS, _planted)
QUESTIONS: tuple[Question, ...] = (
    Number(
        "peaks.memory_gb_s", lambda r: peaks(r).memory / 1e9,
        "peak_copy: bytes read and written over the duration",
    ),
    Number(
        "peaks.compute_tflop_s", lambda r: peaks(r).compute / 1e12,
        "peak_fma: FLOP over the duration; a fused multiply-add is two",
    ),
    Number(
        "peaks.ridge_flop_per_byte", lambda r: peaks(r).ridge, "where both roofs meet", slack_frac=0.05,
    ),
    Number(
        "triad.flop_per_byte", lambda r: points(r)["triad"].intensity,
        "FLOP over all bytes of device memory: how many arrays are there?", slack_frac=0.05,
    ),
    Number(
        "polynomial_16.flop_per_byte", lambda r: points(r)["polynomial_16"].intensity,
        "FLOP over all bytes of device memory", slack_frac=0.05,
    ),
    Number(
        "polynomial_512.share_pct", lambda r: 100 * points(r)["polynomial_512"].share_frac,
        "its FLOP per second, in per cent of the roof above it",
    ),
    Number(
        "product_tiles.tflop_s", lambda r: points(r)["product_tiles"].flops / 1e12,
        "its FLOP over its duration",
    ),
    Number(
        "product_tiles.mb_moved", lambda r: moved(r.last("product_tiles")) / 1e6,
        "bytes of device memory that it reads and writes", slack_frac=0.05,
    ),
    Number(
        "table_sums.asked_tb_s", asked_tb_s,
        "sectors of global loads, 32 bytes each, over the duration: what its threads ask for",
    ),
    *map(_bound, PLACED),
)  # fmt: skip


def findings(workspace: Path, answers: Answers) -> list[GradedCheck]:
    return [*ncu_questions.findings(SOURCE, QUESTIONS, workspace, answers), explanation(answers)]


def _script(*changes: tuple[str, str]) -> dict[str, str]:
    """The right script with a mistake."""
    text = (ENTRY.folder / "solutions" / script.FILE).read_text(encoding="utf-8")
    for old, new in changes:
        if old not in text:
            raise LookupError(f"{old!r} is not in the solution")
        text = text.replace(old, new)
    return {script.FILE: text}


WRONG_SCRIPTS = (
    ("no figure", "figure", "lines.append(f'<circle", "(f'<circle"),
    ("circles in a row", "figure", "x, y = at(each", "x, y = 80 + 9 * len(lines), 80 or at(each"),
    ("the share of the wrong roof", "share", '"share": share', '"share": rate / compute'),
    ("a kernel in the caches is memory-bound", "bound", "NEAR_ROOF = 0.55", "NEAR_ROOF = 0.01"),
    ("binary tera", "rate", '"tflops": rate / 1e12', '"tflops": rate / 2**40'),
    (
        "kernels without bytes left out",
        "points",
        '"peak_fma")\n    ]',
        '"peak_fma") and moved(launch)\n    ]',
    ),
)


EXERCISE = Exercise(
    entry=ENTRY,
    question="Where is each kernel under the roofs, and which roof binds it?",
    starter=("README.md", "roofline_kernels.cu", "Makefile", script.FILE, "answer.toml", "recorded"),
    findings=findings,
    repair=lambda workspace, _: script.checks(workspace),
    program=("./roofline_kernels", "1"),
    recording=ncu_questions.STARTER,
    counters=COUNTERS,
    mistakes=(
        Mistake("the datasheet", {"peaks.memory_gb_s": 4800.0}, "peaks.memory_gb_s"),
        Mistake("read alone", {"peaks.memory_gb_s": 2100.0}, "peaks.memory_gb_s"),
        Mistake("a multiply-add is one", {"peaks.compute_tflop_s": 30.0}, "peaks.compute_tflop_s"),
        Mistake("the ridge in GB", {"peaks.ridge_flop_per_byte": 0.0142}, "peaks.ridge_flop_per_byte"),
        Mistake("two arrays instead of three", {"triad.flop_per_byte": 0.25}, "triad.flop_per_byte"),
        Mistake("a fraction", {"polynomial_512.share_pct": 0.93}, "polynomial_512.share_pct"),
        Mistake("the bytes it asks for", {"product_tiles.mb_moved": 2164.0}, "product_tiles.mb_moved"),
        Mistake("what device memory delivers", {"table_sums.asked_tb_s": 0.01}, "table_sums.asked_tb_s"),
        Mistake("left of the ridge", {"bound.polynomial_16": "compute"}, "bound.polynomial_16"),
        Mistake("right of the ridge is enough", {"bound.chain": "compute"}, "bound.chain"),
        Mistake("all that arithmetic", {"bound.polynomial_512": "compute"}, "bound.polynomial_512"),
        Mistake("tiles make it compute-bound", {"bound.product_tiles": "compute"}, "bound.product_tiles"),
        Mistake("a word of its own", {"bound.table_sums": "cache"}, "bound.table_sums"),
        Mistake("no cause", {"fix.cause": ""}, "explanation"),
        *(Mistake(why, {}, check, _script((old, new))) for why, check, old, new in WRONG_SCRIPTS),
    ),
)  # fmt: skip
