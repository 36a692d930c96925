# SPDX-License-Identifier: Apache-2.0
"""An SQLite file inside of gzip: it is unpacked into a temporary file, because SQLite reads in any order."""

from __future__ import annotations

import gzip
import shutil
import tempfile
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from profiling_lab.errors import UnreadableInputError
from profiling_lab.trace.nsys.sqlite_file import SqliteFile


@dataclass(slots=True)
class PackedFile(SqliteFile):
    """As SqliteFile; `path` is that of the packed file. Closing it deletes the temporary file.

    Raises UnreadableInputError if the file is truncated or damaged, or if there is no space to unpack it.
    """

    _unpacked: Any = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._unpacked = _unpack(self.path)
        try:
            SqliteFile.__post_init__(self)
        except BaseException:
            self._unpacked.close()
            raise

    def _bytes_at(self) -> Path:
        return Path(self._unpacked.name)

    def close(self) -> None:
        SqliteFile.close(self)
        self._unpacked.close()


def _unpack(path: Path) -> Any:
    try:
        out = tempfile.NamedTemporaryFile(prefix="profiling_lab_", suffix=".sqlite")  # noqa: SIM115
    except OSError as error:
        raise UnreadableInputError(f"{path} cannot be unpacked into a temporary file: {error}") from None
    try:
        with gzip.open(path) as packed:
            shutil.copyfileobj(packed, out, 1 << 20)
        out.flush()
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        out.close()
        raise UnreadableInputError(
            f"{path} is truncated or damaged, it cannot be decompressed: {error}"
        ) from None
    except OSError as error:
        out.close()
        raise UnreadableInputError(
            f"{path} cannot be unpacked into {tempfile.gettempdir()}: {error.strerror}"
        ) from None
    except BaseException:
        out.close()
        raise
    return out
