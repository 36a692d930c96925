# SPDX-License-Identifier: Apache-2.0
"""Input shapes of operators, as recorded by emit_nvtx with record_shapes=True."""

from __future__ import annotations

import numpy as np

from profiling_lab.trace.extras import InputShapes
from profiling_lab.trace.nsys.nvtx import PUSH_POP, START_END
from profiling_lab.trace.nsys.sqlite_file import PART, SqliteFile
from profiling_lab.trace.source import Tables

_SIZES = ", sizes = "
_END = ", input_op_ids = "


def read_input_shapes(file: SqliteFile, whole: Tables) -> InputShapes | None:
    """Per range; None if the file has no shapes."""
    table = file.newest("NVTX_EVENTS")
    if table is None or not len(whole.ranges):
        return None
    have = file.columns(table)
    by_id = "textId" in have and bool(file.columns("StringIds"))
    inline = "n.text" if "text" in have else "NULL"
    text = f"COALESCE({inline}, {'s.value' if by_id else 'NULL'}, '')"
    join = "LEFT JOIN StringIds s ON s.id = n.textId" if by_id else ""
    # The same rows and order as in read_nvtx.
    columns, texts = file.coded_texts(
        f"SELECT CAST(n.start AS INTEGER), CAST(CASE WHEN instr({text}, '{_SIZES}') > 0"
        f" THEN substr({text}, instr({text}, '{_SIZES}') + {len(_SIZES)}) ELSE '' END AS BLOB)"
        f' FROM "{table}" n {join}'
        f" WHERE n.eventType IN ({PUSH_POP}, {START_END}) AND n.start IS NOT NULL AND {PART}",
        1,
        file.parts(table, "n"),
    )
    if not any(texts):
        return None
    cut = tuple(text.partition(_END)[0] for text in texts)
    return InputShapes(np.asarray(columns[1], dtype=np.int32), cut)
