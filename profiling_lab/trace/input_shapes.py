# SPDX-License-Identifier: Apache-2.0
"""Shapes of operators' inputs, as emit_nvtx and torch.profiler note them with record_shapes=True.

Read when they are asked for.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from profiling_lab.trace.columns import I32
from profiling_lab.trace.kineto.source import ChromeSource
from profiling_lab.trace.nsys.nvtx import PUSH_POP, START_END
from profiling_lab.trace.nsys.source import SqliteSource
from profiling_lab.trace.nsys.sqlite_file import PART
from profiling_lab.trace.trace import Trace

_SIZES = ", sizes = "
_END = ", input_op_ids = "


@dataclass(frozen=True, slots=True)
class InputShapes:
    """A row of `texts` per range; '' where it notes none."""

    number: I32
    texts: tuple[str, ...]
    """`[[64, 512], [512, 512]]`"""


def read_input_shapes(trace: Trace) -> InputShapes | None:
    """Per range of the trace; None where the file notes no shapes."""
    if isinstance(trace.source, ChromeSource):
        number, shapes = trace.source.noted_input_dims()
        return InputShapes(number[trace.range_rows] + np.int32(1), ("", *shapes)) if shapes else None
    if not isinstance(trace.source, SqliteSource):
        return None
    file = trace.file
    table = file.newest("NVTX_EVENTS")
    if table is None or not len(trace.whole.ranges):
        return None
    have = file.columns(table)
    by_id = "textId" in have and bool(file.columns("StringIds"))
    inline = "n.text" if "text" in have else "NULL"
    text = f"COALESCE({inline}, {'s.value' if by_id else 'NULL'}, '')"
    join = "LEFT JOIN StringIds s ON s.id = n.textId" if by_id else ""
    # The rows, and the order, in which read_nvtx reads ranges.
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
    return InputShapes(np.asarray(columns[1][trace.range_rows], dtype=np.int32), cut)
