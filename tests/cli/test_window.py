# SPDX-License-Identifier: Apache-2.0
"""--range, --step, --nvtx, --rank and --device on every command that reads a trace."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from builders import TraceBuilder

from profiling_lab.cli import build_parser, main

OF_ONE_TRACE = (
    "lines",
    "kernels",
    "apis",
    "copies",
    "syncs",
    "ranges",
    "streams",
    "steps",
    "gaps",
    "overlap",
    "check",
    "info",
)


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    builder = TraceBuilder()
    for _ in range(5):
        begin = builder.now_ns
        builder.launch("gemm", 20_000, stack="/app/t.py:1 main").copy("HtoD", 1000).gap(50_000)
        builder.range("training_step", begin, builder.now_ns)
    return builder.write(tmp_path / "run.sqlite")


@pytest.mark.parametrize("command", OF_ONE_TRACE)
def test_header_and_json_say_which_part_it_is(
    recording: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    assert main([command, str(recording), "--step", "1"]) in (0, 1)
    assert (
        "window: step 1 of 0 to 4 (the program's training_step #2); on the GPU from "
        in capsys.readouterr().out
    )
    main([command, str(recording), "--step", "1", "--device", "0", "--format", "json"])
    envelope = json.loads(capsys.readouterr().out)
    window = envelope["coverage"]["window"]
    assert window["asked"] == {"step": "1", "device": "0"} and window["start_ns"] < window["end_ns"]
    assert envelope["coverage"]["operations"] == 2 and envelope["coverage"]["gpu_ns"] == 21_000
    main([command, str(recording), "--format", "json"])
    assert json.loads(capsys.readouterr().out)["coverage"]["window"] is None


@pytest.mark.parametrize("command", OF_ONE_TRACE)
@pytest.mark.parametrize(
    ("options", "status", "message"),
    [
        (["--range", "7s:8s"], 3, "no GPU operation in this window (7s to 8s)"),
        (["--range", "8s:7s"], 2, "ends before it begins"),
        (["--step", "5"], 2, "the trace has 5 steps, 0 to 4"),
        (["--nvtx", "epoch"], 3, "no range named 'epoch'; it has 'training_step'"),
        (["--rank", "1"], 2, "the trace has rank 0"),
        (["--device", "-1"], 2, "the trace has device 0"),
        (["--step", "0", "--range", "300us:310us"], 3, "no GPU operation in this window"),
    ],
)
def test_an_empty_part_is_an_error(
    recording: Path,
    capsys: pytest.CaptureFixture[str],
    command: str,
    options: list[str],
    status: int,
    message: str,
) -> None:
    assert main([command, str(recording), *options]) == status
    out, err = capsys.readouterr()
    assert message in err and out == ""


def test_between_the_parts_nothing_is_idle(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The steps keep the GPU busy, the evaluation between them does not: it is not looked at."""
    builder = TraceBuilder()
    for name in ("step", "evaluate", "step"):
        begin = builder.now_ns
        for _ in range(40):
            builder.launch("gemm", 20_000 if name == "step" else 100)
        builder.range(name, begin, builder.now_ns).gap(5_000_000)
    path = builder.write(tmp_path / "run.sqlite")
    rules = ("low_utilisation", "gpu_gaps")
    found = {}
    for options in ([], ["--nvtx", "step"]):
        main(["check", str(path), *options, "--only", ",".join(rules), "--format", "json"])
        rows = json.loads(capsys.readouterr().out)["data"]["rows"]
        found[len(options)] = {each["rule"] for row in rows for each in (row, *row["effects"])}
    assert found == {0: set(rules), 2: set()}


def test_a_device_without_work_in_the_part(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    builder = TraceBuilder()
    for start, device in ((2000, 0), (2000, 1), (2300, 0), (2900, 0), (2900, 1)):
        builder.launch("a", 50_000, start_ns=start * 1000, device=device, stack="/app/t.py:1 main")
    path = builder.write(tmp_path / "run.sqlite")
    none_there = {"apis", "copies", "syncs", "ranges"}  # the host was done long before
    for command in OF_ONE_TRACE:
        status = main([command, str(path), "--range", "1100us:1500us"])
        assert status in (0, 1) or (status == 3 and command in none_there), command
    capsys.readouterr()


def test_diff_takes_the_part_of_both_sides(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", str(recording), str(recording), "--step", "1:4", "--format", "json"]) == 0
    envelope = json.loads(capsys.readouterr().out)
    for side in ("before", "after"):
        assert envelope["data"]["summary"][side]["count"] == 3
        window = envelope["coverage"][side][0]["window"]
        assert window["text"] == "step 1:4 of 0 to 4 (the program's training_step #2 to training_step #4)"
    assert main(["diff", str(recording), str(recording), "--step", "7"]) == 2
    assert "--step 7: the trace has 5 steps" in capsys.readouterr().err


# Of a moment (--at) in the whole history; of the order of all launches.
WITHOUT_PARTS = {"memory", "ncu"}


def test_every_command_with_a_trace_has_the_options() -> None:
    """Whoever reads a trace file takes a part of it."""
    subparsers = build_parser()._subparsers
    assert subparsers is not None
    (commands,) = [action.choices for action in subparsers._group_actions]
    assert commands is not None
    for name, command in dict(commands).items():
        options = {option for action in command._actions for option in action.option_strings}
        if "--format" in options and any(action.dest == "trace" for action in command._actions):
            part = {"--range", "--step", "--nvtx", "--rank", "--device"} <= options
            assert part == (name not in WITHOUT_PARTS), name
