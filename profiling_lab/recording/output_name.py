# SPDX-License-Identifier: Apache-2.0
"""The name of the file that a recording writes: braces, ranks, and names that are taken.

An argument of the profiler must never end a job of several processes: where a name cannot be told apart or is
taken there, another one is found.
"""

from __future__ import annotations

import os
import re
import socket
import time
from pathlib import Path

from profiling_lab.errors import UsageError
from profiling_lab.recording.place_in_job import Place, place_in_job

KNOWN = ("rank", "local_rank", "pid", "host", "date")
_APART = ("rank", "local_rank", "pid")  # each tells the processes of one machine apart
_BRACES = re.compile(r"\{([^{}]*)\}")


def check(template: str) -> None:
    """Raises UsageError for braces that mean nothing."""
    for name in _BRACES.findall(template):
        if name not in KNOWN:
            known = " ".join(f"{{{one}}}" for one in KNOWN)
            raise UsageError(f"{{{name}}} in {template} is not known; the output's name may have {known}")


def now() -> str:
    """What {date} becomes."""
    return time.strftime("%Y%m%d-%H%M%S")


def expand(template: str, place: Place, date: str = "") -> Path:
    """The name in this process: braces are filled, and a job's rank is added where none of them tells it.

    {rank} is 0 outside of a job. Raises UsageError for braces that mean nothing.
    """
    check(template)
    named = set(_BRACES.findall(template))
    rank = place.rank if place.rank is not None else place.local_rank
    local = place.local_rank if place.local_rank is not None else place.rank
    values = {
        "rank": str(rank or 0),
        "local_rank": str(local or 0),
        "pid": str(os.getpid()),
        "host": socket.gethostname().replace("/", "_"),
        "date": date or now(),
    }
    path = Path(_BRACES.sub(lambda match: values[match[1]], template))
    return path if named & set(_APART) else with_rank(path, place)


def with_rank(path: Path, place: Place) -> Path:
    """`run.sqlite` becomes `run.rank1.sqlite` where this process is one of several, unless it says so."""
    if place.number is None or re.search(rf"rank[-_.]?0*{place.number}(?!\d)", path.name):
        return path
    return path.with_name(f"{path.stem}.rank{place.number}{path.suffix}")


def is_taken(path: Path) -> bool:
    """Whether a recording of this name is there, finished or not."""
    return os.path.lexists(path) or os.path.lexists(f"{path}.spool")


def free_name(path: Path) -> Path:
    """`path`, or `run-2.sqlite` and so on if it is taken."""
    number, name = 1, path
    while is_taken(name):
        number += 1
        name = path.with_name(f"{path.stem}-{number}{path.suffix}")
    return name


def in_this_process(template: str, *, overwrite: bool) -> tuple[Path, str]:
    """The file to record to, and a sentence if it is not the one that was asked for.

    A taken name is given back as it is outside of a job: who asked for it will be told.
    """
    place = place_in_job()
    path = expand(template, place)
    if overwrite or place.number is None or path.is_dir() or not is_taken(path):
        return path, ""
    free = free_name(path)
    return free, f"{path} exists already, so rank {place.number} records into {free}"
