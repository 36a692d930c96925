# SPDX-License-Identifier: Apache-2.0
"""Write files atomically: they get their name only when complete."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

from profiling_lab.errors import UsageError
from profiling_lab.records import dataclass

Progress: TypeAlias = Callable[[str, int, int], None]
"""called with what is being written, the number of written rows, and the total"""


def no_progress(what: str, done: int, total: int) -> None:
    """A progress function that does nothing."""


@dataclass(frozen=True, slots=True)
class Written:
    """The number of rows of one kind in the output."""

    what: str
    rows: int


def refuse(path: Path, *, overwrite: bool, source: Path | None = None, folder: bool = False) -> None:
    """Raises UsageError if the file (or `folder`) must not be written. Called before the work starts.

    source: the input, which is not overwritten even with `overwrite`.
    """
    try:
        _refuse(path, overwrite, source, folder)
    except OSError as error:  # no permission for a parent folder, or the name is too long
        raise UsageError(f"{path} cannot be written: {error.strerror or error}") from None


def _refuse(path: Path, overwrite: bool, source: Path | None, folder: bool) -> None:
    if not path.absolute().parent.is_dir():
        raise UsageError(f"the folder {path.parent} does not exist")
    if not path.exists():
        return
    if source is not None and source.exists() and path.samefile(source):
        raise UsageError(f"{path} is the trace itself")
    if not path.is_file() and not path.is_dir():  # renaming onto /dev/null would replace it
        raise UsageError(f"{path} is a pipe or a device; a file was expected")
    if not overwrite:
        raise UsageError(f"{path} exists already; choose another name or pass --overwrite")
    if path.is_dir() != folder:
        is_what, wanted = ("file", "folder") if folder else ("folder", "file")
        raise UsageError(f"{path} is a {is_what}; a {wanted} was expected")


@contextmanager
def new_file(path: Path, *, overwrite: bool = False, source: Path | None = None) -> Iterator[Path]:
    """A temporary file, which becomes `path` on success and is removed on failure.

    Raises UsageError like `refuse`, or if `path` cannot be written.
    """
    refuse(path, overwrite=overwrite, source=source)
    with _temporary_path(path) as place:
        yield place
        os.replace(place, path)


@contextmanager
def new_folder(
    path: Path, *, suffix: str, overwrite: bool = False, source: Path | None = None
) -> Iterator[Path]:
    """The same for a folder of files `*suffix`. `overwrite` replaces a folder with only such files."""
    refuse(path, overwrite=overwrite, source=source, folder=True)
    if path.exists() and not _only(path, suffix):
        raise UsageError(f"{path} is not replaced: it contains other files than {suffix} files")
    with _temporary_path(path) as place:
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
    return all(item.suffix == suffix and item.is_file() for item in path.iterdir())


@contextmanager
def _temporary_path(path: Path) -> Iterator[Path]:
    # In the same folder, so that renaming is atomic.
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
