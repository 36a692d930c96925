# SPDX-License-Identifier: Apache-2.0
"""The parts of a comparison by themselves: cutting into steps, noise, limits, and which line is which."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from builders import TraceBuilder
from hypothesis import given, settings
from hypothesis import strategies as st

from profiling_lab.analysis.diff.align import same_files, same_lines
from profiling_lab.analysis.diff.measure import IDLE, base_name, measure
from profiling_lab.analysis.diff.noise import Interval
from profiling_lab.analysis.diff.verdict import outcome_of, parse_budget, parse_limit, state_of
from profiling_lab.errors import UsageError
from profiling_lab.trace import Trace


@pytest.mark.parametrize(
    "text",
    ["", "step", "step<", "step<3", "speed<3ms", "line<3ms", "line:model.py<3ms", "step:x<3ms", "step<-3ms"],
)
def test_invalid_budgets(text: str) -> None:
    with pytest.raises(UsageError, match="expected"):
        parse_budget(text)


def test_limits() -> None:
    assert parse_limit("3%").of(200) == 6 and parse_limit("2.5ms").of(7) == 2_500_000
    assert parse_limit("10us").of(0) == parse_limit("10 µs").of(0) == 10_000
    assert parse_budget("kernel:gemm<float><3ms").name == "gemm<float>"
    for text in ("3", "%", "three", "3 min", "-3%"):
        with pytest.raises(UsageError):
            parse_limit(text)


def test_states_and_outcomes_are_refused_inside_the_noise() -> None:
    assert [
        state_of(i) for i in (None, Interval(-2, -1), Interval(1, 2), Interval(0, 2), Interval(-2, 0))
    ] == [
        "undecided",
        "faster",
        "slower",
        "within the noise",
        "within the noise",
    ]
    assert [outcome_of(i, 5) for i in (None, Interval(6, 9), Interval(1, 5), Interval(5, 9))] == [
        "undecided",
        "fail",
        "pass",
        "undecided",
    ]


def test_parts_of_a_step_add_up_with_streams_that_overlap(tmp_path: Path) -> None:
    builder = TraceBuilder()
    for number in range(5):
        start = 1_000_000 + number * 100_000
        builder.launch("a", 60_000, stream=1, start_ns=start + 5_000)
        builder.launch("b", 50_000, stream=2, start_ns=start + 30_000)
        builder.launch("c", 40_000, stream=1, device=1, start_ns=start + 90_000)  # into the next step
        builder.range(f"ProfilerStep#{number}", start, start + 100_000)
    capture = measure(Trace.open(builder.write(tmp_path / "run.sqlite")))
    assert capture.devices == 2 and capture.whole_ns.tolist() == [200_000] * 5
    assert (capture.part_ns.sum(axis=1) + capture.twice_ns == capture.whole_ns).all()
    assert capture.twice_ns.tolist() == [-35_000] * 5
    by_kernel = {kernel: capture.part_ns[:, i].tolist() for i, (_, kernel) in enumerate(capture.places)}
    assert by_kernel["c"] == [10_000, 40_000, 40_000, 40_000, 40_000]


def test_a_device_outside_of_the_steps_takes_no_part_in_them(tmp_path: Path) -> None:
    builder = TraceBuilder()
    builder.launch("setup", 1000, device=1, start_ns=1_000)
    for number in range(4):
        builder.launch("a", 60_000, start_ns=10_000 + number * 100_000)
        builder.range(f"ProfilerStep#{number}", 10_000 + number * 100_000, 110_000 + number * 100_000)
    builder.launch("teardown", 1000, device=1, start_ns=900_000)
    capture = measure(Trace.open(builder.write(tmp_path / "run.sqlite")))
    assert capture.devices == 1 and capture.whole_ns.tolist() == [100_000] * 4
    idle = [i for i, (place, _) in enumerate(capture.places) if place.phase == IDLE]
    assert capture.part_ns[:, idle].sum(axis=1).tolist() == [40_000] * 4


@settings(max_examples=40)
@given(
    operations=st.lists(
        st.tuples(st.integers(0, 900), st.integers(0, 300), st.integers(0, 1), st.integers(0, 2)),
        min_size=1,
        max_size=25,
    )
)
def test_clipping_against_counting_every_nanosecond(
    operations: list[tuple[int, int, int, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    builder = TraceBuilder()
    for start, length, device, stream in operations:
        builder.launch(f"k{stream}", length, device=device, stream=stream, start_ns=10_000 + start)
    bounds = [(10_000 + 100 * i, 10_000 + 100 * i + 80 + 5 * (i % 4)) for i in range(8)]
    for number, (start, end) in enumerate(bounds):
        builder.range(f"ProfilerStep#{number}", start, end)
    capture = measure(Trace.open(builder.write(tmp_path_factory.mktemp("t") / "run.sqlite")))
    used = {d for s, n, d, _ in operations for a, b in bounds if min(b, 10_000 + s + n) > max(a, 10_000 + s)}
    idle = np.array([place.phase == IDLE for place, _ in capture.places])
    for i, (start, end) in enumerate(bounds):
        busy, parts = 0, 0
        for device in used:
            mine = [(10_000 + s, 10_000 + s + n) for s, n, d, _ in operations if d == device]
            busy += sum(any(a <= t < b for a, b in mine) for t in range(start, end))
            parts += sum(max(0, min(end, b) - max(start, a)) for a, b in mine)
        assert capture.part_ns[i, ~idle].sum() == parts
        assert capture.twice_ns[i] == busy - parts
        assert capture.part_ns[i, idle].sum() == len(used) * (end - start) - busy
        assert (capture.part_ns[i] >= 0).all()


def test_same_files_by_the_longest_common_end() -> None:
    assert same_files(["/a/x/m.py", "/a/y/m.py"], ["/b/x/m.py", "/b/y/m.py"]) == {
        "/b/x/m.py": "/a/x/m.py",
        "/b/y/m.py": "/a/y/m.py",
    }
    assert same_files(["/a/m.py"], ["/b/n.py"]) == {}
    assert same_files(["/a/m.py", "/b/m.py"], ["/c/m.py"]) == {}, "two candidates, none closer"
    assert same_files(["m.py"], ["m.py"]) == {"m.py": "m.py"}


def test_lines_keep_their_number_unless_shifted_fits_better() -> None:
    def lines(*found: tuple[int, str]) -> dict[tuple[str, str, int], frozenset[tuple[str, str]]]:
        return {("m.py", "f", n): frozenset({("forward", kernel)}) for n, kernel in found}

    def pairs(before: tuple[tuple[int, str], ...], after: tuple[tuple[int, str], ...]) -> dict[int, int]:
        return {a[2]: b[2] for a, b in same_lines(lines(*before), lines(*after)).items()}

    alike = ((1, "gemm"), (2, "gemm"), (3, "gemm"))
    assert pairs(alike, (alike[0], alike[2])) == {1: 1, 3: 3}
    assert pairs(alike, ((4, "gemm"), (5, "gemm"), (6, "gemm"))) == {4: 1, 5: 2, 6: 3}
    assert pairs(((1, "a"), (2, "b")), ((1, "a"), (2, "c"))) == {1: 1, 2: 2}, "its kernel changed, it did not"


def test_base_names_have_no_template_arguments() -> None:
    assert base_name("vectorized_elementwise_kernel<4, Fill<float>>") == "vectorized_elementwise_kernel"
    assert base_name("<lambda>") == "<lambda>"
