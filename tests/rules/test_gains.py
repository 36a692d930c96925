# SPDX-License-Identifier: Apache-2.0
"""What a finding would save, against random programs that a made machine really runs mended."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from builders import TraceBuilder
from conftest import REPO
from made_traces.defects import DEFECTS, WARM
from made_traces.defects import run as program

from profiling_lab.analysis.critical_path.critical_path import PathOfStep
from profiling_lab.rules import RULES, Finding, gains, run, select
from profiling_lab.rules.steady import steady_part
from profiling_lab.trace import Trace
from profiling_lab.trace.columns import MemoryKind

LARGE_FRAC, RIGHT_WITHIN = 0.25, 1.5
"""as in benchmarks/diagnosis: the least part of a step that a defect costs, and how right savings are"""
US = 1_000
EXERCISES = REPO / "profiling_lab" / "exercises"


def checked(builder: TraceBuilder, folder: Path) -> list[Finding]:
    path = folder / "run.sqlite"
    path.unlink(missing_ok=True)
    with Trace.open(builder.write(path)) as trace:
        return list(run(trace, RULES).findings)


@pytest.mark.parametrize("kind", DEFECTS)
def test_the_predicted_saving_comes_true(kind: str, tmp_path: Path) -> None:
    """Host and GPU are slower by turns, with and without training."""
    right, wrong = 0, []
    for seed in range(60):
        as_it_is, defect = program(kind, seed, mended=False)
        step_ns = as_it_is.step_ns(WARM)
        saves_ns = step_ns - program(kind, seed, mended=True)[0].step_ns(WARM)
        if saves_ns < LARGE_FRAC * step_ns:
            continue
        named = [
            finding
            for finding in checked(as_it_is.builder, tmp_path)
            if {finding.rule, finding.cause} & set(defect.causes)
            and finding.place is not None
            and finding.place.line // 10 == defect.line // 10
        ]
        if not named:
            continue  # another test asks what is found
        predicted_ns = named[0].gain_per_step_ns
        assert predicted_ns is not None
        if 1 / RIGHT_WITHIN <= predicted_ns / saves_ns <= RIGHT_WITHIN:
            right += 1
        else:
            wrong.append((seed, predicted_ns / saves_ns))
        if right + len(wrong) == 5:
            break
    assert right >= 2 and len(wrong) <= 1, wrong


def slow_products(dispatch_ns: int, name: str = "training_step ") -> TraceBuilder:
    """Products without tensor cores, 20 µs each; the host takes 5 µs and `dispatch_ns` for each launch."""
    builder = TraceBuilder()
    for step in range(12):
        begin_ns = builder.now_ns
        for _ in range(40):
            builder.gap(dispatch_ns).launch("ampere_sgemm_128x64_nn", 20 * US, stack="/app/a.py:7 f")
        builder.range(f"{name}{step}", begin_ns, builder.now_ns)
    return builder


def test_a_faster_kernel_saves_nothing_where_the_host_is_slower(tmp_path: Path) -> None:
    for dispatch_ns, saves_ns in ((0, 40 * 15 * US), (60 * US, 0)):
        for name in ("training_step ", "ProfilerStep#"):  # in the time of the GPU, and of the host
            builder = slow_products(dispatch_ns, name)
            (found,) = [f for f in checked(builder, tmp_path) if f.rule == "tensor_cores"]
            assert found.gain_per_step_ns == pytest.approx(saves_ns, abs=2 * US), (dispatch_ns, name)
            assert (found.at_most_per_step_ns or 0) >= found.gain_per_step_ns


def test_no_gain_exceeds_a_step_without_its_recording(tmp_path: Path) -> None:
    """Most of what a launch takes here is the recorder's, so a recorded step is three times as long."""
    builder = TraceBuilder().row("PYREC_META", name="overhead_callback_ns", value="1000")
    for step in range(12):
        begin_ns = builder.now_ns
        for _ in range(100):
            builder.launch("k", 500, call_ns=4_500, stack="/app/a.py:7 f")
        builder.range(f"ProfilerStep#{step}", begin_ns, builder.now_ns)
    with Trace.open(builder.write(tmp_path / "run.sqlite")) as trace:
        found = run(trace, RULES)
    (tiny,) = [finding for finding in found.findings if finding.rule == "tiny_kernels"]
    assert found.recording_ns is not None and tiny.gain_per_step_ns is not None
    assert 0 < tiny.gain_per_step_ns <= 100 * 5 * US - found.recording_ns


def test_what_saves_nothing_is_not_severe(tmp_path: Path) -> None:
    for dispatch_ns, severity in ((0, "high"), (60 * US, "low")):
        (found,) = [f for f in checked(slow_products(dispatch_ns), tmp_path) if f.rule == "tensor_cores"]
        assert (found.severity, found.cost_ns) == (severity, 11 * 40 * 20 * US)


def test_a_dominant_line_is_ranked_by_what_the_steps_would_win(tmp_path: Path) -> None:
    """Where the host sets the pace that is nothing, however much of the GPU's time the line takes."""
    for pause_ns, wins in ((0, True), (2_000 * US, False)):
        builder = TraceBuilder()
        for step in range(12):
            begin_ns = builder.now_ns
            builder.launch("my_kernel", 900 * US, stack="/app/a.py:7 f").gap(pause_ns)
            builder.launch("k", 90 * US, stack="/app/a.py:8 f")
            builder.range(f"training_step {step}", begin_ns, builder.now_ns)
        (found,) = [f for f in checked(builder, tmp_path) if f.rule == "dominant_line"]
        assert (found.rank_ns > 12 * 500 * US) is wins, found


def test_a_symptom_knows_only_the_most(tmp_path: Path) -> None:
    builder = TraceBuilder()
    for step in range(12):
        begin_ns = builder.now_ns
        builder.launch("my_kernel", 900 * US, stack="/app/a.py:7 f").launch(
            "k", 90 * US, stack="/app/a.py:8 f"
        )
        builder.gap(980 * US).range(f"ProfilerStep#{step}", begin_ns, builder.now_ns)
    (found,) = [f for f in checked(builder, tmp_path) if f.rule == "dominant_line"]
    assert (found.gain_ns, found.gain_per_step_ns) == (None, None), "what would take its place is not known"
    assert found.at_most_per_step_ns is not None and 0 <= found.at_most_per_step_ns < 900 * US, (
        "the host waits"
    )


def test_a_part_of_a_long_recording_says_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = {f.rule: f.gain_per_step_ns for f in checked(slow_products(0), tmp_path)}
    assert whole["tensor_cores"]
    monkeypatch.setattr(gains, "MOST_OPERATIONS", 200)
    assert {f.rule: f.gain_per_step_ns for f in checked(slow_products(0), tmp_path)} == whole


RECORDED = {
    # exercise: the recording, and what was measured without a recorder (benchmarks/results/diagnosis.jsonl)
    "metrics on the host": ("e24_expert_systems/recorded/a", "metrics_on_host"),
    "repeated keys": ("e24_expert_systems/recorded/b", "repeated_keys"),
    "gradients to the host": ("e24_expert_systems/recorded/d", "gradients_to_host"),
    "garbage collection": ("e37_profile_before_source/recorded/round1_b", "garbage_collection"),
    "fp32 products": ("e37_profile_before_source/recorded/round2_c", "fp32_products"),
    "pageable upload": ("e37_profile_before_source/recorded/round3_a", "pageable_upload"),
}
# Exercises whose solution was recorded, too, and repairs what the first finding is about.
REPAIRED = (
    "e01_timeline_basics",
    "e03_memory_timeline",
    "e25_host_to_device",
    "e26_many_small_kernels",
    "e27_memory_bandwidth",
    "e28_hidden_synchronisation",
    "e29_memory_layout",
    "e32_flash_attention",
)


def first_saves_ns(path: Path) -> int:
    with Trace.open(path) as trace:
        first = run(trace, RULES).findings[0]
    assert first.gain_per_step_ns is not None, first.what
    return first.gain_per_step_ns


@pytest.mark.parametrize("name", RECORDED)
def test_the_first_saving_of_a_real_program_is_what_was_measured(name: str) -> None:
    recording, program_name = RECORDED[name]
    lines = (REPO / "benchmarks" / "results" / "diagnosis.jsonl").read_text().splitlines()
    rows = [row for row in map(json.loads, lines) if row["case"]["program"] == program_name]
    ms = {row["provider"]: row["value"] for row in rows if row["metric"] == "step"}
    measured_ns = 1e6 * (ms["as it is"] - ms["mended"])
    predicted_ns = first_saves_ns(EXERCISES / f"{recording}_h200.sqlite")
    assert 1 / 1.2 < predicted_ns / measured_ns < 1.2, (predicted_ns, measured_ns)


def plain_step_ns(path: Path) -> int:
    """The median step without what recording takes, which is less where a solution makes fewer calls."""
    with Trace.open(path) as trace:
        step = PathOfStep(steady_part(trace, None)[0]).by_line(gains=False).step
    assert step.plain_length_ns is not None
    return step.plain_length_ns


@pytest.mark.parametrize("exercise", REPAIRED)
def test_the_first_saving_of_an_exercise_is_what_its_solution_saves(exercise: str) -> None:
    """One or a few steps were recorded; the solution may repair a little more."""
    starter, solution = (
        EXERCISES / exercise / "recorded" / f"{n}_h200.sqlite" for n in ("starter", "solution")
    )
    saved_ns = plain_step_ns(starter) - plain_step_ns(solution)
    predicted_ns = first_saves_ns(starter)
    assert 1 / RIGHT_WITHIN < predicted_ns / saved_ns < RIGHT_WITHIN, (predicted_ns, saved_ns)


def test_lines_of_a_function_are_one_work_also_in_a_comprehension(tmp_path: Path) -> None:
    """2 ms of host work at each of two lines of one function, which a remedy does away with together."""
    rows, inside = "/app/a.py:9 main > /app/a.py:53 sample", "sample.<locals>.<genexpr>"
    builder = TraceBuilder()
    for step in range(12):
        begin_ns = builder.now_ns
        for line in (rows, f"/app/a.py:9 main > /app/a.py:54 sample > /app/a.py:54 {inside}"):
            for tenth in range(1, 20):
                builder.sample(builder.now_ns + tenth * 100 * US, line)
            builder.gap(2_000 * US).launch("k", 20 * US, stack=line)
        builder.launch("k", 100 * US, stack="/app/a.py:9 main").range(
            f"training_step {step}", begin_ns, builder.now_ns
        )
    works = [f for f in checked(builder, tmp_path) if f.cause == "host_work"]
    assert {f.place.line for f in works if f.place} == {53, 54}
    assert works[0].gain_per_step_ns == pytest.approx(4_000 * US, rel=0.1)


def test_what_a_finding_about_the_host_explains_goes_with_it(tmp_path: Path) -> None:
    """A line captures a graph anew: it waits for the GPU, and then prepares for 3 ms. Both go with that."""
    capture = "/app/a.py:9 main > /app/a.py:70 capture"
    builder = TraceBuilder()
    for step in range(12):
        begin_ns = builder.now_ns
        builder.launch("k", 4_000 * US, stack="/app/a.py:9 main")
        builder.call("cudaDeviceSynchronize_v3020", call_ns=4_000 * US, stack=capture).gap(4_000 * US)
        for tenth in range(1, 30):
            builder.sample(builder.now_ns + tenth * 100 * US, capture)
        builder.gap(3_000 * US).launch("k", 20 * US, stack=capture)
        builder.gap(2_000 * US).range(f"training_step {step}", begin_ns, builder.now_ns)
    (found,) = [f for f in checked(builder, tmp_path) if f.place and f.place.line == 70]
    assert found.rule == "sync_calls" and "host_work" in [effect.cause for effect in found.effects]
    assert found.gain_per_step_ns == pytest.approx(5_000 * US, rel=0.01), "4 ms of the GPU remain of 9"


def test_the_copy_of_what_the_host_makes_goes_with_it(tmp_path: Path) -> None:
    """`window_mask(n).to(device)`: the call at line 48 works for 3 ms on the host, then its copy holds the
    host for 0.5 ms. What another line copies is its own.
    """
    made = "/app/a.py:9 main > /app/a.py:48 mask > /app/a.py:30 window_mask"
    won_ns = []
    for copying in ("/app/a.py:9 main > /app/a.py:48 mask", "/app/a.py:9 main > /app/a.py:60 send"):
        builder = TraceBuilder()
        for step in range(12):
            begin_ns = builder.now_ns
            for tenth in range(1, 30):
                builder.sample(builder.now_ns + tenth * 100 * US, made)
            memory = {"source": MemoryKind.PAGEABLE, "target": MemoryKind.DEVICE}
            builder.gap(3_000 * US).copy("HtoD", 100 * US, stack=copying, call_ns=500 * US, **memory)
            builder.launch("k", 20 * US, stack="/app/a.py:9 main").gap(2_000 * US)
            builder.range(f"training_step {step}", begin_ns, builder.now_ns)
        (found,) = [f for f in checked(builder, tmp_path) if f.place and f.place.line == 30]
        assert found.cause == "host_work" and found.gain_per_step_ns is not None
        won_ns.append(found.gain_per_step_ns)
    assert won_ns[0] > won_ns[1] + 100 * US, "what the call takes besides the copy"


def test_waits_of_a_loop_go_with_its_launches(tmp_path: Path) -> None:
    """Without the loop a function does not launch its kernels one by one either."""
    builder = TraceBuilder()
    for step in range(12):
        begin_ns = builder.now_ns
        for _ in range(20):
            for line, kernels, after_us in ((80, 2, 60), (81, 5, 30)):
                stack = f"/app/a.py:9 main > /app/a.py:{line} each"
                builder.copy("DtoH", 1 * US, size_bytes=8, stack=stack)
                builder.call("cudaStreamSynchronize_v3020", call_ns=20 * US, stack=stack).gap(after_us * US)
                for _ in range(kernels):
                    builder.launch("vectorized_elementwise_kernel", 2 * US, stack=stack).gap(20 * US)
        builder.launch("gemm", 100 * US, stack="/app/a.py:9 main").gap(100 * US)
        builder.range(f"training_step {step}", begin_ns, builder.now_ns)
    with Trace.open(builder.write(tmp_path / "run.sqlite")) as trace:
        (waits,) = run(trace, select(RULES, ["implicit_sync"])).findings
        (found,) = [f for f in run(trace, RULES).findings if f.rule == "implicit_sync"]
    assert waits.gain_per_step_ns is not None and found.gain_per_step_ns is not None
    assert found.gain_per_step_ns > 2 * waits.gain_per_step_ns
    assert found.remedy.endswith("this saves its launches, too")
