# SPDX-License-Identifier: Apache-2.0
"""README says only what is true: its figures come from results files, its paths exist, its commands run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from generated_page import assert_current
from package_root import PACKAGE_ROOT

from docs import shown_commands
from profiling_lab.cli import COMMANDS

REPO = Path(__file__).resolve().parents[1]
README = (REPO / "README.md").read_text()
LINES_AT_MOST, WIDTH_AT_MOST = 120, 120


def blocks(language: str) -> list[str]:
    return re.findall(rf"(?ms)^```{language}\n(.*?)^```$", README)


COMMAND_LINES = [line for block in blocks("bash") for line in block.splitlines()]
FINDING = ("profiling-lab check ", "profiling-lab exercise check ")  # where exit code 1 is an answer


def needs_gpu(line: str) -> bool:
    return re.search(r"# GPU\b", line) is not None


def test_it_is_short() -> None:
    lines = README.splitlines()
    assert len(lines) <= LINES_AT_MOST
    assert not [line for line in lines if len(line) > WIDTH_AT_MOST]


def test_figures_are_those_of_the_results_files(tmp_path: Path) -> None:
    assert_current("benchmark_tables.py", tmp_path)


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", README):
        assert target.startswith("http") or (REPO / target).exists(), target


def test_commands_exist() -> None:
    named = set(re.findall(r"profiling-lab ([a-z]+(?:-[a-z]+)*)", README))
    assert named <= set(COMMANDS), named - set(COMMANDS)


def test_the_two_commands_are_what_ci_runs() -> None:
    ci = (REPO / ".ci" / "run").read_text() if (REPO / ".ci" / "run").is_file() else None
    for command in ("pip install . && profiling-lab demo", 'pip install ".[test]" && pytest'):
        assert command in README
        assert ci is None or command in ci


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder like a clone, in which commands may write, and in front of the PATH `profiling-lab` itself."""
    folder = tmp_path_factory.mktemp("clone")
    for name in ("docs", "tests"):
        (folder / name).symlink_to(REPO / name)
    shown_commands.programs(folder)
    return folder


def assert_all_run(lines: list[str], run: Callable[[str], subprocess.CompletedProcess[str]]) -> None:
    assert lines
    for line in lines:
        done = run(line)
        allowed = (0, 1) if line.startswith(FINDING) else (0,)
        assert done.returncode in allowed, f"{line}\n{done.stdout}{done.stderr}"
        assert "Traceback" not in done.stderr, f"{line}\n{done.stderr}"


@pytest.mark.slow
def test_commands_run_as_they_stand(
    clone: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [line for line in COMMAND_LINES if not needs_gpu(line)]
    assert_all_run(lines, lambda line: shown_commands.run(line, clone, monkeypatch, capsys))
    assert (clone / "before.html").is_file() and (clone / "before.json.gz").is_file()


@pytest.mark.gpu
def test_commands_that_need_a_gpu_run_as_they_stand(clone: Path) -> None:
    assert_all_run([line for line in COMMAND_LINES if line.startswith("profiling-lab exercise start python")
                    and not (clone / "python_backtrace").exists()]
                   + [line for line in COMMAND_LINES if needs_gpu(line)],
                   lambda line: shown_commands.run_in_shell(line, clone))  # fmt: skip


def test_ten_commands_and_more_are_shown() -> None:
    """Guards the tests above: a change of the fences must not leave them with nothing to run."""
    assert len(COMMAND_LINES) >= 15 and sum(map(needs_gpu, COMMAND_LINES)) >= 2


@pytest.mark.parametrize("program", blocks("python"), ids=["record", "ops"])
def test_programs_run_as_they_stand(program: str, clone: Path) -> None:
    pytest.importorskip("torch")
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=clone,
        env=os.environ | {"PYTHONPATH": str(PACKAGE_ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
