# SPDX-License-Identifier: Apache-2.0
"""Where a file keeps the Python stacks of its API calls: our tables, nsys' NVTX payloads, or call chains."""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from profiling_lab import _analysis
from profiling_lab.trace.columns import I32, I64, NO_SEQUENCE, dense, full
from profiling_lab.trace.process_ids import Registry, process_part
from profiling_lab.trace.sqlite_file import SqliteFile
from profiling_lab.trace.stacks import Frame, StackBuilder, Stacks
from profiling_lab.trace.strings import Strings

BACKTRACE_SCHEMA = "Python Backtrace on CUDA"
SAMPLING_SCHEMA = "Python Periodic Sampling"
_MARK, _DOMAIN = 34, 75  # NVTX event types


@dataclass(frozen=True, slots=True)
class CallRows:
    """All rows of the call table, the extra rows that only carry a call chain included."""

    start_ns: I64
    end_ns: I64
    process: I32
    thread: I32
    correlation: I64
    is_call: npt.NDArray[np.bool_]
    chain: I64


@dataclass(frozen=True, slots=True)
class CallStacks:
    """Per call (not per row): its stack and what is known of autograd, in the terms of `Calls`."""

    stacks: Stacks
    stack: I32
    next_sequence: I64
    node_sequence: I64
    counter: I32
    node_counter: I32
    node_name: I32
    node_names: tuple[str, ...]
    in_engine: npt.NDArray[np.bool_]
    """the native call chain passes through the autograd engine"""
    form: str
    """where the stacks came from: 'recorder', 'nsys', 'call chains' or '' for nowhere"""
    recorded: int
    """stacks recorded, whether or not they could be read and joined with a call"""
    without_payload: int
    """stacks whose frames were left out when the file was exported"""
    without_call: int
    """stacks or launch facts whose call is not in the file"""


def read_call_stacks(
    file: SqliteFile, strings: Strings, rows: CallRows, processes: Registry, threads: Registry
) -> CallStacks:
    if file.columns("PYREC_STACK") and file.columns("PYREC_LAUNCH"):
        return _from_recorder(file, strings, rows, processes)
    return _from_nsys(file, strings, rows, threads)


def _empty(rows: CallRows, stacks: Stacks) -> dict[str, Any]:
    calls = int(rows.is_call.sum())
    return {
        "stacks": stacks,
        "stack": full(calls, 0, np.int32),
        "next_sequence": full(calls, NO_SEQUENCE),
        "node_sequence": full(calls, NO_SEQUENCE),
        "counter": full(calls, -1, np.int32),
        "node_counter": full(calls, -1, np.int32),
        "node_name": full(calls, -1, np.int32),
        "node_names": (),
        "in_engine": np.zeros(calls, dtype=bool),
        "form": "",
        "recorded": 0,
        "without_payload": 0,
        "without_call": 0,
    }


# Our own tables


def _from_recorder(file: SqliteFile, strings: Strings, rows: CallRows, processes: Registry) -> CallStacks:
    stacks, row_of_id = _recorder_stacks(file, strings)
    out = _empty(rows, stacks)
    facts = file.select(
        "PYREC_LAUNCH",
        {
            "globalTid": 0,
            "correlationId": -1,
            "stackId": 0,
            "peekSeq": NO_SEQUENCE,
            "nodeSeq": NO_SEQUENCE,
            "nodeFwdThread": -1,
            "selfThread": -1,
            "nodeNameId": -1,
        },
    )
    process = processes.number(process_part(facts["globalTid"]))
    calls = np.flatnonzero(rows.is_call)
    call = _analysis.call_of(
        process, facts["correlationId"], rows.process[calls], rows.correlation[calls], rows.start_ns[calls]
    )
    known = np.flatnonzero(call >= 0)
    at = call[known]
    out["stack"][at] = row_of_id(facts["stackId"][known])
    out["next_sequence"][at] = facts["peekSeq"][known]
    out["node_sequence"][at] = facts["nodeSeq"][known]
    # A counter belongs to a thread of one process; the recorder numbers them per process.
    counters = Registry()
    for column, fact in (("counter", "selfThread"), ("node_counter", "nodeFwdThread")):
        value = facts[fact][known]
        numbers = counters.number((process[known].astype(np.int64) << 40) | (value & 0xFFFFFFFF))
        out[column][at] = np.where(value < 0, -1, numbers)
    numbers, name_ids = dense(facts["nodeNameId"][known])
    names = [strings[i] for i in name_ids.tolist()]
    unnamed = np.array([not name for name in names] or [True], dtype=bool)
    out["node_name"][at] = np.where(unnamed[numbers], -1, numbers) if len(numbers) else numbers
    out |= {
        "node_names": tuple(names),
        "form": "recorder",
        "recorded": int((facts["stackId"] > 0).sum()),
        "without_call": len(call) - len(known),
    }
    return CallStacks(**out)


def _recorder_stacks(file: SqliteFile, strings: Strings) -> tuple[Stacks, Any]:
    """The stack tree, and a function from stack ids of the file to its rows."""
    frame_rows = file.select("PYREC_FRAME", {"id": 0, "functionId": 0, "fileId": 0, "line": 0})
    frames = [
        Frame(strings[function], strings[path], line)
        for function, path, line in zip(
            frame_rows["functionId"].tolist(),
            frame_rows["fileId"].tolist(),
            frame_rows["line"].tolist(),
            strict=True,
        )
    ]
    frame_of_id = _rows_by_id(frame_rows["id"])
    nodes = file.select("PYREC_STACK", {"id": 0, "parentId": 0, "frameId": 0})
    row_of_id = _rows_by_id(nodes["id"], first=1)
    parent = _rooted(np.concatenate([[0], row_of_id(nodes["parentId"])]).astype(np.int32))
    # A frame the file does not explain stays a frame, without a name.
    frame = np.concatenate([[0], frame_of_id(nodes["frameId"], missing=len(frames))]).astype(np.int32)
    return Stacks(parent, frame, (*frames, Frame("", "", 0))), row_of_id


def _rooted(parent: I32) -> I32:
    """The same tree without circles: a damaged file must not send a reader around forever."""
    upwards = np.where(parent == 0, -1, parent).astype(np.int32)
    reaches_root: I32 = _analysis.nearest_marked(upwards, (parent == 0).astype(np.uint8))
    return np.where(reaches_root < 0, 0, parent).astype(np.int32)


def _rows_by_id(ids: I64, first: int = 0) -> Any:
    """A function from ids to row numbers (counted from `first`), `missing` for ids that have none."""
    order = np.argsort(ids, kind="stable")
    ordered = ids[order]

    def rows(wanted: I64, missing: int = 0) -> I32:
        if not len(ordered):
            return full(len(wanted), missing, np.int32)
        at = np.minimum(np.searchsorted(ordered, wanted), len(ordered) - 1)
        return np.where(ordered[at] == wanted, order[at] + first, missing).astype(np.int32)

    return rows


# The form of nsys


def _from_nsys(file: SqliteFile, strings: Strings, rows: CallRows, threads: Registry) -> CallStacks:
    builder = StackBuilder()
    row_stack = full(len(rows.start_ns), 0, np.int32)
    marks, texts = _backtrace_marks(file)
    without_payload = marks_without_payload(file, BACKTRACE_SCHEMA)
    form = ""
    without_call = 0
    if len(marks["start"]):
        form = "nsys"
        stack_of_text = np.array(
            [builder.add(_payload_frames(text, strings)) for text in texts], dtype=np.int32
        )
        row = _row_of_mark(rows, threads.number(marks["globalTid"]), marks["start"])
        without_call = int((row < 0).sum())
        row_stack[row[row >= 0]] = stack_of_text[marks["text"][row >= 0]]
    chains = _python_chains(file, strings, builder) if not form else {}
    if chains:
        form = "call chains"
        numbers, distinct = dense(rows.chain)
        row_stack = np.array([chains.get(i, 0) for i in distinct.tolist()], dtype=np.int32)[numbers]
    recorded = int((row_stack > 0).sum()) + without_call + without_payload
    engine_rows, node_of_row, node_names = _engine_chains(file, strings, rows)

    out = _empty(rows, builder.build())
    out["stack"] = _to_calls(rows, row_stack)
    out["in_engine"] = _to_calls(rows, engine_rows.astype(np.int32)) > 0
    out["node_name"] = _to_calls(rows, node_of_row + 1) - 1
    out |= {
        "node_names": node_names,
        "form": form,
        "recorded": recorded,
        "without_payload": without_payload,
        "without_call": without_call,
    }
    return CallStacks(**out)


def payload_sql(file: SqliteFile, table: str) -> tuple[str, str]:
    """The JSON payload of a mark `n` as an SQL expression, and the join it needs. An export may leave it
    out ('').
    """
    columns = file.columns(table)
    terms = ['n."jsonText"'] if "jsonText" in columns else []
    if "jsonTextId" not in columns or not file.columns("StringIds"):
        return f"COALESCE({', '.join([*terms, 'NULL'])}, '')", ""
    return f"COALESCE({', '.join([*terms, 's.value'])}, '')", "LEFT JOIN StringIds s ON s.id = n.jsonTextId"


def marks_without_payload(file: SqliteFile, schema: str) -> int:
    """Stacks that were recorded under this schema and exported without their frames."""
    table = file.newest("NVTX_EVENTS")
    if table is None or not {"domainId", "text"} <= set(file.columns(table)):
        return 0
    payload, join = payload_sql(file, table)
    query = (
        f'SELECT count(*) FROM "{table}" n {join}'
        f" WHERE n.eventType = {_MARK} AND {payload} = '' AND n.domainId IN"
        f" (SELECT domainId FROM \"{table}\" WHERE eventType = {_DOMAIN} AND text = '{schema}')"
    )
    return int(file.integers(query, 1)[0][0])


def _backtrace_marks(file: SqliteFile) -> tuple[dict[str, I64], list[str]]:
    """Start, thread and text number of every readable stack mark, and the texts."""
    table = file.newest("NVTX_EVENTS")
    names = ("start", "globalTid", "text")
    if table is None:
        return {name: np.empty(0, dtype=np.int64) for name in names}, []
    payload, join = payload_sql(file, table)
    columns, texts = file.coded_texts(
        f"SELECT CAST(n.start AS INTEGER), IFNULL(n.globalTid, 0), CAST({payload} AS BLOB)"
        f' FROM "{table}" n {join} WHERE n.eventType = {_MARK} AND {payload} LIKE \'{{"{BACKTRACE_SCHEMA}%\'',
        2,
    )
    return dict(zip(names, columns, strict=True)), texts


def _payload_frames(text: str, strings: Strings) -> tuple[Frame, ...]:
    try:
        frames = msgspec.json.decode(text.encode())[BACKTRACE_SCHEMA]["Frames"]
        return tuple(
            Frame(_text(frame["Function"], strings), _text(frame["File"], strings), int(frame["Line"]))
            for frame in frames
        )
    except (msgspec.DecodeError, KeyError, TypeError, ValueError):
        return ()


def _text(value: Any, strings: Strings) -> str:
    """nsys escapes its strings for HTML: `&lt;module&gt;`."""
    return html.unescape(strings[value] if isinstance(value, int) else str(value))


def _row_of_mark(rows: CallRows, thread: I32, start_ns: I64) -> I32:
    """The call row that a mark belongs to: the one that started with it on its thread, else the one around
    it.
    """
    row: I32 = _analysis.call_of(thread, start_ns, rows.thread, rows.start_ns, rows.start_ns)
    lost = np.flatnonzero(row < 0)
    if len(lost):
        _, around, _ = _analysis.contain(
            rows.start_ns, rows.end_ns, rows.thread, start_ns[lost], thread[lost], 1000
        )
        row[lost] = around
    return row


def _to_calls(rows: CallRows, value: I32) -> I32:
    """A value per row as a value per call: the row's own, else that of the extra row with its thread and
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


# Call chains as a source of last resort


def _python_chains(file: SqliteFile, strings: Strings, builder: StackBuilder) -> dict[int, int]:
    """Stacks by chain id, where a recorder wrote Python frames as call chains: symbol = function, module =
    file:line.
    """
    if not file.columns("CUDA_CALLCHAINS"):
        return {}
    modules = strings.ids_matching(r"^(?P<file>.+\.py)(:(?P<line>\d+))?$")
    if not modules:
        return {}
    listed = ", ".join(str(i) for i in modules)
    chain_id, symbol, module, address = file.integers(
        "SELECT CAST(id AS INTEGER), CAST(symbol AS INTEGER), CAST(module AS INTEGER), IFNULL(originalIP, 0)"
        f" FROM CUDA_CALLCHAINS WHERE module IN ({listed}) ORDER BY id, stackDepth",
        4,
    )
    frames: dict[int, list[Frame]] = {}
    for chain, function, path, line in zip(
        chain_id.tolist(), symbol.tolist(), module.tolist(), address.tolist(), strict=True
    ):
        match = modules[path]
        frames.setdefault(chain, []).append(
            Frame(html.unescape(strings[function]), html.unescape(match["file"]), int(match["line"] or line))
        )
    return {chain: builder.add(found) for chain, found in frames.items()}


def _engine_chains(
    file: SqliteFile, strings: Strings, rows: CallRows
) -> tuple[npt.NDArray[np.bool_], I32, tuple[str, ...]]:
    """Rows whose native chain passes through the autograd engine, and the class of the node it was in (-1
    unknown).
    """
    in_engine = np.zeros(len(rows.start_ns), dtype=bool)
    node = full(len(rows.start_ns), -1, np.int32)
    if not file.columns("CUDA_CALLCHAINS"):
        return in_engine, node, ()
    engine = strings.ids_matching(
        r"^torch::autograd::(python::Python)?Engine::(thread_main|evaluate_function)"
    )
    applied = strings.ids_matching(r"^torch::autograd::generated::(\w+)::apply\(")
    if not engine:
        return in_engine, node, ()
    names = tuple(sorted({match[1] for match in applied.values()}))
    listed = ", ".join(str(i) for i in (*engine, *applied))
    chain_id, symbol = file.integers(
        "SELECT CAST(id AS INTEGER), CAST(symbol AS INTEGER) FROM CUDA_CALLCHAINS"
        f" WHERE symbol IN ({listed})",
        2,
    )
    node_of_symbol = {i: names.index(match[1]) for i, match in applied.items()}
    is_engine = np.isin(symbol, list(engine))
    in_engine = np.isin(rows.chain, chain_id[is_engine])
    numbers = np.array([node_of_symbol.get(i, -1) for i in symbol.tolist()], dtype=np.int32)
    has_node = numbers >= 0
    row_of_chain = _rows_by_id(chain_id[has_node])
    found = row_of_chain(rows.chain, missing=-1)
    node = np.where(found >= 0, np.append(numbers[has_node], -1)[found], -1).astype(np.int32)
    return in_engine, node, names
