# SPDX-License-Identifier: Apache-2.0
"""How a script ends."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import NoReturn

from profiling_lab.errors import LabError


def run_script(main: Callable[[], int]) -> NoReturn:
    """Ends with main's exit code; an error that the user can act on is its sentence and its own code."""
    try:
        code = main()
    except LabError as error:
        print(error, file=sys.stderr)
        code = error.exit_code
    sys.exit(code)
