# SPDX-License-Identifier: Apache-2.0
"""profiling-lab ab records in turns, under the fake CUPTI; what fails, or is stopped, leaves the rest."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from package_root import PACKAGE_ROOT

from profiling_lab.recording.turns.checkout import checked_out

REPO = Path(__file__).resolve().parents[2]
FAKES = REPO / "tests" / "recorder"
MS = 1_000_000

TRAIN = """\
import os, signal, sys, time
from fake_driver import Fake

fake = Fake()
def step(ns):
    fake.kernel("step", ns=ns)

step(int(sys.argv[1]) * 1000000)
with open("log", "a") as log:
    log.write(" ".join(sys.argv[1:]) + "\\n")
print("loss", sys.argv[1])
for word in sys.argv[2:]:
    if word == "fail":
        raise ValueError("no such layer")
    if word == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if word == "wait" and not os.path.exists("go"):
        open("waits", "w").close()
        time.sleep(300)
"""


class Desk:
    """A folder with train.py, in which `ab` runs."""

    def __init__(self, folder: Path, library: Path) -> None:
        self.folder, self.temporary = folder / "work", folder / "tmp"
        self.temporary.mkdir()
        self.folder.mkdir()
        (self.folder / "train.py").write_text(TRAIN)
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("NVTX_", "GIT_", "PROFILING_LAB"))}
        self.environment = {
            **kept,
            "PYTHONPATH": os.pathsep.join(map(str, [PACKAGE_ROOT, FAKES])),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PROFILING_LAB_CUPTI": str(library),
            "TMPDIR": str(self.temporary),
        }

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "profiling_lab", "ab", *words]

    def ab(self, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*words),
            cwd=self.folder,
            env={**self.environment, **more},
            capture_output=True,
            text=True,
            timeout=600,
        )

    def git(self, *words: str) -> str:
        who = ["-c", "user.name=A", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
        done = subprocess.run(
            ["git", *who, *words],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout

    def log(self) -> list[str]:
        return (self.folder / "log").read_text().splitlines()

    def left(self) -> list[str]:
        """Temporary folders."""
        return sorted(path.name for path in self.temporary.glob("profiling-lab-*"))


@pytest.fixture
def desk(tmp_path: Path, fake_cupti: Path) -> Desk:
    return Desk(tmp_path, fake_cupti)


def test_equal_programs_take_turns_and_leave_nothing(desk: Desk) -> None:
    done = desk.ab(
        "--runs",
        "2",
        "--own",
        "train.py",
        "--same-stdout",
        "--",
        "train.py",
        "5",
        "a",
        ":::",
        "train.py",
        "5",
        "b",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("NO CHANGE: 5.000 ms -> 5.000 ms per recording")
    assert "the standard output is the same in all 4 runs" in done.stdout
    assert desk.log() == ["5 a", "5 b", "5 b", "5 a"]
    assert re.findall(r"recording (\d) of 4: (\w), run (\d)", done.stderr) == [
        ("1", "A", "1"), ("2", "B", "1"), ("3", "B", "2"), ("4", "A", "2"),
    ]  # fmt: skip
    assert done.stderr.count(" left") == 3, "no estimate before the first run has ended"
    assert not desk.left() and {path.name for path in desk.folder.iterdir()} == {"train.py", "log"}


def test_slower_program_is_found_and_kept(desk: Desk) -> None:
    done = desk.ab(
        "--runs", "4", "--own", "train.py", "--keep", "kept", "--", "train.py", "5", ":::", "train.py", "7"
    )
    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith("SLOWER: 5.000 ms -> 7.000 ms per recording, +2.000 ms (+40.0 %)")
    assert re.search(r"train\.py:6 step +forward +5\.000 +7\.000 +2\.000 .* slower", done.stdout)
    assert sorted(path.name for path in (desk.folder / "kept").glob("*/*.sqlite")) == [
        *(f"a{i}.sqlite" for i in range(1, 5)), *(f"b{i}.sqlite" for i in range(1, 5)),
    ]  # fmt: skip
    again = desk.ab(
        "--runs",
        "4",
        "--keep",
        "kept",
        "--continue",
        "--gate",
        "50%",
        "--",
        "train.py",
        "5",
        ":::",
        "train.py",
        "7",
    )
    assert again.returncode == 0 and len(desk.log()) == 8, "what was recorded is judged anew"


@pytest.mark.parametrize(
    ("a", "b", "code", "sentence"),
    [
        (["5"], ["5", "fail"], 1, "B, run 1 failed with exit code 1, and A did not"),
        (["5", "fail"], ["5"], 3, "A, run 1 failed with exit code 1"),
        (["5"], ["5", "die"], 1, "B, run 1 was killed by SIGKILL"),
    ],
)
def test_program_that_fails_is_shown_and_the_others_are_kept(
    desk: Desk, a: list[str], b: list[str], code: int, sentence: str
) -> None:
    done = desk.ab("--runs", "3", "--", "train.py", *a, ":::", "train.py", *b)
    assert (done.returncode, done.stdout) == (code, "")
    assert sentence in done.stderr
    assert ("ValueError: no such layer" in done.stderr) is ("fail" in [*a, *b])
    folder = re.search(r"(\d) of 6 recordings, and all outputs, are in (\S+);", done.stderr)
    assert folder is not None and int(folder[1]) == len(desk.log()) - 1
    for i in range(1, int(folder[1]) + 1):
        assert Path(folder[2], f"a{i}", f"a{i}.sqlite").is_file()
    if "die" in b:
        spool = re.search(r"profiling-lab recover (\S+) reads", done.stderr)
        assert spool is not None and Path(spool[1]).is_file()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_half_way_it_goes_on_later(desk: Desk, number: signal.Signals) -> None:
    programs = ("--", "train.py", "5", ":::", "train.py", "5", "wait")
    with subprocess.Popen(
        desk.command("--runs", "2", *programs),
        cwd=desk.folder, env=desk.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        while not (desk.folder / "waits").exists() and process.poll() is None:
            time.sleep(0.05)
        process.send_signal(number)
        out, err = process.communicate(timeout=300)
    assert process.returncode == (-signal.SIGINT if number == signal.SIGINT else 128 + signal.SIGTERM), err
    assert out == "" and "Traceback" not in err
    told = re.search(
        r"1 of 4 recordings, and all outputs, are in (\S+); the same command with (.*) goes on", err
    )
    assert told is not None and f"stopped by {number.name}" in err
    (desk.folder / "go").touch()
    done = desk.ab("--runs", "2", *told[2].split(), *programs)
    assert done.returncode == 0, done.stderr
    assert "1 of 4 runs are in" in done.stderr and "recording 2 of 4: B, run 1" in done.stderr
    assert desk.log() == ["5", "5 wait", "5 wait", "5 wait", "5"], "the first run was not repeated"


def test_program_without_gpu_work_is_refused_after_one_run(desk: Desk) -> None:
    (desk.folder / "idle.py").write_text("print('hello')\n")
    done = desk.ab("--", "idle.py", ":::", "train.py", "5")
    assert done.returncode == 3 and "A, run 1" in done.stderr and "recording 2 of" not in done.stderr


def test_module_and_launched_program_of_two_processes(desk: Desk) -> None:
    """`record` names their files itself, one for each process: a run is all of them."""
    (desk.folder / "cupy.py").write_text("from fake_driver import *\n")
    (desk.folder / "one.py").write_text("import sys, cupy\ncupy.Fake().kernel('step', ns=int(sys.argv[1]))\n")
    (desk.folder / "two.py").write_text(
        "import os, subprocess, sys\n"
        "for rank in '01':\n"
        "    environ = {**os.environ, 'RANK': rank, 'WORLD_SIZE': '2'}\n"
        "    subprocess.run([sys.executable, 'one.py', sys.argv[1]], env=environ, check=True)\n"
    )
    done = desk.ab(
        "--runs", "1", "--own", "one.py", "--keep", "kept", "--format", "json",
        "--", "env", "X=1", sys.executable, "two.py", "5000",
        ":::", "env", "X=2", sys.executable, "two.py", "5000",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in (desk.folder / "kept" / "a1").glob("*.sqlite")) == [
        "a1.rank0.sqlite", "a1.rank1.sqlite",
    ]  # fmt: skip
    assert json.loads(done.stdout)["data"]["summary"]["before"]["count"] == 2
    done = desk.ab("--runs", "1", "--", "-m", "one", "5000", ":::", "-m", "one", "5000")
    assert done.returncode == 0 and done.stdout.startswith("NO CHANGE"), done.stderr


@pytest.fixture
def repository(desk: Desk) -> Desk:
    """Its first commit takes 5 ms, and the working tree, which is dirty, 7."""
    (desk.folder / "layers.py").write_text("TIME = 5\n")
    (desk.folder / "app").mkdir()
    (desk.folder / "app" / "train.py").write_text(
        "import os, sys\n"
        "sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))\n"
        "from fake_driver import Fake\nimport layers\n"
        "Fake().kernel('step', ns=layers.TIME * 1000000)\n"
        "print(open('data').read())\n"
    )
    (desk.folder / ".gitignore").write_text("data\nlog\n")
    desk.git("init", "-q", "-b", "main")
    desk.git("add", ".")
    desk.git("commit", "-q", "-m", "first")
    hook = desk.folder / ".git" / "hooks" / "post-checkout"
    hook.write_text(f"#!/bin/sh\ntouch {desk.folder}/hook-ran\n")
    hook.chmod(0o755)
    (desk.folder / "layers.py").write_text("TIME = 7\n")
    (desk.folder / "untracked").write_text("mine")
    (desk.folder / "app" / "data").write_text("rows")
    return desk


def state(desk: Desk) -> tuple[str, str, dict[str, str]]:
    files = {str(p): p.read_text() for p in desk.folder.rglob("*") if p.is_file() and ".git/" not in str(p)}
    return desk.git("status", "--porcelain"), desk.git("worktree", "list", "--porcelain"), files


def test_git_compares_a_commit_with_the_dirty_tree(repository: Desk) -> None:
    repository.folder = repository.folder / "app"
    before = state(repository)
    words = ("--runs", "4", "--git", "HEAD", "--link", "data", "--same-stdout", "--format", "json")
    done = repository.ab(*words, "--", "train.py")
    assert done.returncode == 1, done.stderr
    summary = json.loads(done.stdout)["data"]["summary"]
    assert summary["before"]["median_ns"] == 5 * MS and summary["after"]["median_ns"] == 7 * MS
    assert summary["sides"]["a"]["commit"].endswith(" first") and summary["outputs"]["state"] == "same"
    assert state(repository) == before and not repository.left()
    assert not (repository.folder.parent / "hook-ran").exists()


def test_commit_goes_on_in_a_folder_with_a_relative_name(repository: Desk) -> None:
    repository.folder = repository.folder / "app"
    words = ("--git", "HEAD", "--link", "data", "--keep", "../kept")
    assert repository.ab("--runs", "1", *words, "--", "train.py").returncode == 3, "one run decides nothing"
    done = repository.ab("--runs", "2", *words, "--continue", "--", "train.py")
    assert "2 of 4 runs are in" in done.stderr and done.stdout.startswith("NO VERDICT"), done.stderr
    kept = repository.folder.parent / "kept"
    assert [path.name for path in sorted(kept.glob("*/*.sqlite"))] == [
        f"{s}{i}.sqlite" for s in "ab" for i in (1, 2)
    ]


KILLED = """
import os, signal, sys
from pathlib import Path
from profiling_lab.recording.turns.checkout import checked_out
with checked_out("HEAD", Path(sys.argv[1])) as checkout:
    print(checkout.folder, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def worktrees(desk: Desk) -> list[str]:
    listed = desk.git("worktree", "list", "--porcelain").splitlines()
    return [line.removeprefix("worktree ") for line in listed if line.startswith("worktree ")]


@pytest.mark.parametrize("folder_is_gone", [False, True])
def test_checkout_that_a_kill_left_is_removed_by_the_next(
    repository: Desk, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, folder_is_gone: bool
) -> None:
    """And nothing else is: another that is in use, one of the user, even one whose folder is missing."""
    monkeypatch.setattr(tempfile, "tempdir", str(repository.temporary))
    here = repository.folder
    for name in ("users", "missing"):
        repository.git("worktree", "add", "--quiet", "--detach", str(tmp_path / name))
    shutil.rmtree(tmp_path / "missing")
    others = worktrees(repository)
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, str(here)], env=repository.environment, capture_output=True, text=True
    )
    left = Path(killed.stdout.strip())
    assert killed.returncode == -signal.SIGKILL and left.is_dir() and str(left) in worktrees(repository)
    if folder_is_gone:
        shutil.rmtree(left.parent)
    with checked_out("HEAD", here) as first, checked_out("HEAD", here) as second:
        in_use = [str(first.folder), str(second.folder)]
        assert sorted(worktrees(repository)) == sorted([*others, *in_use])
        assert not left.parent.exists() and (first.folder / "layers.py").is_file()
    assert worktrees(repository) == others and not repository.left()


def test_file_that_git_does_not_track_is_said_to_be_missing(repository: Desk) -> None:
    repository.folder = repository.folder / "app"
    before = state(repository)
    done = repository.ab("--git", "HEAD", "--", "train.py")
    assert done.returncode == 3 and "No such file or directory: 'data'" in done.stderr
    assert "--link adds them" in done.stderr and state(repository) == before


def test_commit_that_runs_files_of_the_tree_is_refused(repository: Desk) -> None:
    """As with a package that is installed with pip -e."""
    tree = repository.folder
    (tree / "app" / "train.py").write_text(
        f"import sys\nsys.path.insert(0, {str(tree)!r})\nimport heavy\nheavy.run()\n"
    )
    (tree / "heavy.py").write_text("from fake_driver import Fake\ndef run():\n    Fake().kernel('step')\n")
    repository.git("add", ".")
    repository.git("commit", "-q", "-m", "second")
    done = repository.ab("--git", "HEAD", "--own", "heavy.py", "--", "app/train.py")
    assert done.returncode == 3 and f"A ran {tree}/heavy.py of the working tree" in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["--git", "nonsense", "--", "train.py"], 2, "there is no commit 'nonsense'"),
        (["--git", "--output=x", "--", "train.py"], 2, "expected one argument"),
        (["--git", "HEAD", "--link", "none", "--", "app/train.py"], 2, "--link: there is no none"),
        (["--git", "HEAD", "--link", "layers.py", "--", "app/train.py"], 2, "is in the commit already"),
        (
            ["--git", "HEAD", "--link", "/etc/hosts", "--", "app/train.py"],
            2,
            "expected a path in the repository",
        ),
        (["--git", "HEAD", "--", "untracked.py"], 4, "A: there is no script or program untracked.py"),
    ],
)
def test_wrong_git_arguments(repository: Desk, words: list[str], code: int, sentence: str) -> None:
    (repository.folder / "untracked.py").write_text("")
    before = state(repository)
    done = repository.ab(*words)
    assert (done.returncode, done.stdout) == (code, "") and sentence in done.stderr
    assert state(repository) == before and not repository.left()
