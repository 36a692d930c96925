# SPDX-License-Identifier: Apache-2.0
"""`profiling-lab record` runs what python runs: folders, archives, the standard input."""

from __future__ import annotations

import sys
import zipapp
from pathlib import Path

import pytest
from cli.script_runs import record, run, write

from profiling_lab.errors import UnreadableInputError
from profiling_lab.recording.run_script import find_script

ABOUT_ITSELF = """
import sys, neighbour
print(neighbour.VALUE, sys.argv, sys.path[0], __name__, __file__, __package__, __spec__ is None)
raise ValueError("from inside")
"""


@pytest.mark.parametrize("form", ["folder", "archive"])
def test_folders_and_archives_with_a_main(tmp_path: Path, form: str) -> None:
    write(tmp_path, ABOUT_ITSELF, "app/__main__.py")
    write(tmp_path, "VALUE = 5\n", "app/neighbour.py")
    if form == "archive":
        zipapp.create_archive(tmp_path / "app", tmp_path / "app.pyz", interpreter="/usr/bin/env python3")
    name = "app.pyz" if form == "archive" else "app"
    alone, recorded = run(tmp_path, name, "-x"), record(tmp_path, name, "-x")
    assert (recorded.out, recorded.code) == (alone.out, alone.code) and "5 " in alone.out
    assert recorded.err.splitlines()[-2:] == alone.err.splitlines()[-2:]  # without Python's own runpy
    assert "profiling_lab" not in recorded.err
    assert (tmp_path / "app.sqlite").is_file()


def test_script_from_the_standard_input(tmp_path: Path) -> None:
    write(tmp_path, "VALUE = 5\n", "neighbour.py")
    alone = run(tmp_path, "-", "-x", stdin=ABOUT_ITSELF)
    recorded = record(tmp_path, "-", "-x", stdin=ABOUT_ITSELF)
    assert (recorded.out, recorded.code) == (alone.out, alone.code) and "5 " in alone.out
    assert recorded.err.splitlines()[-1] == alone.err.splitlines()[-1]
    assert "profiling_lab" not in recorded.err
    assert (tmp_path / "stdin.sqlite").is_file()


def test_no_script_on_the_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(UnreadableInputError, match="but it is a terminal"):
        find_script("-")


def test_a_link_to_a_script_is_run_by_its_own_name(tmp_path: Path) -> None:
    write(tmp_path, "VALUE = 5\n", "real/neighbour.py")
    write(tmp_path, ABOUT_ITSELF, "real/train.py")
    (tmp_path / "link.py").symlink_to("real/train.py")
    alone, recorded = run(tmp_path, "link.py"), record(tmp_path, "link.py")
    assert (recorded.out, recorded.code) == (alone.out, alone.code) and "5 " in alone.out
    assert (tmp_path / "link.sqlite").is_file()
