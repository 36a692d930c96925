# SPDX-License-Identifier: Apache-2.0
"""What the operators of one step must do, counted by our recorder with --work."""

from __future__ import annotations

import numpy as np

from profiling_lab.trace.columns import I32, I64, dense
from profiling_lab.trace.extras import WorkRows
from profiling_lab.trace.nsys.sqlite_file import SqliteFile
from profiling_lab.trace.nsys.strings import Strings
from profiling_lab.trace.process_ids import Registry, process_part

_UNKNOWN = -1
_MOST = 1 << 62
"""larger values are damage, and their sums overflow"""


def read_work(file: SqliteFile, strings: Strings, processes: Registry, threads: Registry) -> WorkRows | None:
    if not file.columns("PYREC_WORK"):
        return None
    numbers = dict.fromkeys(("start", "end", "globalTid", "readBytes", "writtenBytes"), 0)
    texts = dict.fromkeys(("nameId", "kindId", "mathId", "shapesId"), 0)
    rows = file.select("PYREC_WORK", {**numbers, **texts, "flops": _UNKNOWN})
    found = (rows["end"] >= rows["start"]) & (rows["readBytes"] >= 0) & (rows["writtenBytes"] >= 0)
    found &= (rows["readBytes"] < _MOST) & (rows["writtenBytes"] < _MOST) & (rows["flops"] < _MOST)
    rows = {name: column[found] for name, column in rows.items()}

    def named(column: str) -> tuple[I32, tuple[str, ...]]:
        number, ids = dense(rows[column])
        return number, tuple(strings[i] for i in ids.tolist())

    name, names = named("nameId")
    kind, kinds = named("kindId")
    math, maths = named("mathId")
    shapes, shape_texts = named("shapesId")
    flops: I64 = np.maximum(rows["flops"], _UNKNOWN)
    return WorkRows(
        start_ns=rows["start"],
        end_ns=rows["end"],
        process=processes.number(process_part(rows["globalTid"])),
        thread=threads.number(rows["globalTid"]),
        name=name,
        names=names,
        flops=flops,
        read_bytes=rows["readBytes"],
        written_bytes=rows["writtenBytes"],
        kind=kind,
        kinds=kinds,
        math=math,
        maths=maths,
        shapes=shapes,
        texts=shape_texts,
    )
