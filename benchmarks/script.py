# SPDX-License-Identifier: Apache-2.0
"""How a script reports what it does, and how it ends."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import NoReturn

from profiling_lab.errors import LabError
from profiling_lab.recording.other_profilers import held_by


def say(text: str) -> None:
    """To stderr: stdout is for the results."""
    print(text, file=sys.stderr, flush=True)


def run_script(main: Callable[[], int]) -> NoReturn:
    """Ends with main's exit code; an error that the user can act on is its sentence and its own code.

    Says so where a profiler is attached: times are then not those of the program.
    """
    if reason := held_by():
        say(f"warning: a profiler is attached to this benchmark: {reason}")
    try:
        code = main()
    except LabError as error:
        say(str(error))
        code = error.exit_code
    sys.exit(code)
