# SPDX-License-Identifier: Apache-2.0
"""Another commit of a program in a temporary worktree of git. The user's working tree is not touched."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from profiling_lab.errors import LabError, UsageError
from profiling_lab.recording.turns.process import Place

# The folder of another machine that shares the repository is missing here, and may be in use there.
_PREFIX = f"profiling-lab-git-{re.sub(r'[^A-Za-z0-9.]', '_', socket.gethostname())}-"
_IN_USE = "in_use"
"""a file that is locked as long as the checkout is used: the lock ends with the process, however that ends"""


@dataclass(frozen=True, slots=True)
class Checkout:
    """A commit of the repository at `top`, checked out at `folder`."""

    top: Path
    folder: Path
    commit: str
    """its full hash"""
    name: str
    """its short hash and its subject"""

    def moved(self, path: str) -> str:
        """The path in the checkout, if it is absolute and inside of the repository; else as it is."""
        if not os.path.isabs(path):
            return path
        relative = os.path.relpath(os.path.realpath(path), self.top)
        return path if relative.startswith("..") else str(self.folder / relative)

    def place(self, here: Path, environment: Mapping[str, str]) -> Place:
        """Where a program of this commit runs: as it would at `here`, but in the checkout."""
        folder = Path(self.moved(str(here)))
        changed = {"PWD": str(folder)}
        if paths := environment.get("PYTHONPATH"):
            changed["PYTHONPATH"] = os.pathsep.join(self.moved(p) for p in paths.split(os.pathsep))
        return Place(folder, {**environment, **changed})

    def strays(self, files: Sequence[str]) -> list[str]:
        """Files of the working tree, of those that a program of this commit ran."""
        found = []
        for file in files:
            path = os.path.realpath(file)
            relative = os.path.relpath(path, self.top)
            outside = relative.startswith("..") or Path(path).is_relative_to(self.folder)
            if not outside and (self.folder / relative).exists():
                found.append(file)
        return found


@contextmanager
def checked_out(commit: str, here: Path, links: Sequence[str] = ()) -> Iterator[Checkout]:
    """Check out the commit, with links to what git does not track. Removed at the end, and by the next
    checkout if the process is killed before.

    Raises UsageError if `here` is not in a repository, or there is no such commit or file to link to.
    """
    top = Path(_git(here, "rev-parse", "--show-toplevel"))
    full = _git(here, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{commit}^{{commit}}")
    name = _git(here, "log", "-1", "--format=%h %s", full)
    for left in _left_over(top):
        _remove(top, left, left.parent)
    # The last folders of a path say which file of one side is which of the other.
    parent = Path(os.path.realpath(tempfile.mkdtemp(prefix=_PREFIX)))
    folder = parent / top.name
    lock = (parent / _IN_USE).open("w")
    try:
        _locks(lock)
        # A post-checkout hook could do anything; the checkout must only write files.
        _git(
            top, "-c", "core.hooksPath=/dev/null", "worktree", "add", "--quiet", "--detach", str(folder), full
        )
        found = Checkout(top, folder, full, name)
        for link in links:
            _link(found, here, link)
        if not Path(found.moved(str(here))).is_dir():
            raise UsageError(f"--git: the folder {here} does not exist in {name}")
        yield found
    finally:
        _remove(top, folder, parent)
        lock.close()


def _left_over(top: Path) -> list[Path]:
    """Checkouts of processes of this machine that were killed. Other worktrees are left alone."""
    listed = _run(top, "worktree", "list", "--porcelain").stdout.splitlines()
    known = [Path(line.removeprefix("worktree ")) for line in listed if line.startswith("worktree ")]
    return [path for path in known if path.parent.name.startswith(_PREFIX) and not _is_in_use(path.parent)]


def _is_in_use(parent: Path) -> bool:
    """Unless it is certain that it is not."""
    try:
        with (parent / _IN_USE).open("r+") as lock:
            return not _locks(lock)
    except FileNotFoundError:
        return parent.exists()
    except OSError:
        return True


def _locks(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # another process has it, or the file system has no locks
        return False
    return True


def _link(checkout: Checkout, here: Path, link: str) -> None:
    target = Path(os.path.abspath(here / link))
    if not target.exists():
        raise UsageError(f"--link: there is no {link}")
    inside = Path(checkout.moved(str(target)))
    if inside == target:
        raise UsageError(f"--link: expected a path in the repository {checkout.top}, not {link}")
    if inside.exists():
        raise UsageError(f"--link: {link} is in the commit already; only what git does not track is linked")
    inside.parent.mkdir(parents=True, exist_ok=True)
    inside.symlink_to(target)


def _remove(top: Path, folder: Path, parent: Path) -> None:
    """Never raises: what was recorded counts more than a temporary folder."""
    done = _run(top, "worktree", "remove", "--force", str(folder))
    shutil.rmtree(parent, ignore_errors=True)  # it removes links, not what they point to
    if done.returncode:
        # Without its folder git needs to check nothing. `prune` would remove entries of others too.
        _run(top, "worktree", "remove", "--force", str(folder))


def _git(folder: Path, *arguments: str) -> str:
    """What git prints. Raises UsageError, or LabError if git could not do what should have worked."""
    done = _run(folder, *arguments)
    if not done.returncode:
        return done.stdout.strip()
    if "--show-toplevel" in arguments:
        raise UsageError(f"--git needs a git repository, and {folder} is in none")
    if "--verify" in arguments:
        raise UsageError(f"--git: there is no commit {arguments[-1].partition('^{')[0]!r} in the repository")
    why = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
    raise LabError(f"git cannot check out the commit: {why[-1]}")


def _run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    # Within a hook git sets these for the repository of the hook, and its own index.
    kept = {k: v for k, v in os.environ.items() if k not in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")}
    try:
        return subprocess.run(
            ["git", *arguments], cwd=folder, env=kept, capture_output=True, text=True, errors="replace"
        )
    except FileNotFoundError:
        raise UsageError("--git needs git, which is not installed") from None
