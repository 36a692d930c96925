# SPDX-License-Identifier: Apache-2.0
"""Files that exist under their name only once they are complete."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from profiling_lab.errors import UsageError

Progress: TypeAlias = Callable[[str, int, int], None]
"""told what is being written, how many of its rows are, and how many there are"""


def no_progress(what: str, done: int, total: int) -> None:
    """For whom it is too little to wait for."""


@dataclass(frozen=True, slots=True)
class Written:
    """Rows of one kind in the output."""

    what: str
    rows: int


@contextmanager
def new_file(path: Path, *, force: bool = False) -> Iterator[Path]:
    """A place to write to, which becomes `path` if all goes well and is removed if not.

    Raises UsageError if `path` exists and `force` is not given, is no file, or cannot be written.
    """
    with _beside(path, force=force) as place:
        if path.is_dir():
            raise UsageError(f"{path} is a folder; a file was expected")
        yield place
        os.replace(place, path)


@contextmanager
def new_folder(path: Path, *, suffix: str, force: bool = False) -> Iterator[Path]:
    """The same for a folder of files `*suffix`; with `force` a folder that holds nothing else is replaced."""
    with _beside(path, force=force) as place:
        if path.exists() and not _only(path, suffix):
            raise UsageError(f"{path} is not replaced: it holds other things than {suffix} files")
        place.mkdir()
        yield place
        if path.is_dir():
            old = place.with_suffix(".old")
            os.replace(path, old)
            os.replace(place, path)
            shutil.rmtree(old)
        else:
            os.replace(place, path)


def _only(path: Path, suffix: str) -> bool:
    return path.is_dir() and all(item.suffix == suffix and item.is_file() for item in path.iterdir())


@contextmanager
def _beside(path: Path, *, force: bool) -> Iterator[Path]:
    if path.exists() and not force:
        raise UsageError(f"{path} exists; --force replaces it")
    # In the same folder, so that renaming it is one step.
    place = path.parent / f".{path.name}.{os.getpid()}.part"
    try:
        yield place
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}") from None
    finally:
        if place.is_dir():
            shutil.rmtree(place, ignore_errors=True)
        else:
            place.unlink(missing_ok=True)
