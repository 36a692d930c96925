# SPDX-License-Identifier: Apache-2.0
"""Critical paths of made programs with known answers, and predictions that come true."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_traces.machine import CALL_NS, LATENCY_NS, PAUSE_NS, made
from made_traces.programs import (
    PROGRAMS,
    gpu_bound,
    host_bound,
    sync_in_the_middle,
    two_streams,
    with_backward,
)

from profiling_lab.analysis.critical_path.critical_path import CriticalPath
from profiling_lab.analysis.critical_path.kinds import GROUPS, KINDS, Kind
from profiling_lab.errors import UsageError
from profiling_lab.report.critical_path import verdict


def groups(path: CriticalPath) -> dict[str, float]:
    return {name: ns / path.step.length_ns for name, ns in zip(GROUPS, path.group_ns, strict=True)}


def of_line(path: CriticalPath, line: int) -> dict[str, int]:
    return next((row.kind_ns for row in path.lines if row.frame and row.frame.line == line), {})


@pytest.mark.parametrize("name", PROGRAMS)
def test_lines_and_links_are_the_step(name: str, tmp_path: Path) -> None:
    found = made(PROGRAMS[name], tmp_path / "run.sqlite")
    path, chain = found.by_line(), found.chain()
    assert sum(row.path_ns for row in path.lines) == path.step.length_ns == sum(path.group_ns)
    assert sum(link.ns for link in chain.links) == path.step.length_ns
    starts = [link.start_ns for link in chain.links]
    ends = [link.start_ns + link.ns for link in chain.links]
    assert starts == [path.step.start_ns, *ends[:-1]] and ends[-1] == starts[0] + path.step.length_ns
    assert groups(path)["unknown"] == 0


@pytest.mark.parametrize("factor", [0.0, 0.25, 0.5, 2.0])
@pytest.mark.parametrize("name", PROGRAMS)
def test_what_if_tells_what_would_have_been(name: str, factor: float, tmp_path: Path) -> None:
    """Each line of each program, changed and made again."""
    found = made(PROGRAMS[name], tmp_path / "run.sqlite")
    lines = {site.frame.line for site in found.graph.sites if site.frame}
    assert len(lines) >= 2
    for line in sorted(lines):
        (row,) = found.what_if([f"train.py:{line}={factor}"]).rows
        truth = made(PROGRAMS[name], tmp_path / f"{line}.sqlite", {line: factor}).by_line()
        assert row.after_ns == pytest.approx(truth.step.length_ns, abs=2 * PAUSE_NS), line


def test_gpu_bound(tmp_path: Path) -> None:
    found = made(gpu_bound, tmp_path / "run.sqlite")
    path = found.by_line()
    assert groups(path)["GPU"] > 0.99
    assert of_line(path, 11) == {"kernel": 700_000, KINDS[Kind.BETWEEN]: PAUSE_NS}
    assert verdict(path) == "the step is set by the GPU for 99.8 %, most of it at /app/train.py:11"
    # A kernel on the path is worth its time, and no more once the host sets the pace.
    assert found.what_if(["kernel_11=0.5"]).rows[0].gain_ns == 350_000
    assert path.lines[0].gain_ns == 700_000 + PAUSE_NS


def test_host_bound(tmp_path: Path) -> None:
    found = made(host_bound, tmp_path / "run.sqlite")
    path = found.by_line()
    assert groups(path)["host"] > 0.95 and verdict(path).endswith("most of it at /app/train.py:10")
    # Faster kernels win nothing, however much GPU time they take.
    assert found.what_if(["kernel=0"]).rows[0].gain_ns == 0
    assert found.what_if(["host code=0.5"]).rows[0].gain_ns == 30_000


def test_two_streams_wait_for_each_other(tmp_path: Path) -> None:
    found = made(two_streams, tmp_path / "run.sqlite")
    path = found.by_line()
    assert of_line(path, 11)["kernel"] == 400_000 and not of_line(path, 12)
    assert KINDS[Kind.EVENT_WAIT] in of_line(path, 21) and "an event stands for" in path.notes[0]
    # Line 12 has 150 us on the other stream and wins nothing; line 11 wins until line 12 takes its place.
    ranking = {row.key.rpartition(":")[2]: row.gain_ns for row in found.what_if(["all"]).rows}
    assert "12=0" not in ranking and found.what_if(["train.py:12=0"]).rows[0].gain_ns == 0
    assert 240_000 < ranking["11=0"] < 260_000


def test_a_sync_that_is_gone_lets_the_host_go_ahead(tmp_path: Path) -> None:
    found = made(sync_in_the_middle, tmp_path / "run.sqlite")
    row = next(row for row in found.by_line().lines if row.frame and row.frame.line == 15)
    assert row.path_ns < 10_000 < 50_000 < (row.gain_ns or 0), "its own time is little, what it causes is not"


def test_backward_follows_forward_on_another_thread(tmp_path: Path) -> None:
    found = made(with_backward, tmp_path / "run.sqlite")
    path = found.by_line()
    assert groups(path)["host"] > 0.95
    # Both launches of backward (40 us each) belong to the line of forward.
    in_launch = LATENCY_NS - CALL_NS  # of the kernel that begins the step: after its call
    assert of_line(path, 10)["host code"] == 2 * 20_000 + 15_000 + 2 * 40_000 - in_launch
    assert found.what_if(["host code=0"]).rows[0].gain_ns > 140_000


@pytest.mark.parametrize("wrong", ["train.py:10", "train.py:10=-1", "=0.5", "train.py:10=nan", "x=1=much"])
def test_a_change_that_is_none(wrong: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="expected LINE=FACTOR"):
        made(gpu_bound, tmp_path / "run.sqlite").what_if([wrong])


def test_a_change_of_nothing_names_what_there_is(tmp_path: Path) -> None:
    found = made(gpu_bound, tmp_path / "run.sqlite")
    with pytest.raises(UsageError, match=r"lines are train.py:11, train.py:10; kinds are host code, launch"):
        found.what_if(["train.py:99=0"])
    with pytest.raises(UsageError, match="regular expression"):
        found.what_if(["*=0"])


def test_changes_together(tmp_path: Path) -> None:
    found = made(gpu_bound, tmp_path / "run.sqlite")
    rows = found.what_if(["train.py:10=0.5", "train.py:11=0.5"]).rows
    assert [row.key for row in rows] == ["train.py:10=0.5", "train.py:11=0.5", "all of these"]
    assert rows[2].gain_ns == rows[0].gain_ns + rows[1].gain_ns
