# SPDX-License-Identifier: Apache-2.0
"""NVTX ranges from the nsys schema. SQL cuts the texts: emit_nvtx makes every one of millions different."""

from __future__ import annotations

import numpy as np

from profiling_lab.trace.columns import NO_SEQUENCE, Ranges
from profiling_lab.trace.process_ids import Registry, process_part
from profiling_lab.trace.sqlite_file import SqliteFile

# The engine's range around the evaluation of a node (Evaluates.ENGINE).
_EVALUATE = "autograd::engine::evaluate_function: "
OPEN_END = int(np.iinfo(np.int64).max)
_PUSH_POP, _START_END, _DOMAIN = 59, 60, 75  # NVTX event types

# `aten::mm, seq = 4, op_id = 29, sizes = [[..]]`: the name ends where the first of these begins.
_MARKERS = (", seq = ", ", op_id = ", ", sizes = ", ", input_op_ids = ")


def read_ranges(file: SqliteFile, processes: Registry, threads: Registry) -> Ranges:
    table = file.newest("NVTX_EVENTS")
    if table is None:
        return _ranges({}, [], processes, threads, {})
    have = file.columns(table)
    by_id = "textId" in have and bool(file.columns("StringIds"))
    join = "LEFT JOIN StringIds s ON s.id = n.textId" if by_id else ""
    text = "CAST(COALESCE(n.text, s.value, '') AS TEXT)" if by_id else "CAST(COALESCE(n.text, '') AS TEXT)"
    domain = "IFNULL(n.domainId, 0)" if "domainId" in have else "0"
    cuts = ", ".join(f"IFNULL(NULLIF(instr(t, '{marker}'), 0), 1000000000)" for marker in _MARKERS)
    columns, names = file.coded_texts(
        f"SELECT a, b, tid, domain,"
        f" CASE WHEN instr(t, ', seq = ') > 0 THEN CAST(substr(t, instr(t, ', seq = ') + 8) AS INTEGER)"
        f" ELSE {NO_SEQUENCE} END,"
        f" CAST(substr(t, 1, min({cuts}) - 1) AS BLOB)"
        f" FROM (SELECT CAST(n.start AS INTEGER) a, IFNULL(n.end, {OPEN_END}) b, IFNULL(n.globalTid, 0) tid,"
        f' {domain} domain, {text} t FROM "{table}" n {join}'
        f" WHERE n.eventType IN ({_PUSH_POP}, {_START_END}))",
        5,
    )
    named = dict(zip(("start", "end", "globalTid", "domain", "sequence", "name"), columns, strict=True))
    domains = {
        int(number): name
        for number, name in file.texts(
            f'SELECT CAST(CAST({domain} AS INTEGER) AS TEXT), CAST({text} AS BLOB) FROM "{table}" n {join}'
            f" WHERE n.eventType = {_DOMAIN}"
        )
    }
    return _ranges(named, names, processes, threads, domains)


def _ranges(
    columns: dict[str, np.ndarray],
    names: list[str],
    processes: Registry,
    threads: Registry,
    domains: dict[int, str],
) -> Ranges:
    none = np.empty(0, dtype=np.int64)
    tid = columns.get("globalTid", none)
    start_ns = columns.get("start", none)
    evaluates = np.array([name.startswith(_EVALUATE) for name in names] or [False], dtype=np.uint8)
    return Ranges(
        start_ns=start_ns,
        end_ns=np.maximum(start_ns, columns.get("end", none)),
        process=processes.number(process_part(tid)),
        thread=threads.number(tid),
        name=columns.get("name", none).astype(np.int32),
        names=tuple(names),
        sequence=columns.get("sequence", none),
        evaluates=evaluates[columns.get("name", none)],
        domain=columns.get("domain", none),
        domains=domains,
        stack=np.zeros(len(start_ns), dtype=np.int32),
    )
