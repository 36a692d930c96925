# SPDX-License-Identifier: Apache-2.0
"""What is asked of every file of a job; it travels to the processes that read them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from profiling_lab.records import dataclass

if TYPE_CHECKING:
    from profiling_lab.trace.window import WindowSelection


@dataclass(frozen=True, slots=True)
class Options:
    """steps_by: see `step_windows`; own: see `Ownership`; window: the part of each file to look at;
    each_collective: keep all of them, with their lines, instead of what comparing ranks needs.
    """

    steps_by: str | None = None
    own: tuple[str, ...] = ()
    window: WindowSelection | None = None
    each_collective: bool = False

    @property
    def asked(self) -> tuple[tuple[str, str], ...]:
        """The options that choose a part of each file, without dashes, and their values."""
        if self.window is None:
            return ()
        given = {"range": self.window.range, "step": self.window.step, "nvtx": self.window.nvtx}
        return tuple((name, value) for name, value in given.items() if value is not None)
