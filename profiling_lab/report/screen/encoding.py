# SPDX-License-Identifier: Apache-2.0
"""Text for outputs that cannot hold all of it: µs becomes us where the locale is ASCII."""

from __future__ import annotations

import codecs
from typing import TextIO

from profiling_lab.report.json_text import readable

STAND_INS = "profiling_lab.stand_ins"
"""the name of the error handler for streams"""
_STAND_INS = {
    "µ": "u", "±": "+/-", "×": "x", "→": "->", "…": "...", "·": "-", "–": "-", "—": "-",
    "─": "-", "│": "|", "└": "`", "├": "|",
    "\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"', "\u00a0": " ",
}  # fmt: skip


def _stand_in(error: UnicodeError) -> tuple[str, int]:
    """What has no stand-in is escaped: a file name may not be valid text at all."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lost = error.object[error.start : error.end]
    shown = (_STAND_INS.get(c) or readable(c).encode("ascii", "backslashreplace").decode() for c in lost)
    return "".join(shown), error.end


codecs.register_error(STAND_INS, _stand_in)


def can_hold(stream: TextIO, text: str) -> bool:
    """A stream without an encoding, such as io.StringIO, holds every text."""
    try:
        text.encode(getattr(stream, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


def held_by(stream: TextIO, text: str) -> str:
    """The text as this stream can hold it, whatever its own error handler is."""
    if can_hold(stream, text):
        return text
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text.encode(encoding, STAND_INS).decode(encoding)


def held_json(stream: TextIO, text: str) -> str:
    """The same for JSON, which has escapes of its own."""
    if can_hold(stream, text):
        return text
    import json  # only an ASCII terminal waits for it

    return json.dumps(json.loads(text), indent=2)
