# SPDX-License-Identifier: Apache-2.0
"""The frames of your own code in a recording."""

from __future__ import annotations

from collections.abc import Iterator

from profiling_lab.rules.view import View
from profiling_lab.trace import Frame
from profiling_lab.trace.columns import unique


def own_frames(view: View) -> list[Frame]:
    """Every one that is the innermost of some stack."""
    stacks = view.trace.stacks
    return [stacks.frames[frame] for frame in unique(stacks.frame[view.own_row]).tolist()]


def own_functions(view: View) -> set[str]:
    """Their functions, as a line calls them."""
    return {frame.function.split(".")[-1] for frame in own_frames(view)}


def frames_around(view: View, row: int) -> Iterator[Frame]:
    """Your frame of this row of the stacks, and those of yours that it is called from, innermost first."""
    stacks = view.trace.stacks
    while row > 0:
        yield stacks.frames[stacks.frame[row]]
        row = int(view.own_row[stacks.parent[row]])
