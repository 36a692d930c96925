# SPDX-License-Identifier: Apache-2.0
"""Python stacks in nsys' form: NVTX marks with a JSON payload, one per API call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from profiling_lab import _analysis
from profiling_lab.records import replace
from profiling_lab.trace.call_stacks import CallFacts, CallRows, StacksFound, unknown_facts
from profiling_lab.trace.columns import I32, I64, dense, full
from profiling_lab.trace.nsys.call_chains import engine_chains, python_chains
from profiling_lab.trace.nsys.nvtx import DOMAIN, MARK, NvtxRows
from profiling_lab.trace.nsys.sqlite_file import SqliteFile
from profiling_lab.trace.nsys.strings import Strings, unescaped
from profiling_lab.trace.process_ids import Registry
from profiling_lab.trace.stacks import Frame, StackBuilder, Stacks

BACKTRACE_SCHEMA = "Python Backtrace on CUDA"
SAMPLING_SCHEMA = "Python Periodic Sampling"


def from_nsys(
    file: SqliteFile, strings: Strings, rows: CallRows, threads: Registry, nvtx: NvtxRows
) -> tuple[Stacks, CallFacts, StacksFound]:
    builder = StackBuilder()
    row_stack = full(len(rows.start_ns), 0, np.int32)
    text, used = dense(nvtx.marks["text"])
    texts = [nvtx.texts[i] for i in used.tolist()]
    payloads = _where(texts, lambda text: text.startswith(f'{{"{BACKTRACE_SCHEMA}'))
    is_stack = payloads[text]
    of_schema = [number for number, name in nvtx.domains.items() if name == BACKTRACE_SCHEMA]
    empty = _where(texts, lambda text: not text)[text]
    without_payload = int((empty & np.isin(nvtx.marks["domain"], of_schema)).sum())
    form = ""
    without_call = 0
    if is_stack.any():
        form = "nsys"
        stacks = np.zeros(len(texts), dtype=np.int32)
        for i in np.flatnonzero(payloads).tolist():
            stacks[i] = builder.add(payload_frames(texts[i], strings, BACKTRACE_SCHEMA))
        start_ns, tid = nvtx.marks["start"][is_stack], nvtx.marks["globalTid"][is_stack]
        row = _row_of_mark(rows, threads.number(tid), start_ns)
        joined = row >= 0
        without_call = int((~joined).sum())
        row_stack[row[joined]] = stacks[text[is_stack][joined]]
    elif chains := python_chains(file, strings, builder):
        form = "call chains"
        number, distinct = dense(rows.chain)
        row_stack = np.array([chains.get(i, 0) for i in distinct.tolist()], dtype=np.int32)[number]
    recorded = int((row_stack > 0).sum()) + without_call + without_payload
    in_engine, node, node_names = engine_chains(file, strings, rows)
    facts = replace(
        unknown_facts(int(rows.is_call.sum())),
        stack=_to_calls(rows, row_stack),
        in_engine=_to_calls(rows, in_engine.astype(np.int32)) > 0,
        node_name=_to_calls(rows, node + 1) - 1,
        node_names=node_names,
    )
    return builder.build(), facts, StacksFound(form, recorded, without_payload, without_call)


def payload_sql(file: SqliteFile, table: str) -> tuple[str, str]:
    """The JSON payload of a mark `n` as an SQL expression ('' if it was not exported), and its join."""
    columns = file.columns(table)
    terms = ['n."jsonText"'] if "jsonText" in columns else []
    if "jsonTextId" not in columns or not file.columns("StringIds"):
        return f"COALESCE({', '.join([*terms, 'NULL'])}, '')", ""
    return f"COALESCE({', '.join([*terms, 's.value'])}, '')", "LEFT JOIN StringIds s ON s.id = n.jsonTextId"


def marks_without_payload(file: SqliteFile, schema: str) -> int:
    """The number of stacks of this schema that were exported without frames."""
    table = file.newest("NVTX_EVENTS")
    if table is None or not {"domainId", "text", "eventType"} <= set(file.columns(table)):
        return 0
    payload, join = payload_sql(file, table)
    query = (
        f'SELECT count(*) FROM "{table}" n {join}'
        f" WHERE n.eventType = {MARK} AND {payload} = '' AND n.domainId IN"
        f" (SELECT domainId FROM \"{table}\" WHERE eventType = {DOMAIN} AND text = '{schema}')"
    )
    return int(file.integers(query, 1)[0][0])


def _where(texts: list[str], test: Callable[[str], bool]) -> npt.NDArray[np.bool_]:
    return np.array([*map(test, texts)], dtype=bool)


def payload_frames(text: str, strings: Strings, schema: str) -> tuple[Frame, ...]:
    """The frames of a payload, innermost first; empty if it is not a payload of this schema."""
    import msgspec  # our own recordings do not need it

    try:
        frames = msgspec.json.decode(text.encode())[schema]["Frames"]
        keys = [(frame["Function"], frame["File"], frame["Line"]) for frame in frames]
        for function, file, line in set(keys) - strings.frames.keys():
            frame = Frame(_text(function, strings), _text(file, strings), int(line))
            strings.frames[function, file, line] = frame
        return tuple(map(strings.frames.__getitem__, keys))
    except (msgspec.DecodeError, KeyError, TypeError, ValueError):
        return ()


def _text(value: Any, strings: Strings) -> str:
    return unescaped(strings[value] if isinstance(value, int) else str(value))


def _row_of_mark(rows: CallRows, thread: I32, start_ns: I64) -> I32:
    """The call row of a mark: the one that started at the same time, else the one around it."""
    row: I32 = _analysis.call_of(thread, start_ns, rows.thread, rows.start_ns, rows.start_ns)
    lost = np.flatnonzero(row < 0)
    if len(lost):
        _, around, _ = _analysis.contain(
            rows.start_ns, rows.end_ns, rows.thread, start_ns[lost], thread[lost], 1000
        )
        row[lost] = around
    return row


def _to_calls(rows: CallRows, value: I32) -> I32:
    """Convert a value per row to a value per call: its own, else that of the extra row with its thread and
    id.
    """
    calls = np.flatnonzero(rows.is_call)
    out = value[calls]
    extra = np.flatnonzero(~rows.is_call & (value != 0))
    if len(extra):
        call = _analysis.call_of(
            rows.thread[extra],
            rows.correlation[extra],
            rows.thread[calls],
            rows.correlation[calls],
            rows.start_ns[calls],
        )
        found = call >= 0
        out[call[found]] = np.where(out[call[found]] == 0, value[extra][found], out[call[found]])
    return out
