# SPDX-License-Identifier: Apache-2.0
"""The string table of a trace."""

from __future__ import annotations

import re
from dataclasses import field
from typing import Any

from profiling_lab.records import dataclass
from profiling_lab.trace.nsys.sqlite_file import SqliteFile
from profiling_lab.trace.stacks import Frame


@dataclass(frozen=True, slots=True)
class Strings:
    """Texts by id; an unknown id gives ''."""

    by_id: dict[int, str]
    frames: dict[tuple[Any, ...], Frame] = field(default_factory=dict, compare=False, repr=False)
    """those of payloads, by what the payloads say: stacks have most of their frames in common"""

    def __getitem__(self, string_id: int) -> str:
        return self.by_id.get(string_id, "")

    def ids_matching(self, pattern: str) -> dict[int, re.Match[str]]:
        compiled = re.compile(pattern)
        return {i: match for i, text in self.by_id.items() if (match := compiled.search(text))}


def unescaped(text: str) -> str:
    """nsys escapes its strings for HTML: `&lt;module&gt;`."""
    if "&" not in text:
        return text
    from html import unescape  # its tables take long to load

    return unescape(text)


def read_strings(file: SqliteFile) -> Strings:
    if not file.columns("StringIds"):
        return Strings({})
    columns, texts = file.coded_texts(
        "SELECT CAST(id AS INTEGER), CAST(IFNULL(value, '') AS BLOB) FROM StringIds", 1
    )
    return Strings(dict(zip(columns[0].tolist(), (texts[i] for i in columns[1].tolist()), strict=True)))
