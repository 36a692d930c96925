# SPDX-License-Identifier: Apache-2.0
"""`profiling-lab status`: which processes can be asked."""

from __future__ import annotations

from pathlib import Path

from cli.script_runs import run


def status(folder: Path, *arguments: str) -> tuple[int, str, str]:
    done = run(folder, "-m", "profiling_lab", "status", *arguments, PROFILING_LAB_SOCKETS=str(folder / "s"))
    return done.code, done.out, done.err


def test_no_dormant_job(tmp_path: Path) -> None:
    code, out, _ = status(tmp_path)
    assert code == 0 and "record --dormant" in out


def test_a_process_that_is_not_there(tmp_path: Path) -> None:
    code, _, err = status(tmp_path, "4194305")  # above the kernel's largest
    assert code == 2 and "there is no process 4194305" in err


def test_a_file_in_the_folder_that_is_not_a_socket(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir(mode=0o700)
    for name in ("notes.txt", "x.sock", "-1.sock", "4194305.sock"):
        (tmp_path / "s" / name).write_text("")
    code, out, _ = status(tmp_path)
    assert code == 0 and "no process can be attached to" in out


def test_a_folder_of_others(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir(mode=0o755)
    code, _, err = status(tmp_path)
    assert code == 1 and "must belong to user" in err and "0755" in err


def test_a_folder_that_is_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "s").symlink_to(tmp_path / "real")
    code, _, err = status(tmp_path)
    assert code == 1 and "cannot be used" in err
