# SPDX-License-Identifier: Apache-2.0
"""Judge in another process: compiled code that writes where it must not ends that process alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

LIMIT_S = 300


class ChildError(Exception):
    """Why there is no answer, as one sentence."""


def answer_of(module: str, *arguments: str, what: str = "the program has") -> Any:
    """What `child` of a module of this package, given these arguments, writes: its last line is JSON.

    Raises ChildError. what: the subject of the sentence for a child that does not end.
    """
    text = f"import sys; import profiling_lab.exercises.{module} as m; m.child(*sys.argv[1:])"
    try:
        done = subprocess.run(
            [sys.executable, "-c", text, *arguments],
            capture_output=True, text=True, errors="replace", timeout=LIMIT_S, check=False,
            cwd=Path(__file__).parents[2],
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise ChildError(f"{what} not ended after {LIMIT_S} s") from None
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise ChildError(f"the program ended with status {done.returncode}: {last}")
    return json.loads(lines[-1])
