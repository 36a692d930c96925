# SPDX-License-Identifier: Apache-2.0
"""PYREC_WORK: the FLOPs and bytes of the operators of one step, noted by work_step.py."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from profiling_lab.recording.meta_names import WORK
from profiling_lab.recording.spool import Rows, Spool, StringTable, global_tid
from profiling_lab.recording.tables.activity import OVERHEAD_EVENT_CLASS, arrow_table, null_where

_TEXTS = ("nameId", "kindId", "mathId", "shapesId")
_NO_FLOPS = -1
_OVERHEAD, _INSTRUMENTATION = "CUPTI_ACTIVITY_KIND_OVERHEAD", 4


def build(spool: Spool, strings: StringTable) -> Iterator[Rows]:
    found: dict[str, Any] = json.loads(spool.meta.get(WORK, "{}"))
    calls = found.get("calls", [])
    if not calls:
        return
    rows = np.array([[_NO_FLOPS if value is None else value for value in call] for call in calls], np.int64)
    began = np.int64(found["began"] - spool.start_ns)
    ids = np.array([strings.id(text) for text in found["texts"]], np.int64)
    columns: dict[str, Any] = {
        "start": rows[:, 0] + began,
        "end": rows[:, 1] + began,
        "globalTid": global_tid(spool.process, rows[:, 2]),
        "flops": null_where(rows[:, 3], rows[:, 3] < 0),
        "readBytes": rows[:, 4],
        "writtenBytes": rows[:, 5],
    }
    columns |= {name: ids[rows[:, 6 + i]] for i, name in enumerate(_TEXTS)}
    yield "PYREC_WORK", arrow_table("PYREC_WORK", columns, len(rows))
    yield _OVERHEAD, _delays(spool, strings, began, found.get("delays", []))


def _delays(spool: Spool, strings: StringTable, began: np.int64, delays: list[list[int]]) -> Any:
    """The time that counting took, as overhead of the profiler."""
    rows = np.array(delays, np.int64).reshape(-1, 3)
    columns = {
        "start": rows[:, 0] + began,
        "end": rows[:, 1] + began,
        "eventClass": OVERHEAD_EVENT_CLASS,
        "globalTid": global_tid(spool.process, rows[:, 2]),
        "nameId": strings.id("Counting of work"),
        "overheadType": _INSTRUMENTATION,
    }
    return arrow_table(_OVERHEAD, columns, len(rows))
