# SPDX-License-Identifier: Apache-2.0
"""What one look at the machine found."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Status(Enum):
    OK = "ok"
    ABSENT = "absent"  # not here, and what it means is stated; recording works without it
    BROKEN = "broken"  # it is here and should work, or nothing works without it


@dataclass(frozen=True, slots=True)
class Check:
    """`found` is what is there or missing; `advice` what to do about it ("": nothing to do)."""

    name: str
    status: Status
    found: str
    advice: str = ""


def ok(name: str, found: str, advice: str = "") -> Check:
    return Check(name, Status.OK, found, advice)


def absent(name: str, found: str, advice: str) -> Check:
    return Check(name, Status.ABSENT, found, advice)


def broken(name: str, found: str, advice: str) -> Check:
    return Check(name, Status.BROKEN, found, advice)
