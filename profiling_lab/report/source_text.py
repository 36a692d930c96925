# SPDX-License-Identifier: Apache-2.0
"""The text of the line of a row, in files that hold texts; other files have neither column nor field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from profiling_lab.report.fields import Field, Getter, getter

SourceTexts = Mapping[tuple[str, int], str]
"""by file and line"""


def source_fields(texts: SourceTexts, line: Getter) -> tuple[Field, ...]:
    """The field `source`; () without texts. line: what has a `file` and a `line`, or None."""
    get = getter(line)

    def text(row: Any) -> str | None:
        return text_of(texts, get(row)) or None

    return (Field("source", "source", value=text, may_be_cut=True),) if texts else ()


def text_of(texts: SourceTexts, line: Any) -> str:
    return texts.get((line.file, line.line), "") if line else ""
