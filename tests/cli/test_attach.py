# SPDX-License-Identifier: Apache-2.0
"""`profiling-lab attach`: what cannot be asked; tests/recorder/test_live.py attaches."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from cli.script_runs import run, write


def attach(folder: Path, *arguments: str) -> tuple[int, str]:
    done = run(folder, "-m", "profiling_lab", "attach", *arguments, PROFILING_LAB_SOCKETS=str(folder / "s"))
    return done.code, done.err


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("4194305", "--steps", "5"), "there is no process 4194305"),
        (("OURS", "--steps", "5"), "cannot be attached to: start it with"),
        (("OURS",), "one of the arguments --steps --seconds is required"),
        (("OURS", "--steps", "5", "--seconds", "2"), "not allowed with"),
        (("OURS", "--seconds", "0"), "a number of seconds above 0, not 0"),
        (("moon", "--steps", "5"), "invalid int value: 'moon'"),
    ],
)
def test_what_cannot_be_asked(tmp_path: Path, arguments: tuple[str, ...], part: str) -> None:
    ours = str(os.getpid())
    code, err = attach(tmp_path, *(ours if text == "OURS" else text for text in arguments))
    assert code == 2 and part in err


def test_help_has_examples(tmp_path: Path) -> None:
    done = run(tmp_path, "-m", "profiling_lab", "attach", "--help")
    assert done.code == 0 and "profiling-lab attach 4711 --steps 5 -o run.sqlite" in done.out


@pytest.mark.parametrize(
    "option",
    [
        *(("-o", "x.sqlite"), ("--steps", "1:2"), ("--budget", "1%"), ("--no-nvtx",), ("--no-source",)),
        *(("--memory",), ("--work",), ("--work-step", "3")),
    ],
)
def test_dormant_takes_no_other_plan(tmp_path: Path, option: tuple[str, ...]) -> None:
    write(tmp_path, "print('ran')")
    done = run(tmp_path, "-m", "profiling_lab", "record", "--dormant", *option, "script.py")
    assert done.code == 2 and "tell profiling-lab attach" in done.err and not done.out


@pytest.mark.parametrize(("text", "code"), [("raise SystemExit(7)", 7), ("1 / 0", 1), ("print('ran')", 0)])
def test_a_dormant_script_ends_as_alone(tmp_path: Path, text: str, code: int) -> None:
    write(tmp_path, text)
    alone = run(tmp_path, "script.py")
    done = run(
        tmp_path,
        *("-m", "profiling_lab", "record", "--dormant", "script.py"),
        PROFILING_LAB_SOCKETS=str(tmp_path / "s"),
    )
    assert (done.code, done.out, done.err) == (alone.code, alone.out, alone.err) and done.code == code
    assert not list((tmp_path / "s").iterdir()), "its socket is gone"
