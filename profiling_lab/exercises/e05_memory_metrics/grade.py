# SPDX-License-Identifier: Apache-2.0
"""Grade E05. The right answers are computed from the learner's report of ncu."""

from __future__ import annotations

from pathlib import Path

from profiling_lab.analysis.ncu.consistency import LOADS, RATE, READ, WRITTEN
from profiling_lab.analysis.ncu.report import Launch, Report
from profiling_lab.exercises import kernel_repair, ncu_questions
from profiling_lab.exercises.answers import Answers
from profiling_lab.exercises.clinic import explanation
from profiling_lab.exercises.e05_memory_metrics import repair as task
from profiling_lab.exercises.entries import entry
from profiling_lab.exercises.exercise import Exercise, GradedCheck, Mistake
from profiling_lab.exercises.ncu_questions import Effect, Name, Number, Source

ENTRY = entry("memory-metrics")
PROGRAM = "memory_bandwidth.cu"
KERNELS = ("scale_field", "scale_grid", "scale_heights", "look_up", "flip_tiles")
L2_HITS = "lts__t_sector_op_read_hit_rate.pct"
SHARED_LOADS = "smsp__sass_inst_executed_op_shared_ld.sum"
WAVEFRONTS = "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum"
COUNTERS = (*LOADS, READ, WRITTEN, RATE, L2_HITS, SHARED_LOADS, WAVEFRONTS)
ELEMENTS_OF_PARTICLE = 8


def sectors_per_request(launch: Launch) -> float:
    return launch.value(LOADS[0]) / max(launch.value(LOADS[1]), 1.0)


def wavefronts_per_load(launch: Launch) -> float:
    """Passes through shared memory for one load of a warp: 1 without bank conflicts."""
    return launch.value(WAVEFRONTS) / max(launch.value(SHARED_LOADS), 1.0)


def bytes_per_result(launch: Launch) -> float:
    return launch.value(READ) / (launch.blocks * launch.threads)


def rate_gb_s(launch: Launch) -> float:
    return launch.total(READ, WRITTEN) / launch.duration_ns


def _planted(report: Report) -> str:
    if sectors_per_request(report.last("scale_grid")) < 16:
        return "scale_grid reads neighbours in one request"
    if wavefronts_per_load(report.last("flip_tiles")) < 8:
        return "flip_tiles has no bank conflicts"
    if len(report.of("look_up")) < 2:
        return "look_up was profiled with one table only"
    return ""


SOURCE = Source(ENTRY.folder, "memory_bandwidth", KERNELS, COUNTERS, _planted)
QUESTIONS = (
    Number(
        "field.gb_per_s", lambda r: rate_gb_s(r.last("scale_field")),
        "bytes read from and written to device memory, over the duration",
    ),
    Number(
        "field.sectors_per_request", lambda r: sectors_per_request(r.last("scale_field")),
        "sectors over requests of global loads",
    ),
    Name(
        "grid.kernel", lambda _: ("scale_grid",),
        "its warps touch many sectors with each request, but device memory delivers only what it uses",
    ),
    Number(
        "grid.sectors_per_request", lambda r: sectors_per_request(r.last("scale_grid")),
        "sectors over requests of global loads",
    ),
    Name(
        "layout.kernel", lambda _: ("scale_heights",),
        "most of each sector that comes from device memory is never used, in whatever order threads ask",
    ),
    Number(
        "layout.bytes_per_result", lambda r: bytes_per_result(r.last("scale_heights")),
        "bytes read from device memory over the number of threads", slack_frac=0.1,
    ),
    Number(
        "table.small_hit_pct", lambda r: r.of("look_up")[0].value(L2_HITS),
        "the first launch of look_up: reads that the L2 cache answers", slack_frac=0.0, slack=1.0,
    ),
    Number(
        "table.large_hit_pct", lambda r: r.of("look_up")[-1].value(L2_HITS),
        "the last launch of look_up: reads that the L2 cache answers", slack_frac=0.0, slack=1.0,
    ),
    Name(
        "shared.kernel", lambda _: ("flip_tiles",),
        "its requests to device memory are perfect; look at the other memory that it uses",
    ),
    Number(
        "shared.wavefronts_per_load", lambda r: wavefronts_per_load(r.last("flip_tiles")),
        "wavefronts over instructions of shared loads",
    ),
)  # fmt: skip
EFFECTS = (
    Effect(
        "scale_grid", lambda r: sectors_per_request(r.last("scale_grid")), 5.0, "sectors per request",
        task.GRID_FASTER, lambda r: r.last("scale_grid").value(READ),
        lambda r: 0.75 * r.last("scale_field").value(READ),
    ),
    Effect(
        "flip_tiles", lambda r: wavefronts_per_load(r.last("flip_tiles")), 1.5, "wavefronts per shared load",
        task.TILES_FASTER, lambda r: r.last("flip_tiles").value(READ),
        lambda r: 0.75 * r.last("scale_field").value(READ),
    ),
)  # fmt: skip


def findings(workspace: Path, answers: Answers) -> list[GradedCheck]:
    return [*ncu_questions.findings(SOURCE, QUESTIONS, workspace, answers), explanation(answers)]


def repair(workspace: Path, answers: Answers) -> list[GradedCheck]:
    return [
        *kernel_repair.checks(ENTRY.folder / PROGRAM, workspace / PROGRAM, task.__name__),
        *ncu_questions.effects(SOURCE, EFFECTS, workspace, answers),
    ]


def _unchanged() -> dict[str, str]:
    text = (ENTRY.folder / PROGRAM).read_text(encoding="utf-8")
    return {PROGRAM: text.replace("// One number after the other.", "// Repaired.")}


EXERCISE = Exercise(
    entry=ENTRY,
    question="Which part of the memory system does each kernel waste, and which metric proves it?",
    starter=("README.md", PROGRAM, "Makefile", "answer.toml", "recorded"),
    findings=findings,
    repair=repair,
    program=("./memory_bandwidth", "1"),
    recording=ncu_questions.STARTER,
    counters=COUNTERS,
    rules=("uncoalesced", "bank_conflicts"),
    mistakes=(
        Mistake("bytes per second", {"field.gb_per_s": 2.65e12}, "field.gb_per_s"),
        Mistake("the datasheet", {"field.gb_per_s": 4800.0}, "field.gb_per_s"),
        Mistake("requests over sectors", {"grid.sectors_per_request": 0.03125}, "grid.sectors_per_request"),
        Mistake("as many as the best", {"grid.sectors_per_request": 4.0}, "grid.sectors_per_request"),
        Mistake("another faulty kernel", {"grid.kernel": "scale_heights"}, "grid.kernel"),
        Mistake("a kernel that is not there", {"layout.kernel": "transpose_naive"}, "layout.kernel"),
        Mistake("random reads are no layout", {"layout.kernel": "look_up"}, "layout.kernel"),
        Mistake("the float alone", {"layout.bytes_per_result": 4.0}, "layout.bytes_per_result"),
        Mistake("the tables exchanged", {"table.small_hit_pct": 5.0}, "table.small_hit_pct"),
        Mistake("a large cache helps any table", {"table.large_hit_pct": 90.0}, "table.large_hit_pct"),
        Mistake("global memory is shared", {"shared.kernel": "scale_grid"}, "shared.kernel"),
        Mistake("conflicts left out", {"shared.wavefronts_per_load": 1.0}, "shared.wavefronts_per_load"),
        Mistake("only a comment is new", {}, "result", _unchanged()),
        Mistake("no cause", {"fix.cause": ""}, "explanation"),
    ),
)
