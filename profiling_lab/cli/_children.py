# SPDX-License-Identifier: Apache-2.0
"""How `record` handles the child processes of the recorded program, and what it reports about them."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from profiling_lab.recording.children import Plan


@contextmanager
def recorded_children(plan: Plan | None, taken: Path | None = None) -> Iterator[str]:
    """Child processes that start within this context record as `plan` says, never into the file `taken`.

    Yields the folder of their reports, or "" if children are not recorded.
    """
    from profiling_lab.recording import children
    from profiling_lab.recording.offer import offer

    owner = os.getpid()
    reports = ""
    if plan is not None:
        try:
            reports = tempfile.mkdtemp(prefix="profiling-lab-")
            if taken is not None:
                children.claim(reports, taken)
            plan = replace(plan, reports=reports, host=socket.gethostname())
        except OSError as error:
            _say(f"child processes are not recorded: no temporary folder ({error})")
            plan = None
    take_back = offer(plan, os.environ)
    try:
        yield reports
    finally:
        if os.getpid() == owner:  # not in a forked child that returned from the script
            take_back()
            if reports:
                shutil.rmtree(reports, ignore_errors=True)


def say_what_became_of_children(reports: str, program: str = "") -> None:
    """Never raises, because the exit code is the program's. `program`: the launched program, if not a
    script.
    """
    from profiling_lab.cli import _recorded
    from profiling_lab.recording import children

    if not reports:
        return
    try:
        for line in _recorded.of_children(children.collect(reports, _say), program):
            _say(line)
    except KeyboardInterrupt:
        _say("interrupted while waiting for the recordings of child processes")
    except Exception as error:
        _say(f"the recordings of child processes could not be collected: {error}")


def _say(line: str) -> None:
    print(f"profiling-lab: {line}", file=sys.stderr, flush=True)
