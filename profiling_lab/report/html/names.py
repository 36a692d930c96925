# SPDX-License-Identifier: Apache-2.0
"""One table of names for all lanes of a page."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from profiling_lab.trace.columns import I32

NAME_AT_MOST = 2_000
"""letters of a name; what is longer ends in an ellipsis"""


class Names:
    """Equal names have one number. A name is what a slice shows, and the whole of it where that is longer."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, str], int] = {}

    def add(self, shown: str, whole: str = "") -> int:
        pair = (_cut(shown), "" if whole == shown else _cut(whole))
        return self._numbers.setdefault(pair, len(self._numbers))

    def add_all(self, shown: Iterable[str]) -> I32:
        """A table from rows of `shown` to numbers, with a last entry for row -1: the empty name."""
        return np.array([*(self.add(name) for name in shown), self.add("")], dtype=np.int32)

    def __len__(self) -> int:
        return len(self._numbers)

    @property
    def shown(self) -> list[str]:
        return [shown for shown, _ in self._numbers]

    @property
    def whole(self) -> dict[int, str]:
        """The whole names by number, where they differ from what is shown."""
        return {number: whole for number, (_, whole) in enumerate(self._numbers) if whole}


def _cut(name: str) -> str:
    return name if len(name) <= NAME_AT_MOST else f"{name[: NAME_AT_MOST - 1]}…"
