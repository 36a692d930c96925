# SPDX-License-Identifier: Apache-2.0
"""The text of source lines, from the table that our recorder adds to the nsys schema."""

from __future__ import annotations

from profiling_lab.trace.nsys.sqlite_file import SqliteFile
from profiling_lab.trace.nsys.strings import Strings

_COLUMNS = ("fileId", "line", "text")


def read_source_texts(file: SqliteFile, strings: Strings) -> dict[tuple[str, int], str]:
    """By file and line. A merged file may have several texts of a line, of which none is shown."""
    if not set(_COLUMNS) <= set(file.columns("PYREC_SOURCE")):
        return {}
    (file_ids, lines, codes), texts = file.coded_texts(
        "SELECT IFNULL(CAST(fileId AS INTEGER), 0), IFNULL(CAST(line AS INTEGER), 0), "
        "CAST(IFNULL(text, '') AS BLOB) FROM PYREC_SOURCE",
        2,
    )
    found: dict[tuple[str, int], str] = {}
    for file_id, line, code in zip(file_ids.tolist(), lines.tolist(), codes.tolist(), strict=True):
        key, text = (strings[file_id], line), texts[code]
        if found.setdefault(key, text) != text:
            found[key] = ""
    return {(name, line): text for (name, line), text in found.items() if name and text}
