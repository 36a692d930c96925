# SPDX-License-Identifier: Apache-2.0
"""Comparing recordings: what adds up, what is noise, what is refused, and which line is which."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from builders import TraceBuilder
from exercises.training_trace import line_of, training_trace

from profiling_lab.analysis.diff.diff import DiffResult, DiffRow, diff
from profiling_lab.analysis.diff.noise import MIN_STEPS, Interval
from profiling_lab.errors import NotEnoughDataError, UsageError
from profiling_lab.trace import Trace

MS = 1_000_000
Write = Callable[..., Path]


def training(
    path: Path,
    kernels: dict[int, tuple[str, int]],
    *,
    wait_ns: Iterable[int] = (0,) * 6,
    folder: str = "/app",
    gpu: str = "Test GPU",
    driver: str = "580.1",
    form: str = "recorder",
    input_bytes: int = 1 << 20,
    **meta: str,
) -> Path:
    """Steps of the same kernels: per line its kernel and time, forward and twice as long backward.

    The GPU idles for `wait_ns` before each step.
    """
    builder = TraceBuilder(form=form)
    sequence = 0
    for number, wait in enumerate(wait_ns):
        builder.now_ns = (
            max(builder.now_ns, *builder.gpu_free_ns.values(), 0) if builder.gpu_free_ns else 1000
        )
        start_ns = builder.now_ns
        builder.gap(wait)
        builder.copy("HtoD", 1000, size_bytes=input_bytes, stack=f"{folder}/train.py:5 main", peek=sequence)
        done = []
        for line, (kernel, ns) in kernels.items():
            stack = f"{folder}/train.py:8 main > {folder}/model.py:{line} Net.forward"
            builder.launch(kernel, ns, stack=stack, peek=sequence + 1)
            done.append((sequence, kernel, ns))
            sequence += 1
        for node, kernel, ns in reversed(done):
            how = {"thread": 2, "node": node, "node_name": "MmBackward0", "peek": 0}
            builder.launch(f"grad_{kernel}", 2 * ns, **how)
        builder.range(f"ProfilerStep#{number}", start_ns, max(builder.gpu_free_ns.values()))
    builder.row("TARGET_INFO_GPU", vmId=0, id=0, name=gpu)
    builder.row("TARGET_INFO_SYSTEM_ENV", devStateName="", name="NvDriverVersion", nameEnum=0, value=driver)
    for name, value in meta.items():
        builder.row("PYREC_META", name=name, value=value)
    return builder.write(path)


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a training under the next free name."""
    written: list[Path] = []

    def one(*args: object, **how: object) -> Path:
        written.append(training(tmp_path / f"{len(written)}.sqlite", *args, **how))  # type: ignore[arg-type]
        return written[-1]

    return one


NET = {10: ("gemm<float, 128>", 2 * MS), 11: ("gelu", MS)}


def compare(before: Path | list[Path], after: Path | list[Path], **how: object) -> DiffResult:
    sides = [
        [Trace.open(p) for p in (side if isinstance(side, list) else [side])] for side in (before, after)
    ]
    result = diff(*sides, **how)  # type: ignore[arg-type]
    # What holds for every comparison there is.
    assert sum(r.change_ns for r in result.rows) == result.after.whole_ns - result.before.whole_ns
    assert sum(r.before_ns for r in result.rows) == result.before.whole_ns
    return result


def rows(result: DiffResult) -> dict[str, DiffRow]:
    found = {row.key: row for row in result.rows}
    assert len(found) == len(result.rows), "keys of rows are unique"
    return found


def test_same_file_twice_is_no_change(write: Write) -> None:
    path = write(NET)
    result = compare(path, path, gate="0%")
    assert result.state == "within the noise" and result.change_ns == 0 and result.interval == Interval(0, 0)
    assert all(row.change_ns == 0 and row.state == "equal" for row in result.rows)
    assert result.gate is not None and result.gate.outcome == "pass"


def test_same_file_twice_without_steps_is_no_change_either(tmp_path: Path) -> None:
    path = TraceBuilder().launch("gemm", 1000, stack="/app/a.py:1 f").write(tmp_path / "run.sqlite")
    result = compare(path, path, gate="3%")
    assert result.before.count < MIN_STEPS and result.state == "within the noise"
    assert result.gate is not None and result.gate.outcome == "pass"


def test_a_slower_line_is_named_for_forward_and_for_backward(write: Write) -> None:
    result = compare(write(NET), write(NET | {11: ("gelu", 3 * MS)}), gate="3%")
    assert result.state == "slower" and result.gate is not None and result.gate.outcome == "fail"
    found = rows(result)
    forward, backward = found["/app/model.py:11 forward"], found["/app/model.py:11 backward"]
    assert (forward.before_ns, forward.after_ns, forward.state) == (MS, 3 * MS, "slower")
    assert (backward.before_ns, backward.after_ns, backward.state) == (2 * MS, 6 * MS, "slower")
    assert found["/app/model.py:10 forward"].state == "equal"
    assert [part.name for part in backward.parts] == ["grad_gelu"]
    assert result.rows[0] is backward, "the largest change stands first"


def test_growing_idle_is_worse_although_the_kernels_are_faster(write: Write) -> None:
    faster = {line: (name, ns // 2) for line, (name, ns) in NET.items()}
    result = compare(write(NET), write(faster, wait_ns=(6 * MS,) * 6), gate="3%")
    assert result.state == "slower"
    assert result.gate is not None and result.gate.outcome == "fail"
    found = rows(result)
    assert all(row.state == "faster" for key, row in found.items() if "model.py" in key)
    assert found["idle"].state == "slower" and found["idle"].change_ns == pytest.approx(6 * MS, abs=MS // 10)


def test_change_inside_the_noise_gets_no_verdict(write: Write) -> None:
    noisy = [n * MS // 2 for n in (0, 9, 2, 12, 4, 7)]
    other = [n * MS // 2 for n in (1, 11, 3, 9, 6, 8)]
    result = compare(write(NET, wait_ns=noisy), write(NET, wait_ns=other), gate="3%")
    assert result.change_ns > 0.03 * result.before.median_ns, "the median alone would call it a regression"
    assert result.state == "within the noise" and result.interval is not None and result.interval.contains(0)
    assert result.gate is not None and result.gate.outcome == "undecided"


def test_three_steps_are_too_few_for_a_verdict(write: Write) -> None:
    slow = NET | {11: ("gelu", 9 * MS)}
    result = compare(write(NET, wait_ns=(0,) * 3), write(slow, wait_ns=(0,) * 3), gate="3%")
    assert result.interval is None and result.state == "undecided" and result.before.count < MIN_STEPS
    assert result.gate is not None and result.gate.outcome == "undecided"


def test_several_recordings_of_a_side_are_one_sample(write: Write) -> None:
    slow = NET | {11: ("gelu", 9 * MS)}
    sides = [[write(kernels, wait_ns=(0,) * 2) for _ in range(2)] for kernels in (NET, slow)]
    result = compare(*sides, gate="3%")
    assert (result.before.count, result.after.count) == (4, 4) and result.state == "slower"


def test_runs_that_differ_widen_the_interval(write: Write) -> None:
    """Steps of one run agree with each other; what the next run does shows only in the next run."""
    quiet = [write(NET, wait_ns=(wait,) * 6) for wait in (0, 4 * MS)]
    one = compare(quiet[0], quiet[1])
    both = compare(quiet, [quiet[1], quiet[0]])
    assert one.state == "slower" and both.state == "within the noise"
    assert both.interval is not None and both.interval.low_ns < 0 < both.interval.high_ns


def test_new_and_removed_lines(write: Write) -> None:
    result = compare(write(NET), write({10: NET[10], 12: ("tanh", 2 * MS), 13: ("mean", MS // 4)}))
    states = {row.key: row.state for row in result.rows if row.phase == "forward"}
    assert states["/app/model.py:11 forward"] == "removed"
    assert states["/app/model.py:12 forward"] == states["/app/model.py:13 forward"] == "new"


def test_lines_that_moved_are_found_again(write: Write) -> None:
    before = {10: ("gemm", MS), 11: ("gelu", MS), 14: ("softmax", MS)}
    after = {13: ("gemm", MS), 14: ("gelu", 4 * MS), 17: ("softmax", MS)}
    found = rows(compare(write(before), write(after)))
    assert {key for key in found if "model.py" in key} == {
        f"/app/model.py:{line} {phase}" for line in (13, 14, 17) for phase in ("forward", "backward")
    }
    moved = found["/app/model.py:14 forward"]
    assert (moved.line_before, moved.before_ns, moved.after_ns) == (11, MS, 4 * MS)


def test_a_removed_line_is_not_the_line_that_took_its_number(write: Write) -> None:
    before = {10: ("gemm", MS), 11: ("gelu", MS), 12: ("softmax", MS), 13: ("mean", MS)}
    after = {10: ("gelu", MS), 11: ("softmax", MS), 12: ("mean", MS)}
    found = rows(compare(write(before), write(after)))
    removed = found["/app/model.py:10 forward (before)"]
    assert (removed.state, removed.line, removed.line_before, removed.after_ns) == ("removed", 0, 10, 0)
    assert found["/app/model.py:10 forward"].line_before == 11
    assert found["/app/model.py:12 forward"].state == "equal"


def test_folders_may_differ(write: Write) -> None:
    result = compare(write(NET, folder="/ci/main"), write(NET, folder="/ci/pull/7"))
    assert result.state == "within the noise" and {row.state for row in result.rows} == {"equal"}
    assert result.rows[0].file == "/ci/pull/7/model.py", "the file after the change is the one to open"


@pytest.mark.parametrize(
    ("check", "change"),
    [
        ("gpu", {"gpu": "Other GPU"}),
        ("driver", {"driver": "570.2"}),
        ("method", {"form": "nsys"}),
        ("steps", {"wait_ns": (0,) * 12}),
        ("workload", {"input_bytes": 1 << 21}),
        ("overhead", {"overhead_callback_ns": "9000", "calls": "1000", "seconds": "0.1"}),
    ],
)
def test_what_must_agree(write: Write, check: str, change: dict[str, object]) -> None:
    cheap = {"overhead_callback_ns": "100", "calls": "1000", "seconds": "0.1"}
    before, after = write(NET, **cheap), write(NET, **({**cheap, **change}))
    result = compare(before, after)
    assert not result.comparable
    assert {c.name for c in result.checks if c.refuses} == {check}
    allowed = compare(before, after, allow=[check])
    assert allowed.comparable and [c.name for c in allowed.checks if c.state == "allowed"] == [check]


def test_different_programs_are_not_compared(write: Write, tmp_path: Path) -> None:
    other = TraceBuilder()
    for number in range(6):
        other.launch("fft", 1000, stack="/other/signal.py:1 f")
        other.range(f"ProfilerStep#{number}", other.now_ns - 6000, other.now_ns)
    result = compare(write(NET), other.write(tmp_path / "other.sqlite"), allow=["gpu", "driver"])
    assert "workload" in {c.name for c in result.checks if c.refuses}


def batches(path: Path, blocks: int, gemm_blocks: int = 64, name: str = "add") -> Path:
    """Steps of elementwise kernels with this number of blocks, and of tiled GEMMs."""
    builder = TraceBuilder()
    for number in range(4):
        builder.now_ns = start_ns = max([builder.now_ns, *builder.gpu_free_ns.values()])
        for _ in range(3):
            builder.launch(f"vectorized_elementwise_kernel<4, {name}>", 9_000, blocks=blocks)
        builder.launch("elementwise_kernel<128, 2, mask>", 9_000, blocks=16)
        builder.launch("gemm", 90_000, blocks=gemm_blocks)
        builder.range(f"ProfilerStep#{number}", start_ns, max(builder.gpu_free_ns.values()))
    return builder.write(path)


def test_twice_the_batch_is_not_compared(tmp_path: Path) -> None:
    small, large = batches(tmp_path / "a.sqlite", 1024), batches(tmp_path / "b.sqlite", 2048)
    result = compare(small, large)
    (check,) = [check for check in result.checks if check.refuses]
    assert (check.name, check.before, check.after) == (
        "shapes",
        "772 blocks in an elementwise kernel of both",
        "1,540 blocks in an elementwise kernel of both",
    )
    assert compare(small, large, allow=["shapes"]).comparable


def test_other_kernels_and_other_tiles_are_the_change_itself(tmp_path: Path) -> None:
    before = batches(tmp_path / "a.sqlite", 1024)
    for i, how in enumerate(({"gemm_blocks": 999}, {"name": "fused"})):
        result = compare(before, batches(tmp_path / f"b{i}.sqlite", 1024, **how))
        assert {check.name: check.state for check in result.checks}["shapes"] == "same"


def test_operators_with_different_shapes_are_separate_rows(tmp_path: Path) -> None:
    builder = TraceBuilder(form="nsys")
    for size in (64, 128):
        start = builder.now_ns - 10
        builder.launch("gemm", size * 100)
        sizes = f"sizes = [[{size}, 512], [512, 512]]"
        builder.range(f"aten::mm, seq = {size}, op_id = {size}, {sizes}", start, builder.now_ns)
    path = builder.write(tmp_path / "run.sqlite")
    found = rows(compare(path, path))
    assert found["aten::mm [[64, 512], [512, 512]] forward"].before_ns == 6_400
    assert found["aten::mm [[128, 512], [512, 512]] forward"].before_ns == 12_800


def test_shapes_that_always_change_are_not_distinguished(tmp_path: Path) -> None:
    builder = TraceBuilder(form="nsys")
    for size in range(1100):
        start = builder.now_ns - 10
        builder.launch("gemm", 100)
        sizes = f"sizes = [[{size}, 512]]"
        builder.range(f"aten::mm, seq = {size}, op_id = {size}, {sizes}", start, builder.now_ns)
    path = builder.write(tmp_path / "run.sqlite")
    assert "aten::mm forward" in rows(compare(path, path))


def test_unknown_is_not_the_same(write: Write, tmp_path: Path) -> None:
    path = TraceBuilder().launch("gemm", 1000).write(tmp_path / "run.sqlite")
    states = {c.name: c.state for c in compare(path, path).checks}
    assert states == {
        "gpu": "unknown",
        "driver": "unknown",
        "method": "same",
        "window": "same",
        "steps": "unknown",
        "workload": "unknown",
        "shapes": "unknown",
        "overhead": "unknown",
    }


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        ("step<10ms", "pass"),
        ("step<9ms", "fail"),
        ("gpu<8ms", "fail"),
        ("idle<1%", "pass"),
        ("line:model.py:10<7ms", "pass"),
        ("line:model.py:10<5ms", "fail"),
        ("line:/app/model.py:11<50%", "pass"),
        ("function:Net.forward<8.5ms", "fail"),
        ("kernel:gemm<1999us", "fail"),
        ("kernel:gemm<2ms", "pass"),
    ],
)
def test_budgets(write: Write, text: str, outcome: str) -> None:
    path = write(NET)
    (judged,) = compare(path, path, budgets=[text]).budgets
    assert judged.outcome == outcome, judged
    assert (judged.file, judged.line) == (
        ("/app/model.py", int(text.split("<")[0][-2:]))
        if text.startswith("line")
        else (judged.file, judged.line)
    )


def test_a_budget_inside_the_noise_is_undecided(write: Write) -> None:
    path = write(NET, wait_ns=[n * MS for n in (0, 4, 1, 5, 2, 6)])
    (judged,) = compare(path, path, budgets=["idle<3ms"]).budgets
    assert judged.outcome == "undecided" and judged.interval is not None


def test_a_budget_of_something_that_is_nowhere_is_a_mistake(write: Write) -> None:
    path = write(NET)
    with pytest.raises(UsageError, match=r"line:model.py:99<3ms"):
        compare(path, path, budgets=["line:model.py:99<3ms"])


def test_wrong_words_are_usage_errors(write: Write) -> None:
    path = write(NET)
    for how in ({"by": "colour"}, {"allow": ["everything"]}, {"gate": "fast"}, {"steps_by": "("}):
        with pytest.raises(UsageError):
            compare(path, path, **how)
    with pytest.raises(UsageError):
        diff([], [Trace.open(path)])
    with pytest.raises(UsageError, match="twice"):
        compare([path, path], path)
    with pytest.raises(NotEnoughDataError, match="no finished range"):
        compare(path, path, steps_by="^nowhere$")


@pytest.mark.parametrize("by", ["line", "function", "kernel"])
def test_every_grouping_adds_up(write: Write, by: str) -> None:
    result = compare(write(NET), write(NET | {12: ("tanh", MS)}), by=by)
    kinds = {row.kind for row in result.rows}
    assert by in kinds and "idle" in kinds


def test_the_cause_of_new_idle_time_is_named(tmp_path: Path) -> None:
    def steps(name: str, host_ns: int) -> Path:
        builder = TraceBuilder()
        for number in range(4):
            builder.now_ns = start_ns = max([builder.now_ns, *builder.gpu_free_ns.values()])
            builder.launch("gemm", MS, stack="/app/train.py:8 main")
            builder.gap(MS + host_ns).launch("gelu", MS, stack="/app/train.py:9 main")
            builder.range(f"ProfilerStep#{number}", start_ns, max(builder.gpu_free_ns.values()))
        return builder.write(tmp_path / name)

    result = compare(steps("a.sqlite", 0), steps("b.sqlite", 3 * MS))
    idle = result.rows[0]
    assert (idle.key, idle.state) == ("idle", "slower") and idle.change_ns == 3 * MS
    part = idle.parts[0]
    assert (part.name, part.file, part.line) == ("host code before", "/app/train.py", 9)
    assert part.after_ns - part.before_ns == pytest.approx(3 * MS, rel=0.01)


@pytest.mark.parametrize("culprit", ["slow", "loop"])
def test_the_fixed_heavy_layer(tmp_path: Path, culprit: str) -> None:
    """The trainings of the exercise, each recorded four times: the fix and nothing else shows."""
    sides = [
        [training_trace(tmp_path / f"{which}{i}.sqlite", which) for i in range(4)]
        for which in (culprit, "fast")
    ]
    result = compare(*sides, gate="3%")
    assert result.state == "faster" and result.comparable
    line = line_of("model.py", "return heavy_layer(")
    changed = [row for row in result.rows if row.change_ns]
    assert {(row.file, row.line) for row in changed if row.kind == "line"} == {
        ("/home/learner/model.py", line)
    }
    kernels = {part.name for row in changed for part in row.parts if row.kind == "line" and part.after_ns}
    assert "heavy_layer_fast_kernel" in kernels
    assert compare(*reversed(sides), gate="3%").state == "slower"


@pytest.mark.parametrize("name", ["autograd_nvtx_h200", "fsdp_inference_2xh100", "sampling_h200"])
@pytest.mark.parametrize("by", ["line", "kernel"])
def test_any_recording_equals_itself(captures: Path, name: str, by: str) -> None:
    path = captures / f"{name}.sqlite"
    result = compare(path, path, by=by)
    assert result.comparable and result.state == "within the noise"
    assert all(row.change_ns == 0 for row in result.rows)
    capture = result.captures_before[0]
    assert (capture.part_ns.sum(axis=1) + capture.twice_ns == capture.whole_ns).all()
    assert (capture.part_ns >= 0).all() and (capture.twice_ns <= 0).all()


@pytest.fixture
def resnet(captures: Path) -> tuple[Path, Path]:
    before, after = (captures / f"resnet50_num_workers_{workers}.pt.trace.json.gz" for workers in (0, 4))
    return before, after


def test_more_loader_workers_are_an_improvement(resnet: tuple[Path, Path]) -> None:
    """A real pair in which the mean and any single step would mislead."""
    result = compare(*resnet, gate="3%")
    assert result.comparable and result.state == "faster"
    assert (result.before.median_ns, result.after.median_ns) == (176_273_000, 126_548_000)
    assert result.after.slowest_ns > result.before.slowest_ns
    assert result.interval is not None and result.interval.high_ns < 0
    idle = result.rows[0]
    assert idle.key == "idle" and idle.state == "faster"
    loading = idle.parts[0]
    assert (loading.name, loading.file, loading.line) == ("data loading", "resnet50_profiler_api.py", 42)
    assert loading.before_ns > 40 * MS and loading.after_ns < MS
    assert result.gate is not None and result.gate.outcome == "pass"


def test_the_way_back_is_a_regression(resnet: tuple[Path, Path]) -> None:
    result = compare(resnet[1], resnet[0], gate="3%")
    assert result.state == "slower" and result.gate is not None
    assert result.gate.outcome == "fail"


def test_recordings_of_the_exercise(repo: Path) -> None:
    folder = repo / "profiling_lab/exercises/e17_python_backtrace/recorded"
    ours, theirs = folder / "demo_h200.sqlite", folder / "nsys_h200.sqlite"
    result = compare(ours, ours)
    assert result.rows[0].key == "model.py:87 forward" and result.state == "within the noise"
    assert not compare(theirs, ours).comparable, "two methods of recording"
    mixed = rows(compare(theirs, ours, allow=["method"]))
    assert mixed["model.py:87 forward"].before_ns == pytest.approx(9.7 * MS, rel=0.01)
    assert mixed["model.py:87 forward"].after_ns == pytest.approx(9.7 * MS, rel=0.01)
