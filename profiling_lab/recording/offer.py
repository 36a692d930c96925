# SPDX-License-Identifier: Apache-2.0
"""Pass the recording plan to child processes through the environment."""

from __future__ import annotations

import os
from collections.abc import Callable, MutableMapping
from pathlib import Path

from profiling_lab import _child_start
from profiling_lab.recording.children import Plan

_SITE = str(Path(__file__).with_name("inherit"))


def offer(plan: Plan | None, environment: MutableMapping[str, str]) -> Callable[[], None]:
    """Make child processes record with `plan` (None: not at all). Returns a function that undoes this."""
    before = {name: environment.get(name) for name in (_child_start.VARIABLE, "PYTHONPATH")}
    environment.pop(_child_start.VARIABLE, None)
    if plan is not None:
        environment[_child_start.VARIABLE] = plan.to_json()
        others = environment.get("PYTHONPATH", "")
        if _SITE not in others.split(os.pathsep):
            environment["PYTHONPATH"] = f"{_SITE}{os.pathsep}{others}" if others else _SITE

    def take_back() -> None:
        for name, value in before.items():
            if value is None:
                environment.pop(name, None)
            else:
                environment[name] = value

    return take_back
