# SPDX-License-Identifier: Apache-2.0
"""The machine of a measurement. Unknown values are None."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from profiling_lab.errors import UsageError

_REPOSITORY = Path(__file__).resolve().parents[2]
_DRIVER_FILE = Path("/proc/driver/nvidia/version")
GIT_VARIABLE = "PROFILING_LAB_GIT"
GIT_FILE = ".git-commit"


@dataclass(frozen=True, slots=True)
class Machine:
    """The columns of every result. `gpu` is the CPU's name for measurements on the CPU."""

    gpu: str | None
    driver: str | None
    torch: str | None
    cudnn: str | None
    cuda: str | None
    git: str | None
    date: str


def machine(device: str = "cuda") -> Machine:
    """The properties for a measurement on `device`, now (UTC).

    Raises UsageError for a CUDA device if torch has none.
    """
    import torch

    on_cuda = device.startswith("cuda")
    if on_cuda and not torch.cuda.is_available():
        why = "is a CPU build" if torch.version.cuda is None else "sees none"
        raise UsageError(f"this measurement needs an NVIDIA GPU; torch {torch.__version__} {why}")
    cudnn = torch.backends.cudnn.version() if on_cuda else None
    return Machine(
        gpu=torch.cuda.get_device_name(torch.device(device)) if on_cuda else _cpu_name(),
        driver=_driver_version() if on_cuda else None,
        torch=torch.__version__,
        cudnn=None if cudnn is None else str(cudnn),
        cuda=torch.version.cuda if on_cuda else None,
        git=git_commit(),
        date=datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
    )


def git_commit(repository: Path = _REPOSITORY) -> str | None:
    """The measured commit, with "+changes" if tracked files differ from it.

    Without a repository it comes from the environment variable PROFILING_LAB_GIT or from a file .git-commit
    in the top folder; both take precedence over git.
    """
    if os.environ.get(GIT_VARIABLE):
        return os.environ[GIT_VARIABLE]
    note = repository / GIT_FILE
    if note.is_file():
        return note.read_text().strip() or None
    try:
        commit = _git(repository, "rev-parse", "--short=12", "HEAD")
        changed = _git(repository, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.CalledProcessError):
        return None
    return commit + ("+changes" if changed else "")


def _git(repository: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(repository), *arguments], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def _driver_version() -> str | None:
    try:
        match = re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", _DRIVER_FILE.read_text())
    except OSError:
        match = None
    if match:
        return match.group(1)
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.splitlines()[0].strip() or None


def _cpu_name() -> str | None:
    try:
        match = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.M)
    except OSError:
        return None
    return match.group(1) if match else None
