# SPDX-License-Identifier: Apache-2.0
"""The output file name of a recording: placeholders, ranks, and existing files.

An argument of the profiler must never end a job of several processes: if a name is ambiguous or already used,
another one is chosen.
"""

from __future__ import annotations

import os
import re
import socket
import time
from pathlib import Path

from profiling_lab.errors import UsageError
from profiling_lab.recording.rank_in_job import RankInJob, rank_in_job

KNOWN = ("rank", "local_rank", "pid", "host", "date")
_APART = ("rank", "local_rank", "pid")  # each one is unique per process on one machine
_BRACES = re.compile(r"\{([^{}]*)\}")


def check(template: str) -> None:
    """Raises UsageError for unknown placeholders."""
    for name in _BRACES.findall(template):
        if name not in KNOWN:
            known = " ".join(f"{{{one}}}" for one in KNOWN)
            raise UsageError(f"{{{name}}} in {template} is unknown; the output name may contain {known}")


def now() -> str:
    """The value of {date}."""
    return time.strftime("%Y%m%d-%H%M%S")


def expand(template: str, job_rank: RankInJob, date: str = "") -> Path:
    """The name in this process: placeholders are filled in, and a job's rank is added if the name has none.

    {rank} is 0 outside of a job. Raises UsageError for unknown placeholders.
    """
    check(template)
    named = set(_BRACES.findall(template))
    rank = job_rank.rank if job_rank.rank is not None else job_rank.local_rank
    local = job_rank.local_rank if job_rank.local_rank is not None else job_rank.rank
    values = {
        "rank": str(rank or 0),
        "local_rank": str(local or 0),
        "pid": str(os.getpid()),
        "host": socket.gethostname().replace("/", "_"),
        "date": date or now(),
    }
    path = Path(_BRACES.sub(lambda match: values[match[1]], template))
    return path if named & set(_APART) else with_rank(path, job_rank)


def with_rank(path: Path, job_rank: RankInJob) -> Path:
    """`run.sqlite` becomes `run.rank1.sqlite` in a job of several ranks, unless it contains the rank."""
    if job_rank.number is None or re.search(rf"rank[-_.]?0*{job_rank.number}(?!\d)", path.name):
        return path
    return path.with_name(f"{path.stem}.rank{job_rank.number}{path.suffix}")


def is_taken(path: Path) -> bool:
    """Whether a recording with this name exists, finished or not."""
    return os.path.lexists(path) or os.path.lexists(f"{path}.spool")


def free_name(path: Path) -> Path:
    """`path`, or `run-2.sqlite` and so on if it exists."""
    number, name = 1, path
    while is_taken(name):
        number += 1
        name = path.with_name(f"{path.stem}-{number}{path.suffix}")
    return name


def in_this_process(template: str, *, overwrite: bool) -> tuple[Path, str]:
    """The output file, and a sentence if it differs from the requested one.

    Outside of a job an existing name is returned unchanged; the caller reports the error.
    """
    job_rank = rank_in_job()
    path = expand(template, job_rank)
    if overwrite or job_rank.number is None or path.is_dir() or not is_taken(path):
        return path, ""
    free = free_name(path)
    return free, f"{path} exists already, so rank {job_rank.number} records into {free}"
