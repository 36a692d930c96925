# SPDX-License-Identifier: Apache-2.0
"""Checks of this machine, independent of each other. They change nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from profiling_lab.doctor import machine, package, recording, tools
from profiling_lab.doctor.check import Health, HealthCheck, broken

# In output order: from the machine to the needs of recording.
CHECKS: tuple[Callable[[], HealthCheck], ...] = (
    package.check_python,
    machine.check_driver,
    machine.check_gpus,
    machine.check_peaks,
    package.check_torch,
    package.check_analysis,
    package.check_recorder,
    package.check_ops,
    recording.check_cupti,
    recording.check_stacks,
    recording.check_autograd,
    recording.check_other_profilers,
    machine.check_counters,
    machine.check_cpu_samples,
    tools.check_nsys,
    tools.check_ncu,
    tools.check_nvcc,
)


@dataclass(frozen=True, slots=True)
class HealthSummary:
    sentence: str
    exit_code: int


def examine() -> tuple[HealthCheck, ...]:
    """Run every check, in order. A check that raises is reported as broken, and the others still run."""
    return tuple(_look(check) for check in CHECKS)


def _look(check: Callable[[], HealthCheck]) -> HealthCheck:
    try:
        return check()
    except Exception as error:
        name = check.__name__.removeprefix("check_")
        return broken(name, f"the check itself failed: {type(error).__name__}: {error}", "please report this")


def summary(checks: tuple[HealthCheck, ...]) -> HealthSummary:
    """What the checks mean for `profiling-lab record`."""
    by_name = {check.name: check for check in checks}
    failed = [check.name for check in checks if check.status is Health.BROKEN]
    if failed:
        return HealthSummary(
            f"Broken: {', '.join(failed)}. Recording is limited or impossible until this is fixed.", 1
        )
    if by_name["gpu"].status is not Health.OK:
        return HealthSummary("Recording works, but without GPU activity: this machine has no GPU.", 0)
    missing = [name for name in ("torch", "cupti", "autograd") if by_name[name].status is not Health.OK]
    if missing:
        return HealthSummary(f"Recording works, with the limits listed at: {', '.join(missing)}.", 0)
    return HealthSummary("Everything needed for recording works.", 0)
