# SPDX-License-Identifier: Apache-2.0
"""Whether two sets of recordings may be compared at all: same GPU, same driver, same method, same work."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePath

import numpy as np

from profiling_lab.analysis.diff.measure import IDLE, Capture
from profiling_lab.analysis.diff.shapes import same_shapes
from profiling_lab.records import dataclass

STEPS_FACTOR = 2
"""the number of recorded steps may differ by less: the first steps of a run are the slow ones"""
OVERHEAD_FACTOR = 2
OVERHEAD_FLOOR_FRAC = 0.01
"""an overhead below this share of the time hides no regression that a gate would look for"""
INPUT_FRAC = 0.01
"""bytes copied to the GPU per step may differ by this share: the last batch of an epoch may be smaller"""
EDGE_BATCHES = 1.5
"""and by this number of batches per recording: one that was fetched ahead of it, or for a step after it"""

CHECKS = ("gpu", "driver", "method", "window", "steps", "workload", "shapes", "overhead")


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition of a comparison. '': the files do not say."""

    name: str
    """one of CHECKS"""
    before: str
    after: str
    state: str
    """'same', 'differs', 'unknown', or 'allowed': differs, and the user said that it may"""

    @property
    def refuses(self) -> bool:
        return self.state == "differs"


def checks(
    before: tuple[Capture, ...], after: tuple[Capture, ...], allowed: Iterable[str] = ()
) -> tuple[Condition, ...]:
    """Every check of CHECKS. Recordings of one side must agree with each other too."""
    sides = (before, after)
    found = [
        _same("gpu", *([_gpus(capture) for capture in side] for side in sides)),
        _same("driver", *([capture.origin.driver for capture in side] for side in sides)),
        _same("method", *([capture.origin.method for capture in side] for side in sides)),
        _same("window", *([capture.origin.asked or "all of it" for capture in side] for side in sides)),
        _steps(before, after),
        _workload(before, after),
        _shapes(before, after),
        _overhead(*sides),
    ]
    allowed = set(allowed)
    return tuple(
        Condition(c.name, c.before, c.after, "allowed") if c.refuses and c.name in allowed else c
        for c in found
    )


def _check(name: str, texts: list[str], state: str) -> Condition:
    return Condition(name, texts[0], texts[1], state)


def _listed(values: Iterable[str]) -> str:
    return " and ".join(dict.fromkeys(values))


def _same(name: str, before: list[str], after: list[str]) -> Condition:
    known = {value for value in (*before, *after) if value}
    state = "differs" if len(known) > 1 else "same" if all((*before, *after)) else "unknown"
    return Condition(name, _listed(before), _listed(after), state)


def _gpus(capture: Capture) -> str:
    """The GPUs that worked, as far as the file names them; a machine may have more."""
    return " and ".join(f"{capture.devices} x {name}" for name in sorted(set(capture.origin.gpus)))


def _steps(before: tuple[Capture, ...], after: tuple[Capture, ...]) -> Condition:
    """Steps must be found by the same sign: a period may be a layer where a range is a whole step."""
    signs = [{capture.origin.sign for capture in side} for side in (before, after)]
    counts = [int(np.median([len(capture) for capture in side])) for side in (before, after)]
    texts = [
        f"{count} per recording by {_listed(sorted(sign))}" for count, sign in zip(counts, signs, strict=True)
    ]
    if len(signs[0] | signs[1]) > 1:
        return _check("steps", texts, "differs")
    if not before[0].has_steps:
        return _check("steps", texts, "unknown")
    return _check("steps", texts, "same" if max(counts) < STEPS_FACTOR * min(counts) else "differs")


def _workload(before: tuple[Capture, ...], after: tuple[Capture, ...]) -> Condition:
    """The size of the input where the host sends one, and that both run the same program at all."""
    inputs = [int(np.median([c.input_bytes for c in side])) for side in (before, after)]
    texts = [f"{size:,} bytes copied from the host per step" if size else "" for size in inputs]
    if not _related(before, after):
        texts = [
            " and ".join(sorted({PurePath(c.origin.path).name for c in side})) for side in (before, after)
        ]
        return _check("workload", [f"{text} (no file, no kernel in common)" for text in texts], "differs")
    if not all(inputs):
        return _check("workload", texts, "unknown")
    fewest = min(len(capture) for capture in (*before, *after))
    fits = abs(inputs[1] - inputs[0]) <= max(INPUT_FRAC, EDGE_BATCHES / fewest) * max(inputs)
    return _check("workload", texts, "same" if fits else "differs")


def _shapes(before: tuple[Capture, ...], after: tuple[Capture, ...]) -> Condition:
    """Every recording against the first: those of one side must work on the same shapes too."""
    first, *others = (capture.origin.shapes for capture in (*before, *after))
    found = [same_shapes(first, shapes) for shapes in others]
    told = [answer for answer in found if answer[0] is not None]
    if not told:
        return _check("shapes", ["", ""], "unknown")
    worst = min(told, key=lambda answer: bool(answer[0]))
    texts = [f"{blocks:,.0f} blocks in an elementwise kernel of both" for blocks in worst[1:]]
    return _check("shapes", texts, "same" if worst[0] else "differs")


def _related(before: tuple[Capture, ...], after: tuple[Capture, ...]) -> bool:
    places = [
        {leaf for capture in side for leaf in capture.places if leaf[0].phase != IDLE}
        for side in (before, after)
    ]
    files = [{PurePath(place.file).name for place, _ in side} - {""} for side in places]
    kernels = [{kernel for _, kernel in side} for side in places]
    return bool(files[0] & files[1] or kernels[0] & kernels[1])


def _overhead(before: tuple[Capture, ...], after: tuple[Capture, ...]) -> Condition:
    sides = [[capture.origin.overhead_frac for capture in side] for side in (before, after)]
    known = [[share for share in side if share is not None] for side in sides]
    texts = [f"{100 * max(side):.1f} %" if side else "" for side in known]
    if not all(known):
        return _check("overhead", texts, "unknown")
    theirs, ours = max(known[0]), max(known[1])
    small = max(theirs, ours) <= OVERHEAD_FLOOR_FRAC
    fits = small or max(theirs, ours) <= OVERHEAD_FACTOR * min(theirs, ours)
    return _check("overhead", texts, "same" if fits else "differs")
