# SPDX-License-Identifier: Apache-2.0
"""speedscope and collapsed stacks"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from builders import TraceBuilder
from package_root import PACKAGE_ROOT

from profiling_lab.errors import NotEnoughDataError
from profiling_lab.export.collapsed import write_collapsed
from profiling_lab.export.speedscope import SCHEMA, write_speedscope
from profiling_lab.trace import Trace

DEMO = PACKAGE_ROOT / "profiling_lab/exercises/e17_python_backtrace/recorded/demo_h200.sqlite"
LINEAR = "/v/site-packages/torch/nn/modules/linear.py:134 Linear.forward"


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    builder = TraceBuilder()
    for ns in (1000, 500):
        builder.launch(
            "gemm<a>", ns, stack=f"/app/train.py:9 main > /app/model.py:4 Net.forward > {LINEAR}", peek=1
        )
    builder.launch("gemm_t", 2000, node=0, node_name="MmBackward0", thread=2, peek=0)
    builder.launch("odd;name\n(x)", 7, stack="/app/a;b.py:1 <listcomp>", peek=1, short_name="odd;name\n(x)")
    builder.launch("early", 3, recorded=False)
    return Trace.open(builder.write(tmp_path / "t.sqlite"))


def check_speedscope(document: dict[str, Any]) -> None:
    """What the format's schema demands of sampled profiles."""
    assert document["$schema"] == SCHEMA and isinstance(document["name"], str)
    frames = document["shared"]["frames"]
    for frame in frames:
        assert isinstance(frame["name"], str) and set(frame) <= {"name", "file", "line", "col"}
        assert isinstance(frame.get("line", 0), int)
    assert 0 <= document["activeProfileIndex"] < len(document["profiles"])
    for profile in document["profiles"]:
        assert profile["type"] == "sampled" and profile["unit"] == "nanoseconds"
        assert set(profile) == {"type", "name", "unit", "startValue", "endValue", "samples", "weights"}
        assert len(profile["samples"]) == len(profile["weights"]) > 0
        assert all(stack and all(0 <= row < len(frames) for row in stack) for stack in profile["samples"])
        assert profile["endValue"] - profile["startValue"] == sum(profile["weights"])


def stacks_of(document: dict[str, Any]) -> dict[str, dict[tuple[str, ...], int]]:
    names = [frame["name"] for frame in document["shared"]["frames"]]
    out: dict[str, dict[tuple[str, ...], int]] = {}
    for profile in document["profiles"]:
        stacks = out.setdefault(profile["name"].split()[0], {})
        for rows, weight in zip(profile["samples"], profile["weights"], strict=True):
            stacks[tuple(names[row] for row in rows)] = weight
    return out


def test_speedscope_has_a_profile_per_phase(trace: Trace, tmp_path: Path) -> None:
    write_speedscope(trace, tmp_path / "s.json")
    document = json.loads((tmp_path / "s.json").read_text())
    check_speedscope(document)
    python = ("main", "Net.forward", "Linear.forward")
    assert stacks_of(document) == {
        "forward": {(*python, "gemm"): 1500, ("<listcomp>", "odd;name\n(x)"): 7},
        "backward": {(*python, "gemm_t"): 2000},
        "unknown": {("(launched before the recording began, or its call was not recorded)", "early"): 3},
    }
    assert document["shared"]["frames"][0] == {"name": "main", "file": "/app/train.py", "line": 9}


def test_own_frames_alone(trace: Trace, tmp_path: Path) -> None:
    write_speedscope(trace, tmp_path / "s.json", ("model.py",), own_only=True)
    document = json.loads((tmp_path / "s.json").read_text())
    check_speedscope(document)
    assert stacks_of(document)["forward"] == {
        ("Net.forward", "gemm"): 1500,
        ("(only library frames in the stack)", "odd;name\n(x)"): 7,
    }


def test_collapsed_stacks_are_lines_that_others_can_split(trace: Trace, tmp_path: Path) -> None:
    (written,) = write_collapsed(trace, tmp_path / "c.txt")
    lines = (tmp_path / "c.txt").read_text().splitlines()
    assert written.rows == len(lines) == 4
    parsed = {tuple(line.rpartition(" ")[0].split(";")): int(line.rpartition(" ")[2]) for line in lines}
    assert (
        parsed["backward", "main (/app/train.py:9)", "Net.forward (/app/model.py:4)", LINEAR_TEXT, "gemm_t"]
        == 2000
    )
    assert parsed["forward", "<listcomp> (/app/a,b.py:1)", "odd,name (x)"] == 7
    assert sum(parsed.values()) == 3510


LINEAR_TEXT = "Linear.forward (/v/site-packages/torch/nn/modules/linear.py:134)"


@pytest.mark.parametrize("own_only", [False, True])
def test_every_nanosecond_of_a_recording_is_in_both(tmp_path: Path, own_only: bool) -> None:
    with Trace.open(DEMO) as recording:
        gpu_ns = int(recording.operations.duration_ns.sum())
        write_speedscope(recording, tmp_path / "s.json", own_only=own_only)
        write_collapsed(recording, tmp_path / "c.txt", own_only=own_only)
    document = json.loads((tmp_path / "s.json").read_text())
    check_speedscope(document)
    assert sum(profile["endValue"] for profile in document["profiles"]) == gpu_ns
    lines = (tmp_path / "c.txt").read_text().splitlines()
    assert sum(int(line.rpartition(" ")[2]) for line in lines) == gpu_ns
    assert {line.split(";")[0] for line in lines} == {"forward", "backward", "optimizer"}
    assert any("model.py:87" in line for line in lines)
    assert own_only != any("site-packages/torch" in line for line in lines)


def test_nothing_to_show(tmp_path: Path) -> None:
    with (
        Trace.open(TraceBuilder().call("cudaMalloc").write(tmp_path / "t.sqlite")) as empty,
        pytest.raises(NotEnoughDataError, match="no GPU operation"),
    ):
        write_collapsed(empty, tmp_path / "c.txt")
