# SPDX-License-Identifier: Apache-2.0
"""How each column of a recording is rewritten when its rows are merged into another file."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from profiling_lab.recording.tables.schema import NSYS_TABLES, PYREC_TABLES, column_names


class ColumnKind(Enum):
    """How a value of a column must be rewritten."""

    PLAIN = "the same in every file"
    TIME = "nanoseconds since the recording began"
    GLOBAL_ID = "a thread or process, with the number of its process in bits 24 to 47"
    PROCESS = "a process id"
    STRING = "a row of StringIds"
    STACK = "a row of PYREC_STACK, 0 for none"
    FRAME = "a row of PYREC_FRAME"


_BY_NAME = {
    **dict.fromkeys(("start", "end", "timestamp"), ColumnKind.TIME),
    **dict.fromkeys(("globalTid", "globalPid", "endGlobalTid"), ColumnKind.GLOBAL_ID),
    **dict.fromkeys(("pid", "processId"), ColumnKind.PROCESS),
    **dict.fromkeys(("demangledName", "shortName", "mangledName", "nameId", "textId", "jsonTextId"),
                    ColumnKind.STRING),
    **dict.fromkeys(("functionId", "fileId", "nodeNameId"), ColumnKind.STRING),
    **dict.fromkeys(("kindId", "mathId", "shapesId"), ColumnKind.STRING),
    **dict.fromkeys(("stackId", "parentId"), ColumnKind.STACK),
    "frameId": ColumnKind.FRAME,
}  # fmt: skip
_BY_TABLE = {("PYREC_STACK", "id"): ColumnKind.STACK, ("PYREC_FRAME", "id"): ColumnKind.FRAME}

ONE_PER_FILE = ("TARGET_INFO_SESSION_START_TIME", "ANALYSIS_DETAILS")
"""tables about the whole file"""
SAME_ROWS_ONCE = (
    "TARGET_INFO_SYSTEM_ENV",
    "META_DATA_CAPTURE",
    "META_DATA_EXPORT",
    "NVTX_PAYLOAD_SCHEMAS",
    "NVTX_PAYLOAD_SCHEMA_ENTRIES",
    "NVTX_PAYLOAD_ENUMS",
    "NVTX_PAYLOAD_ENUM_ENTRIES",
    "PYREC_SOURCE",
)
"""tables with facts of a machine or a program: equal rows are kept once"""
BY_HAND = ("StringIds", "TARGET_INFO_GPU", "TARGET_INFO_CUDA_DEVICE", "PYREC_META", "PYREC_PROCESS")
"""tables that are merged by content, not row by row"""
ROW_BY_ROW = tuple(
    name for name in (*NSYS_TABLES, *PYREC_TABLES) if name not in (*ONE_PER_FILE, *SAME_ROWS_ONCE, *BY_HAND)
)


def meaning(table: str, column: str) -> ColumnKind:
    return _BY_TABLE.get((table, column)) or _BY_NAME.get(column, ColumnKind.PLAIN)


class Moved:
    """The SQL that rewrites one file's rows for the merged file."""

    def __init__(self, shift_ns: int, pids: Mapping[int, int], first_stack: int, first_frame: int) -> None:
        """pids: the new number of each process whose number changes. first_...: added to ids."""
        self._shift_ns, self._pids = shift_ns, pids
        self._first_stack, self._first_frame = first_stack, first_frame

    def select(self, table: str, there: tuple[str, ...], only_process: int | None, where: str = "1") -> str:
        """Rows of the attached file `part` in the form of the merged table; NULL for missing columns.

        only_process: the global id of the file's process, for columns that files of one process leave NULL.
        """
        terms = []
        for column in column_names(table):
            term = self._value(table, column) if column in there else "NULL"
            if meaning(table, column) is ColumnKind.GLOBAL_ID and only_process is not None:
                term = f"COALESCE({term}, {only_process})"
            terms.append(term)
        return f"SELECT {', '.join(terms)} FROM part.{table} WHERE {where}"

    def _value(self, table: str, column: str) -> str:
        kind = meaning(table, column)
        if kind is ColumnKind.TIME and self._shift_ns:
            moved = f"{column} + {self._shift_ns}"
            if table == "NVTX_EVENTS":  # names of domains and categories have no time
                return f"CASE WHEN eventType IN (33, 75) AND {column} = 0 THEN 0 ELSE {moved} END"
            return moved
        if kind is ColumnKind.GLOBAL_ID and self._pids:
            whens = " ".join(
                f"WHEN {old} THEN ({column} & ~{0xFFFFFF << 24}) | {new << 24}"
                for old, new in self._pids.items()
            )
            return f"CASE (({column} >> 24) & {0xFFFFFF}) {whens} ELSE {column} END"
        if kind is ColumnKind.PROCESS and self._pids:
            whens = " ".join(f"WHEN {old} THEN {new}" for old, new in self._pids.items())
            return f"CASE {column} {whens} ELSE {column} END"
        if kind is ColumnKind.STRING:
            found = f"(SELECT new FROM temp.names WHERE old = {column})"
            return f"CASE WHEN {column} IS NULL THEN NULL ELSE COALESCE({found}, 0) END"
        if kind is ColumnKind.STACK and self._first_stack:
            return f"CASE WHEN {column} > 0 THEN {column} + {self._first_stack} ELSE {column} END"
        if kind is ColumnKind.FRAME and self._first_frame:
            return f"{column} + {self._first_frame}"
        return column
