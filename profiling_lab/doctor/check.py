# SPDX-License-Identifier: Apache-2.0
"""The result of one check of the machine."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Health(Enum):
    OK = "ok"
    ABSENT = "absent"  # not here; recording works without it, and the row says what is limited
    BROKEN = "broken"  # it is here but does not work, or it is required


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """`found` says what is there or missing, `advice` how to fix it ("": nothing to fix)."""

    name: str
    status: Health
    found: str
    advice: str = ""


def ok(name: str, found: str, advice: str = "") -> HealthCheck:
    return HealthCheck(name, Health.OK, found, advice)


def absent(name: str, found: str, advice: str) -> HealthCheck:
    return HealthCheck(name, Health.ABSENT, found, advice)


def broken(name: str, found: str, advice: str) -> HealthCheck:
    return HealthCheck(name, Health.BROKEN, found, advice)
