# SPDX-License-Identifier: Apache-2.0
"""One test for thousands of files: a test of its own for each takes longer than what it checks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]


def of_each(paths: Iterable[Path]) -> Callable[[Callable[[Path], None]], Callable[[], None]]:
    """Makes a check of one path a test of all: it fails with the names of all paths that fail, and why."""

    def decorate(check: Callable[[Path], None]) -> Callable[[], None]:
        def test() -> None:
            wrong = []
            for path in paths:
                try:
                    check(path)
                except Exception as error:
                    wrong.append(f"{path.relative_to(REPO)}: {type(error).__name__}: {error}")
            assert not wrong, "\n".join(wrong)

        test.__doc__ = check.__doc__
        return test

    return decorate
