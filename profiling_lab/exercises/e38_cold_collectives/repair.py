# SPDX-License-Identifier: Apache-2.0
"""Judge a measurement of a link: on simulated ones, whose transfer is known, and on this machine's."""

from __future__ import annotations

import math
import random
import secrets
import statistics
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from profiling_lab.errors import LabError
from profiling_lab.exercises.e38_cold_collectives.link import SimulatedLink, TorchLink
from profiling_lab.exercises.exercise import GradedCheck, Need, failed, not_checked, passed
from profiling_lab.exercises.program_repair import load
from profiling_lab.measure import local_ranks

METHODS = ("all_reduce", "event", "us_between", "synchronize", "meet")
LINKS = 6
OFF_FRAC = 0.1
"""how far a measurement may be off on a simulated link"""
REAL_OFF_FRAC = 0.25
"""the same on a real one, where two measurements differ"""
WARM, CALLS = 8, 61
LIMIT_S = 120.0


def checks(starter: Path, repaired: Path, seed: int | None = None) -> list[GradedCheck]:
    """The checks "result" and "measured"."""
    if not repaired.is_file():
        return [failed("result", f"there is no {repaired.name} in this folder")]
    if repaired.read_bytes() == starter.read_bytes():
        return [failed("result", f"{repaired.name} is unchanged: nothing is repaired yet")]
    chance = random.Random(secrets.randbelow(2**31) if seed is None else seed)
    try:
        program = load(repaired, "repaired_bandwidth")
        wrong = next(filter(None, (off(program, made(chance)) for _ in range(LINKS))), "")
    except (
        Exception,
        SystemExit,
    ) as error:  # a learner's code may raise anything, and the learner must see it
        wrong = f"{repaired.name} raises {type(error).__name__}: {error}"
    if wrong:
        return [failed("result", wrong), not_checked("measured", "on simulated links it is wrong already")]
    return [passed("result", f"right on {LINKS} simulated links"), _measured(repaired)]


def made(chance: random.Random) -> SimulatedLink:
    """Another link each time: its transfer, how long the first call takes, who comes late and by how much."""
    return SimulatedLink(
        chance.uniform(20.0, 300.0),
        first_us=chance.uniform(1e5, 9e5),
        late_us=chance.uniform(3e3, 5e4),
        late=chance.randrange(2),
        stall_us=chance.uniform(500.0, 5e3),
        stalls_frac=0.08,
        seed=chance.randrange(2**31),
    )


def off(program: Any, link: SimulatedLink) -> str:
    """Why a measurement of this link is wrong; empty if it is right."""
    # The program gets the methods alone, so it cannot read what it is to measure.
    found = program.measure(SimpleNamespace(**{name: getattr(link, name) for name in METHODS}))
    if not isinstance(found, (int, float)) or isinstance(found, bool) or not math.isfinite(found):
        return f"measure must return microseconds, not {found!r}"
    if not link.calls:
        return "measure made no all-reduce"
    if abs(found - link.transfer_us) <= OFF_FRAC * link.transfer_us:
        return ""
    parts = ["the transfer"]
    if found > 100 * link.transfer_us:
        parts.append("the making of the communicator, or the wait for a process that comes late")
    elif found > link.transfer_us:
        parts.append("some waiting")
    said = f"{found:.1f} us instead of {link.transfer_us:.1f} us on a simulated link"
    return f"{said}: it holds {' and '.join(parts)}"


def _measured(repaired: Path) -> GradedCheck:
    """Against a measurement of ours, on the same link."""
    if missing := Need.TWO_GPUS.missing():
        return not_checked("measured", f"{missing}, and a link on the CPU is another one")
    try:
        found = local_ranks.run(f"{__name__}:measured", str(repaired), 2, limit_s=LIMIT_S)[0]
    except LabError as error:
        return failed("measured", f"{repaired.name}: {error}")
    said = f"{found['given']:.1f} us on this machine, measured again {found['right']:.1f} us"
    if abs(found["given"] - found["right"]) > REAL_OFF_FRAC * found["right"]:
        return failed("measured", said)
    return passed("measured", said)


def measured(repaired: str) -> dict[str, float]:
    """On one of the ranks: what the program measures on a cold link, and what we do afterwards."""
    link = TorchLink("cuda")
    given = float(load(Path(repaired), "repaired_bandwidth").measure(link))
    return {"given": given, "right": reference(link)}


def reference(link: TorchLink | SimulatedLink) -> float:
    """The microseconds of an all-reduce that is warm, and to which both processes come together."""
    for _ in range(WARM):
        link.all_reduce()
    link.meet()
    marks = [link.event()]
    for _ in range(CALLS):
        link.all_reduce()
        marks.append(link.event())
    link.synchronize()
    return statistics.median(link.us_between(*pair) for pair in pairwise(marks))
