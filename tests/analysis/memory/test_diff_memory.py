# SPDX-License-Identifier: Apache-2.0
"""Peaks of two recordings compared: lines that moved, the sums, several recordings and GPUs, and the gate."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
from memory_model.recordings import MIB, MemoryRecording, training

import profiling_lab
from profiling_lab.analysis.diff.memory import MemoryDiff, compare_memory
from profiling_lab.analysis.diff.verdict import parse_memory_limit
from profiling_lab.analysis.memory.devices import Place
from profiling_lab.analysis.memory.held import PeakMemory, PeakPart
from profiling_lab.errors import NotEnoughDataError, UsageError
from profiling_lab.trace.stacks import Frame


def part(line: int, size: int, kind: str = "kept", text: str = "", file: str = "/a/model.py") -> PeakPart:
    return PeakPart(Place(Frame("f", file, line), "forward", ""), kind, size, text)


def held(*parts: PeakPart, peaks: tuple[int, ...] = (), is_exact: bool = True) -> PeakMemory:
    return PeakMemory("run.sqlite", peaks or (sum(each.bytes for each in parts),), is_exact, parts)


def rows(result: MemoryDiff) -> list[tuple[int | None, int, str, int, int]]:
    """Line, line before, kind, bytes before, bytes after."""
    return [
        (row.place.frame.line if row.place.frame else None, row.line_before, row.kind, row.before_bytes,
         row.after_bytes)
        for row in result.rows
    ]  # fmt: skip


def test_two_recordings(tmp_path: Path) -> None:
    recordings = []
    for name, how in (("before", {"keep": 3 * MIB}), ("after", {"zero": True})):
        recording = MemoryRecording()
        training(recording, 6, **how)
        recordings.append((recording, recording.finish().write(tmp_path / f"{name}.sqlite")))
    (before, first), (after, second) = recordings
    table = profiling_lab.diff_memory(first, second)
    change = after.allocator.peak - before.allocator.peak
    assert sum(table["change_bytes"]) == change == table.summary["change_bytes"]
    assert (table.result.before_bytes, table.result.after_bytes) == (
        before.allocator.peak,
        after.allocator.peak,
    )
    assert (table[0].line, table[0].kind, table[0].after_bytes) == (40, "kept", 0)
    assert table[0].change_bytes == -table[0].before_bytes < 0
    gradients = next(row for row in table.to_dicts() if row["kind"] == "gradients")
    assert (gradients["before_bytes"], gradients["after_bytes"]) == (0, 8 * MIB)
    # Gradients are made by the engine, without Python frames: a row of their own, and no line is made up.
    assert gradients["line"] is None or gradients["linked"]
    assert len(profiling_lab.diff_memory(first, second, limit=2)) == 2
    # The ordinary comparison tells the peaks, too.
    times = profiling_lab.diff(first, second)
    assert times.summary["memory"] == table.summary
    assert any(line.startswith("  peak memory ") for line in times.header)


def test_a_recording_without_memory_is_no_peak_of_zero(tmp_path: Path) -> None:
    recording = MemoryRecording()
    training(recording, 6)
    path = recording.finish().write(tmp_path / "memory.sqlite")
    other = MemoryRecording()
    training(other, 6)
    plain = other.builder.write(tmp_path / "plain.sqlite")
    for sides in ((path, plain), (plain, path)):
        with pytest.raises(NotEnoughDataError, match=r"plain\.sqlite has no history of torch's allocator"):
            profiling_lab.diff_memory(*sides)
        with pytest.raises(NotEnoughDataError, match=r"plain\.sqlite has no history of torch's allocator"):
            profiling_lab.diff(*sides, gate_memory="5%")
        table = profiling_lab.diff(*sides)
        assert table.summary["memory"] is None and not any("peak memory" in line for line in table.header)


def test_a_part_of_a_recording_is_refused(tmp_path: Path) -> None:
    recording = MemoryRecording()
    training(recording, 6)
    path = recording.finish().write(tmp_path / "run.sqlite")
    with profiling_lab.open(path, step=2) as one, pytest.raises(UsageError, match="whole recordings, not of"):
        profiling_lab.diff_memory(one, path)


@pytest.mark.parametrize("with_text", [True, False])
def test_lines_that_an_edit_moved_keep_their_partner(with_text: bool) -> None:
    def text(content: str) -> str:
        return content if with_text else ""

    before = held(
        part(30, 10, "activations", text("x = a(x)")), part(31, 20, "kept", text("y.append(x)")),
        part(33, 5, "temporary", text("z = b(x)")),
    )  # fmt: skip
    after = held(
        part(32, 10, "activations", text("x = a(x)")), part(33, 70, "kept", text("y.append(x)")),
        part(35, 5, "temporary", text("z = b(x)")),
    )  # fmt: skip
    assert rows(compare_memory([before], [after])) == [
        (33, 31, "kept", 20, 70),
        (32, 30, "activations", 10, 10),
        (35, 33, "temporary", 5, 5),
    ]


def test_the_number_of_a_removed_line_is_another_lines() -> None:
    before = held(part(30, 10, text="a"), part(31, 20, text="b"), part(32, 30, text="c"))
    after = held(part(30, 10, text="a"), part(31, 30, text="c"), part(32, 1, text="d"), part(33, 2, text="e"))
    result = compare_memory([before], [after])
    assert rows(result) == [
        (31, 0, "kept", 20, 0),
        (33, 0, "kept", 0, 2),
        (32, 0, "kept", 0, 1),
        (31, 32, "kept", 30, 30),
        (30, 0, "kept", 10, 10),
    ]
    keys = [row.key for row in result.rows]
    assert len(set(keys)) == len(keys) and keys[0].endswith("(before)")


def test_folders_may_differ_and_classes_need_not_be_known() -> None:
    linked = dataclasses.replace(part(30, 7), place=Place(Frame("Net.f", "/old/model.py", 30), "forward", ""))
    before = held(part(30, 10, file="/old/model.py"), linked)
    result = compare_memory([before], [held(part(30, 12, file="/new/model.py"))])
    assert rows(result) == [(30, 0, "kept", 17, 12)]
    assert result.rows[0].place.frame == Frame("f", "/new/model.py", 30)


def test_what_has_no_line_is_a_row_of_its_own() -> None:
    nowhere = PeakPart(Place(None, "backward", "no Python frames"), "gradients", 50, "")
    other = dataclasses.replace(nowhere, place=Place(None, "backward", "older"), bytes=3)
    for by in ("line", "function"):
        result = compare_memory([held(part(30, 10), nowhere)], [held(part(30, 10), nowhere, other)], by)
        assert rows(result)[0] == (None, 0, "gradients", 0, 3)
        assert (None, 0, "gradients", 50, 50) in rows(result) and len(result.rows) == 3


def test_by_function_lines_are_summed() -> None:
    result = compare_memory([held(part(30, 10), part(35, 20))], [held(part(41, 50))], "function")
    assert [(row.before_bytes, row.after_bytes, row.line_before) for row in result.rows] == [(30, 50, 0)]


GIB = 1 << 30


def gate(limit: str, before: list[PeakMemory], after: list[PeakMemory], *allow: str) -> tuple[str, bool]:
    found = compare_memory(before, after, limit=parse_memory_limit(limit), allow=allow).gate
    assert found is not None and bool(found.why) == (found.outcome == "undecided")
    return found.outcome, found.is_noise


def of(*peaks: int, is_exact: bool = True) -> PeakMemory:
    return held(part(1, sum(peaks)), peaks=peaks, is_exact=is_exact)


@pytest.mark.parametrize(
    ("limit", "outcome"),
    [("5%", "fail"), ("10%", "pass"), ("0%", "fail"), ("9.9MB", "fail"), ("10MB", "pass"), ("10MiB", "pass")],
)
def test_gate(limit: str, outcome: str) -> None:
    assert gate(limit, [of(100_000_000)], [of(110_000_000)]) == (outcome, False)
    assert gate(limit, [of(110_000_000)], [of(100_000_000)]) == ("pass", False)


def test_gate_over_several_recordings_of_a_side() -> None:
    assert gate("5%", [of(100), of(99)], [of(111), of(110)])[0] == "fail"
    assert gate("5%", [of(100), of(99)], [of(103), of(100)])[0] == "pass"
    assert gate("5%", [of(100), of(99)], [of(111), of(100)]) == ("undecided", True)


def test_gate_over_several_gpus() -> None:
    # 8 GPUs together grow by 2 %, but the fullest by 16 %.
    assert gate("5%", [of(*[100] * 8)], [of(*[100] * 7, 116)])[0] == "fail"
    # All but the fullest grow.
    assert gate("5%", [of(100, 50, 50)], [of(100, 90, 90)])[0] == "fail"
    assert gate("5%", [of(100, 50)], [of(101, 51)])[0] == "pass"
    assert gate("5%", [of(100)], [of(100, 100)]) == ("undecided", False)
    assert gate("200%", [of(100)], [of(100, 100)], "gpu")[0] == "pass"


@pytest.mark.parametrize(
    ("before", "after", "outcome"),
    [
        (of(100, is_exact=False), of(101), "pass"),  # a higher peak before leaves even more room
        (of(100, is_exact=False), of(150), "undecided"),
        (of(100), of(101, is_exact=False), "undecided"),
        (of(100), of(150, is_exact=False), "fail"),
    ],
)
def test_a_peak_that_may_have_been_higher_claims_nothing(
    before: PeakMemory, after: PeakMemory, outcome: str
) -> None:
    assert gate("5%", [before], [after]) == (outcome, False)


@pytest.mark.parametrize("text", ["5", "5 percent", "2ms", "-1%", "5%%", "", "GiB"])
def test_limits_that_are_none(text: str) -> None:
    with pytest.raises(UsageError, match=r"expected a limit like 5%, 512MiB or 2GB, not "):
        parse_memory_limit(text)


@pytest.mark.parametrize(
    ("ask", "sentence"),
    [
        (lambda path: profiling_lab.diff_memory(path, path, by="kernel"), "one of line, function for memory"),
        (lambda path: profiling_lab.diff_memory(path, path, allow="x"), "allow must be of gpu, driver"),
        (lambda path: profiling_lab.diff_memory([], path), "at least one recording from before"),
    ],
)  # fmt: skip
def test_wrong_arguments(ask: Callable[[Path], object], sentence: str, tmp_path: Path) -> None:
    recording = MemoryRecording()
    training(recording, 4)
    with pytest.raises(UsageError, match=sentence):
        ask(recording.finish().write(tmp_path / "run.sqlite"))
