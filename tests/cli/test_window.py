# SPDX-License-Identifier: Apache-2.0
"""--range, --step, --nvtx, --rank and --device on every command that reads a trace."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from builders import TraceBuilder

from profiling_lab.cli import build_parser, main

OF_ONE_TRACE = ("lines", "kernels", "steps", "gaps", "overlap", "check", "info")


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
    assert "window: step 1 of 0 to 4 (training_step #2); on the GPU from " in capsys.readouterr().out
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


def test_rules_look_at_one_stretch_of_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Between the parts nothing is idle: it is not looked at."""
    builder = TraceBuilder()
    for name in ("step", "evaluate", "step"):
        begin = builder.now_ns
        builder.launch("gemm", 20_000).gap(50_000)
        builder.range(name, begin, builder.now_ns)
    path = builder.write(tmp_path / "run.sqlite")
    assert main(["check", str(path), "--nvtx", "step"]) == 3
    out, err = capsys.readouterr()
    assert "has 2 parts" in err and "--nvtx NAME/I" in err and out == ""
    assert main(["check", str(path), "--nvtx", "step/0"]) in (0, 1)


def test_diff_takes_the_part_of_both_sides(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", str(recording), str(recording), "--step", "1:4", "--format", "json"]) == 0
    envelope = json.loads(capsys.readouterr().out)
    for side in ("before", "after"):
        assert envelope["data"]["summary"][side]["count"] == 3
        assert envelope["coverage"][side][0]["window"]["asked"] == {"step": "1:4"}
    assert main(["diff", str(recording), str(recording), "--step", "7"]) == 2
    assert "--step 7: the trace has 5 steps" in capsys.readouterr().err


def test_every_command_with_a_trace_has_the_options() -> None:
    """Whoever reads a trace file takes a part of it."""
    subparsers = build_parser()._subparsers
    assert subparsers is not None
    (commands,) = [action.choices for action in subparsers._group_actions]
    assert commands is not None
    for name, command in dict(commands).items():
        options = {option for action in command._actions for option in action.option_strings}
        if "--format" in options and any(action.dest == "trace" for action in command._actions):
            assert {"--range", "--step", "--nvtx", "--rank", "--device"} <= options, name
