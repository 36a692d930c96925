# SPDX-License-Identifier: Apache-2.0
"""The folder whose recordings may be read, and nothing outside of it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from profiling_lab.errors import NotEnoughDataError, UnreadableInputError, UsageError
from profiling_lab.report.numbers import size
from profiling_lab.trace.formats import is_trace_name


class Root:
    def __init__(self, folder: str) -> None:
        """Raises UnreadableInputError if there is no such folder."""
        if not os.path.isdir(folder):
            raise UnreadableInputError(f"--root expects a folder, and {folder} is none")
        self.path = os.path.realpath(folder)

    def file(self, name: str) -> str:
        """The path of a recording: relative to the root, or absolute. Links are followed before it is judged.

        Raises UsageError for a path outside, UnreadableInputError where there is nothing.
        """
        if "\0" in name:
            raise UsageError("expected the name of a file, not one with a zero byte in it")
        path = os.path.realpath(os.path.join(self.path, name))
        self._check(path, name)
        if not os.path.exists(path):
            raise UnreadableInputError(f"there is no {name} in {self.path}; `recordings` lists what is there")
        if os.path.isdir(path):
            for folder, folders, files in os.walk(path):
                for child in (*folders, *files):  # a link in a folder leads outside too
                    self._check(os.path.realpath(os.path.join(folder, child)), os.path.join(name, child))
        return path

    def files(self, names: Sequence[str]) -> list[str]:
        """Raises UsageError if there is no name."""
        if not names:
            raise UsageError("expected at least one file")
        return [self.file(name) for name in names]

    def recordings(self) -> list[tuple[str, str]]:
        """Name and size of everything that looks like a trace, the newest first.

        Raises NotEnoughDataError if there is nothing.
        """
        found = sorted(self._traces(), reverse=True)
        if not found:
            raise NotEnoughDataError(
                f"no recording is in {self.path}: profiling-lab record train.py makes one"
            )
        return [(os.path.relpath(path, self.path), size(length)) for _, path, length in found]

    def _traces(self) -> Iterator[tuple[float, str, int]]:
        for folder, folders, files in os.walk(self.path):
            folders[:] = [name for name in folders if not name.startswith(".")]
            for name in (*files, *folders):
                path = os.path.join(folder, name)
                if is_trace_name(Path(path)) and self._is_inside(os.path.realpath(path)):
                    facts = os.stat(path)
                    yield facts.st_mtime, path, facts.st_size

    def _is_inside(self, path: str) -> bool:
        return os.path.commonpath([self.path, path]) == self.path

    def _check(self, path: str, name: str) -> None:
        if not self._is_inside(path):
            raise UsageError(f"{name} is outside of {self.path}, the folder that may be read")
