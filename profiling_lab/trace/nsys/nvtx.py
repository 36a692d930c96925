# SPDX-License-Identifier: Apache-2.0
"""The NVTX table of the nsys schema, read once: ranges, and marks with Python stacks."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from profiling_lab.records import dataclass
from profiling_lab.trace.columns import I64, OPEN_END
from profiling_lab.trace.nsys.sqlite_file import PART, SqliteFile

MARK, PUSH_POP, START_END, DOMAIN = 34, 59, 60, 75  # NVTX event types
_COLUMNS = ("start", "end", "globalTid", "domain", "type", "sequence", "text")


@dataclass(frozen=True, slots=True)
class NvtxRows:
    """Columns by name; `text` is a row of `texts`, which ranges, marks and domains share.

    The text of a range is its name without the numbers that emit_nvtx appends. The text of a mark is its JSON
    payload, '' if it was not exported.
    """

    ranges: dict[str, I64]
    marks: dict[str, I64]
    texts: list[str]
    domains: dict[int, str]
    """names of the domains that have one"""


def read_nvtx(file: SqliteFile, with_marks: bool) -> NvtxRows:
    table = file.newest("NVTX_EVENTS")
    if table is None:
        none = {name: np.empty(0, dtype=np.int64) for name in _COLUMNS}
        return NvtxRows(none, none, [], {})
    file.require(table, "start", "eventType")
    types = (*((MARK,) if with_marks else ()), PUSH_POP, START_END, DOMAIN)
    text, join = _text_sql(file, table)
    have = file.columns(table)
    terms = [
        "CAST(n.start AS INTEGER)",
        f"IFNULL(CAST(n.end AS INTEGER), {OPEN_END})" if "end" in have else str(OPEN_END),
        "IFNULL(CAST(n.globalTid AS INTEGER), 0)" if "globalTid" in have else "0",
        "IFNULL(CAST(n.domainId AS INTEGER), 0)" if "domainId" in have else "0",
        "CAST(n.eventType AS INTEGER)",
    ]
    columns, texts = file.coded_texts(
        f'SELECT {", ".join(terms)}, CAST({text} AS BLOB) FROM "{table}" n {join}'
        f" WHERE n.eventType IN ({', '.join(map(str, types))}) AND n.start IS NOT NULL AND {PART}",
        len(terms),
        file.parts(table, "n"),
        operators=True,
    )
    rows = dict(zip(_COLUMNS, columns, strict=True))
    kind = rows.pop("type")
    domains = _only(rows, kind == DOMAIN)
    return NvtxRows(
        ranges=_only(rows, (kind == PUSH_POP) | (kind == START_END)),
        marks=_only(rows, kind == MARK),
        texts=texts,
        domains={
            number: texts[name]
            for number, name in zip(domains["domain"].tolist(), domains["text"].tolist(), strict=True)
        },
    )


def _only(rows: dict[str, I64], keep: npt.NDArray[np.bool_]) -> dict[str, I64]:
    return {name: column[keep] for name, column in rows.items()}


def _text_sql(file: SqliteFile, table: str) -> tuple[str, str]:
    """The payload of a mark, or the text of another row, each inline or in the string table."""
    have = set(file.columns(table))
    inline, by_id = (
        f"CASE WHEN n.eventType = {MARK} THEN {_known(json, have)} ELSE {_known(text, have)} END"
        for json, text in (("jsonText", "text"), ("jsonTextId", "textId"))
    )
    if not file.columns("StringIds"):
        return f"COALESCE({inline}, '')", ""
    return f"COALESCE({inline}, s.value, '')", f"LEFT JOIN StringIds s ON s.id = {by_id}"


def _known(column: str, have: set[str]) -> str:
    return f'n."{column}"' if column in have else "NULL"
