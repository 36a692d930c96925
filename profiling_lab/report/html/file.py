# SPDX-License-Identifier: Apache-2.0
"""Writing a page so that there is all of it or nothing, and never over somebody's file unasked."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from profiling_lab.errors import LabError, UsageError


def refuse_to_overwrite(path: Path, force: bool) -> None:
    """Raises UsageError if the page cannot or must not be written there."""
    if path.is_dir():
        raise UsageError(f"{path} is a directory; the name of a file was expected")
    if path.exists() and not force:
        raise UsageError(f"{path} is there already; --force overwrites it")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"{path}: there is no directory {path.parent}")


def write_page(path: Path, page: bytes, force: bool) -> None:
    """Write beside the file and rename: whoever reads meanwhile sees the old page or the new one.

    Raises UsageError if somebody else has written the file meanwhile, LabError if it cannot be written.
    """
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.absolute().parent)
    except OSError as error:
        raise LabError(f"{path} cannot be written: {error.strerror}") from None
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(page)
        # A temporary file is for its owner alone; a page has the rights that any new file has.
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(name, 0o666 & ~mask)
        refuse_to_overwrite(path, force)
        os.replace(name, path)
    except LabError:
        os.unlink(name)
        raise
    except OSError as error:
        os.unlink(name)
        raise LabError(f"{path} cannot be written: {error.strerror}") from None
