# SPDX-License-Identifier: Apache-2.0
"""The launches of a line for ncu: which to profile, which of a report are the line's, and what they say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from builders import TraceBuilder

import profiling_lab
from profiling_lab.analysis.ncu.command import command
from profiling_lab.analysis.ncu.figures import SM, STORED_SECTORS, figures, limited_by
from profiling_lab.analysis.ncu.join import join, phases_of
from profiling_lab.analysis.ncu.plan import Plan, Recorded, plan
from profiling_lab.analysis.ncu.report import DURATION, Launch, Report, read
from profiling_lab.errors import LabError, NotEnoughDataError, UsageError
from profiling_lab.trace import Trace

EXERCISES = Path(profiling_lab.__file__).parent / "exercises"
DEMO = EXERCISES / "e17_python_backtrace/recorded/demo_h200.sqlite"
UP, DOWN = "/app/train.py:8 main > /app/model.py:5 f", "/app/train.py:8 main > /app/model.py:6 f"


def exported(exercise: str, name: str = "starter_h200.csv") -> Report:
    return read(EXERCISES / exercise / "recorded" / name)


def steps(path: Path, count: int, *, marked: bool = True) -> Trace:
    """Per step: gemm and add of line 5, an add of line 6, then backward of line 5 (gemm, copy)."""
    builder = TraceBuilder()
    builder.launch("warm_up", 10, stack=DOWN, blocks=1)
    for step in range(count):
        start = builder.now_ns
        builder.launch("gemm<float>(float*)", 500, stack=UP, blocks=8, peek=2 * step + 1)
        builder.launch("void at::add<int>(int)", 100, stack=UP, blocks=4, peek=2 * step + 1)
        builder.launch("void at::add<int>(int)", 200, stack=DOWN, blocks=4)
        builder.launch("gemm<float>(float*)", 900, blocks=16, thread=2, node=2 * step, node_name="Mm")
        builder.copy("DtoD", 50, stack=UP)
        if marked:
            builder.range(f"ProfilerStep#{step}", start, builder.now_ns)
    return Trace.open(builder.write(path))


def test_one_step_of_the_kernels_of_a_line(tmp_path: Path) -> None:
    with steps(tmp_path / "run.sqlite", 4) as trace:
        found = plan(trace, "model.py:5")
    assert found.names == ("gemm", "add") and (found.file, found.line) == ("/app/model.py", 5)
    assert (found.skip, found.count) == (4, 4), "the second step; warm_up and the copy are not counted"
    assert [each.phase for each in found.window] == ["forward", "forward", "", "backward"]
    assert found.window[3].signature == ("gemm", (16, 1, 1), (128, 1, 1))
    assert found.phase_ns("forward") == 4 * 600 and found.phase_ns("backward") == 4 * 900
    told = command("/opt/ncu", found, ["python", "train.py"], "out.csv", ["sm__more.sum"], kill=True)
    text = " ".join(told)
    assert told[0] == "/opt/ncu" and told[-2:] == ("python", "train.py")
    assert "--kernel-name regex:^(gemm|add)$ --launch-skip 4 --launch-count 4 --kill yes" in text
    assert "sm__more.sum --log-file out.csv" in text and "--section SpeedOfLight" in text


def test_a_phase_and_a_limit_make_the_window_smaller(tmp_path: Path) -> None:
    with steps(tmp_path / "run.sqlite", 4) as trace:
        found = plan(trace, "/app/model.py:5", phase="backward")
        assert found.names == ("gemm",) and [each.phase for each in found.window] == ["backward", ""]
        assert plan(trace, "app/model.py:5", most=3).count == 3


@pytest.mark.parametrize(("count", "skip", "size"), [(1, 0, 4), (2, 0, 4), (3, 4, 4)])
def test_few_steps(count: int, skip: int, size: int, tmp_path: Path) -> None:
    """The second step if it is whole; otherwise the first."""
    with steps(tmp_path / "run.sqlite", count) as trace:
        found = plan(trace, "model.py:5")
    assert (found.skip, found.count) == (skip, size)


@pytest.mark.parametrize(
    ("line", "kind", "says"),
    [
        (
            "model.py:7",
            UsageError,
            r"no line model\.py:7 .*did you mean /app/model\.py:5 or /app/model\.py:6\?",
        ),
        ("modle.py:5", UsageError, r"did you mean /app/model\.py:5\?"),
        ("model.py", UsageError, r"expected a line such as model\.py:87, not 'model\.py'"),
        ("del.py:5", UsageError, "no line"),
        ("train.py:8", NotEnoughDataError, r"/app/train\.py:8 launched no kernel that is in the recording"),
    ],
)
def test_lines_that_launched_nothing(line: str, kind: type[LabError], says: str, tmp_path: Path) -> None:
    with steps(tmp_path / "run.sqlite", 2) as trace, pytest.raises(kind, match=says):
        plan(trace, line)


def test_a_line_of_several_files_needs_more_of_its_path(tmp_path: Path) -> None:
    builder = TraceBuilder()
    for folder in "ab":
        builder.launch("gemm", 10, stack=f"/app/{folder}/model.py:5 f")
    with Trace.open(builder.write(tmp_path / "run.sqlite")) as trace:
        with pytest.raises(UsageError, match=r"several lines of the recording: /app/a/model\.py:5, /app/b"):
            plan(trace, "model.py:5")
        assert plan(trace, "b/model.py:5").file == "/app/b/model.py"


def test_a_phase_without_kernels_and_a_trace_without_stacks(tmp_path: Path) -> None:
    with steps(tmp_path / "run.sqlite", 2) as trace, pytest.raises(NotEnoughDataError, match="in recompute"):
        plan(trace, "model.py:5", phase="recompute")
    bare = TraceBuilder().launch("gemm", 5).write(tmp_path / "bare.sqlite")
    with Trace.open(bare) as trace, pytest.raises(NotEnoughDataError, match="no Python stacks"):
        plan(trace, "model.py:5")


def test_the_real_recording_of_the_demo() -> None:
    with Trace.open(DEMO) as trace:
        found = plan(trace, "model.py:87")
    window = [(each.signature[0], each.phase) for each in found.window]
    assert window[0] == ("heavy_layer_slow_kernel", "forward")
    assert {name for name, phase in window if phase == "backward"} >= {
        "tanh_backward_kernel",
        "splitKreduce_kernel",
    }
    assert all(each.signature[1] for each in found.window), "this file has grids"
    phases, notes = phases_of(found.launches, [launch(each) for each in found.window])
    assert phases == [each.phase for each in found.window] and not notes


def launch(recorded: Recorded, number: int = 0, **metrics: float) -> Launch:
    name, grid, block = recorded.signature
    return Launch(number, name, grid, block, "python", "GPU", {DURATION: 100.0 + number} | metrics)  # type: ignore[arg-type]


def made(*names: str) -> tuple[Recorded, ...]:
    """`gemm:forward`; a capital letter is another shape."""
    found = []
    for text in names:
        name, _, phase = text.partition(":")
        shape = ((9 if name[0].isupper() else 1), 1, 1)
        found.append(Recorded((name.lower(), shape, (128, 1, 1)), phase, 10))
    return tuple(found)


def test_a_program_whose_launches_are_shifted_against_the_recording() -> None:
    """The recording began after the warm-up, so the same number of launches is another place in a step."""
    recorded = made(*("a:forward", "b:", "a:backward", "b:forward") * 3)
    report = [launch(each, i) for i, each in enumerate(made("b", "a", "b", "a"))]
    phases, notes = phases_of(recorded, report)
    assert phases == [None] * 4, "b a b a is in the recording twice per step: as the second and as the fourth"
    assert "repeats in more than one way" in notes[0]
    unique = made(*("a:forward", "b:", "A:backward", "b:forward") * 3)
    report = [launch(each, i) for i, each in enumerate(made("b", "A", "b", "a"))]
    assert phases_of(unique, report) == (["", "backward", "forward", "forward"], ())


def test_launches_that_are_not_those_of_the_recording() -> None:
    recorded = made("a:forward", "b:", "A:backward", "B:", "B:forward")
    report = [launch(each, i) for i, each in enumerate(made("A", "a", "b", "B", "x"))]
    report.append(replace(report[0], block=(64, 1, 1)))
    phases, (note,) = phases_of(recorded, report)
    assert phases == ["backward", "forward", "", None, "", None]
    assert "in another order" in note and "1 of them have a shape that was not recorded" in note


def plan_of(*names: str) -> Plan:
    recorded = made(*names)
    return Plan("/app/model.py", 5, "f", ("a", "b"), recorded, 0, len(recorded))


def test_rows_by_phase_with_what_is_missing() -> None:
    planned = plan_of("a:forward", "a:forward", "b:", "A:backward", "b:backward")
    whole = Report(tuple(launch(each, i) for i, each in enumerate(planned.launches)), "r.csv")
    result = join(planned, whole)
    assert [(row.phase, row.figures.kernel, row.figures.launches) for row in result.rows] == [
        ("forward", "a", 2), ("backward", "a", 1), ("backward", "b", 1),
    ]  # fmt: skip
    assert [row.recorded_ns for row in result.rows] == [20, 10, 10]
    assert (result.profiled, result.others, result.unknown, result.missing, result.notes) == (5, 1, 0, (), ())
    result = join(planned, replace(whole, launches=whole.launches[:3]))
    assert result.missing == ("backward a", "backward b")
    assert "3 launches of these kernels, 2 fewer than one recorded step" in result.notes[0]
    with pytest.raises(NotEnoughDataError, match=r"no launch of r\.csv is known to be of /app/model\.py:5"):
        join(planned, replace(whole, launches=whole.launches[2:3]))


def test_a_report_that_contradicts_itself_is_told() -> None:
    planned = plan_of("a:forward", "b:")
    twice = Report((launch(planned.launches[0]), launch(planned.launches[1])), "r.csv")
    assert "the same ID" in join(planned, twice).notes[0]


def test_figures_of_real_reports() -> None:
    """From an H200, through ncu 2025.3."""
    report = exported("e34_low_occupancy")
    low = figures(report.of("attend_kernel"))
    assert (low.occupancy_limit_frac, low.occupancy_limited_by) == (0.125, "shared memory")
    assert low.occupancy_frac == 0.125 and low.dram_frac == pytest.approx(0.29, rel=1e-3)
    assert low.stalls[0][0] == "long_scoreboard" and low.stalls[0][1] == pytest.approx(12.73, abs=0.01)
    assert low.sectors_per_load == pytest.approx(15.97) and low.sm_frac is None, "it was not asked for"
    registers = exported("e06_compute_metrics")
    assert {each.function: limited_by(each) for each in registers.launches} == {
        "blend": "registers", "smooth": "shared memory", "grow": "", "walk": "blocks and shared memory",
    }  # fmt: skip
    product = figures(exported("e07_roofline_practice").of("product_tiles"))
    assert product.scalar_flops == 2 * 2048**3, "of a product of 2048 x 2048 matrices"
    assert product.tensor_flops is None and product.flops is None, "without a counter it is unknown, not zero"
    assert product.per_s(product.scalar_flops) == pytest.approx(9.3e12, rel=0.01)


def test_figures_are_weighted_by_time() -> None:
    one, two = made("a:forward", "a:forward")
    launches = (launch(one, 0, **{SM: 10.0}), launch(two, 100, **{SM: 40.0}))
    assert figures(launches).sm_frac == pytest.approx((100 * 0.1 + 200 * 0.4) / 300)
    assert figures((launches[0], launch(two, 1))).sm_frac is None, "a part is not the whole"
    assert figures(launches).ncu_ns == 300 and figures(launches).sectors_per_store is None
    assert figures([launch(one, 0, **{STORED_SECTORS: 4.0})]).sectors_per_store == 4
    tensor = {"sm__ops_path_tensor_src_bf16_dst_fp32.sum": 1000.0}
    scalar = {
        f"smsp__sass_thread_inst_executed_op_f{name}_pred_on.sum": 10.0 for name in ("add", "mul", "fma")
    }
    assert figures([launch(one, 0, **tensor, **scalar)]).flops == 1040
