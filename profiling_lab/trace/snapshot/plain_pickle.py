# SPDX-License-Identifier: Apache-2.0
"""Load a pickle that holds only plain containers, numbers and texts; anything else is refused.

A pickle can run any code when it is loaded. This reader looks up no class and no function.
"""

from __future__ import annotations

import io
import pickle
import zlib
from pathlib import Path
from typing import Any

from profiling_lab.errors import UnreadableInputError

GZIP = b"\x1f\x8b"


class _RefusedError(Exception):
    """The pickle names something that is not a plain value."""


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise _RefusedError(f"{module}.{name}")

    def persistent_load(self, pid: Any) -> Any:
        raise _RefusedError("an object outside of the file")


def is_pickle(head: bytes) -> bool:
    """Whether a file with these first bytes is a pickle of protocol 2 to 5."""
    return len(head) > 2 and head[0] == 0x80 and 2 <= head[1] <= 5


def load_plain(path: Path) -> Any:
    """The value of a pickle, also inside of gzip. Raises UnreadableInputError."""
    try:
        data = path.read_bytes()
        if data.startswith(GZIP):
            import gzip

            data = gzip.decompress(data)
        return _PlainUnpickler(io.BytesIO(data)).load()
    except _RefusedError as refused:
        raise UnreadableInputError(
            f"{path} is a pickle with {refused} in it; a memory snapshot has only lists, dicts, numbers and "
            "texts, and nothing else is loaded, because that could run code"
        ) from None
    except OSError as error:
        raise UnreadableInputError(f"{path} cannot be read: {error.strerror or error}") from None
    except MemoryError:
        raise UnreadableInputError(f"there is not enough memory to read {path}") from None
    except (EOFError, zlib.error):
        raise UnreadableInputError(f"{path} is cut off: the pickle does not end") from None
    except Exception as error:  # pickle raises many kinds on damaged input
        raise UnreadableInputError(f"{path} is a damaged pickle: {type(error).__name__}: {error}") from None
