# SPDX-License-Identifier: Apache-2.0
"""Looks at the machine one thing at a time. Nothing here changes anything; each check may fail on its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from profiling_lab.doctor import machine, package, recording, tools
from profiling_lab.doctor.check import Check, Status, broken

# In the order in which they are printed: from the machine up to what recording needs.
CHECKS: tuple[Callable[[], Check], ...] = (
    package.check_python,
    machine.check_driver,
    machine.check_gpus,
    package.check_torch,
    package.check_analysis,
    package.check_recorder,
    package.check_ops,
    recording.check_cupti,
    recording.check_stacks,
    recording.check_autograd,
    recording.check_other_profilers,
    machine.check_counters,
    tools.check_nsys,
    tools.check_ncu,
    tools.check_nvcc,
)


@dataclass(frozen=True, slots=True)
class Verdict:
    sentence: str
    exit_code: int


def examine() -> tuple[Check, ...]:
    """Every check, in order. A check that fails itself is reported as broken, and the others still run."""
    return tuple(_look(check) for check in CHECKS)


def _look(check: Callable[[], Check]) -> Check:
    try:
        return check()
    except Exception as error:
        name = check.__name__.removeprefix("check_")
        return broken(name, f"the check itself failed: {type(error).__name__}: {error}", "please report this")


def verdict(checks: tuple[Check, ...]) -> Verdict:
    """What it comes to for `profiling-lab record`."""
    by_name = {check.name: check for check in checks}
    failed = [check.name for check in checks if check.status is Status.BROKEN]
    if failed:
        return Verdict(
            f"Broken: {', '.join(failed)}. Recording is limited or impossible until that is repaired.", 1
        )
    if by_name["gpu"].status is not Status.OK:
        return Verdict("Recording works, without GPU activity: there is no GPU here.", 0)
    missing = [name for name in ("torch", "cupti", "autograd") if by_name[name].status is not Status.OK]
    if missing:
        return Verdict(f"Recording works, within the limits stated at: {', '.join(missing)}.", 0)
    return Verdict("Everything that recording needs works.", 0)
