# SPDX-License-Identifier: Apache-2.0
"""The rocpd database, SQLite: rocprofv3's default from ROCm 7.0 on, also written by rocprof-sys.

Each process has its own tables, which end with its id: `rocpd_region_0000450_565d_...`; the views without it
join them all. Schema: share/rocprofiler-sdk-rocpd/rocpd_tables.sql of the ROCm systems repository.
"""

from __future__ import annotations

import msgspec
import numpy as np

from profiling_lab.errors import UnreadableInputError
from profiling_lab.trace.columns import I64
from profiling_lab.trace.nsys.sqlite_file import PART, SqliteFile
from profiling_lab.trace.rocprof import METADATA
from profiling_lab.trace.rocprof.records import (
    ALLOCATIONS,
    COPIES,
    KERNELS,
    REGIONS,
    Agent,
    Process,
    Records,
    Table,
    Texts,
    global_process,
    global_thread,
    joined,
)

SCHEMA = "3"
_SYMBOLS = "rocpd_info_kernel_symbol"
_NEEDED = ("rocpd_string", "rocpd_kernel_dispatch", "rocpd_info_process", _SYMBOLS)
_UNKNOWN = -1
_NO_TIME = int(np.iinfo(np.int64).min)
_MESSAGE = "CASE WHEN json_valid(e.extdata) THEN json_extract(e.extdata, '$.message') END"
_SCRATCH = "SCRATCH"


def read_rocpd(file: SqliteFile) -> Records:
    """All records. Raises UnreadableInputError if it has another schema or lacks a table."""
    parts = _parts(file)
    schemas = {file_part.schema() for file_part in parts}
    if schemas - {SCHEMA}:
        found = ", ".join(sorted(schema or "none" for schema in schemas))
        raise UnreadableInputError(
            f"{file.path} is a rocpd database of schema version {found}; expected version {SCHEMA}"
        )
    nodes = {node: i for i, node in enumerate(dict.fromkeys(n for p in parts for n in p.nodes()))}
    texts = Texts()
    for part in parts:
        part.prepare(nodes, texts)
    return Records(
        schema=f"rocpd {SCHEMA}",
        file_bytes=file.size_bytes,
        processes=tuple(process for part in parts for process in part.processes),
        agents={key: agent for part in parts for key, agent in part.agents().items()},
        kernels=joined((part.kernels() for part in parts), KERNELS),
        copies=joined((part.copies() for part in parts), COPIES),
        regions=joined((part.regions(texts) for part in parts), REGIONS),
        allocations=joined((part.allocations() for part in parts), ALLOCATIONS),
        texts=tuple(texts.numbers),
    )


def _parts(file: SqliteFile) -> list[_Part]:
    ends = [table.removeprefix(METADATA) for table in file.tables if table.startswith(METADATA)]
    return [_Part(file, end) for end in ([end for end in ends if end] or [""])]


class _Part:
    """The tables of one process, which have the same end of the name."""

    def __init__(self, file: SqliteFile, end: str) -> None:
        self._file = file
        self._end = end
        self.processes: list[Process] = []
        self._process_of: dict[int, int] = {}
        self._thread_of: dict[int, int] = {}
        self._text_of: dict[int, int] = {}
        self._name_of: dict[int, int] = {}

    def schema(self) -> str:
        """The version. Raises UnreadableInputError if a table is missing."""
        if self._columns("rocpd_op"):
            raise UnreadableInputError(
                f"{self._file.path} is a database of rocmProfileData, which is not read; expected one of "
                "rocprofv3"
            )
        if missing := [stem for stem in _NEEDED if not self._file.columns(stem + self._end)]:
            raise UnreadableInputError(
                f"{self._file.path} is an incomplete rocpd database: it has no table {missing[0]}{self._end}"
            )
        rows = self._file.texts(
            f"SELECT CAST(value AS BLOB) FROM \"{METADATA}{self._end}\" WHERE tag = 'schema_version'"
        )
        return rows[0][0].split(".")[0] if rows else ""

    def nodes(self) -> list[int]:
        return [int(node) for node in self._select("rocpd_info_process", {"nid": 0})["nid"]]

    def prepare(self, nodes: dict[int, int], texts: Texts) -> None:
        """Read the tables that others refer to."""
        wanted = {"id": _UNKNOWN, "nid": 0, "pid": 0, "init": 0, "fini": 0}
        rows = self._select("rocpd_info_process", wanted)
        commands = self._texts("SELECT CAST(IFNULL(command, '') AS BLOB) FROM", "rocpd_info_process")
        for row, command in zip(zip(*rows.values(), strict=True), commands, strict=True):
            key, node, pid, init, fini = map(int, row)
            self._process_of[key] = global_process(nodes.get(node, 0), pid)
            self.processes.append(Process(pid, command, init, fini))
        threads = self._select("rocpd_info_thread", {"id": _UNKNOWN, "tid": 0})
        self._thread_of = dict(zip(threads["id"].tolist(), threads["tid"].tolist(), strict=True))
        ids, strings = self._coded("id", "string", "rocpd_string")
        self._text_of = {i: texts(text) for i, text in zip(ids, strings, strict=True)}
        ids, names = self._coded("id", "COALESCE(NULLIF(display_name, ''), kernel_name, '')", _SYMBOLS)
        self._name_of = {i: texts(name.removesuffix(".kd")) for i, name in zip(ids, names, strict=True)}

    def agents(self) -> dict[tuple[int, int], Agent]:
        rows = self._select(
            "rocpd_info_agent", {"id": _UNKNOWN, "pid": _UNKNOWN, "type_index": 0, "absolute_index": 0}
        )
        out = {}
        wanted = "CAST(IFNULL(type, '') AS BLOB), CAST(IFNULL(name, '') AS BLOB),"
        wanted += " CAST(IFNULL(product_name, '') AS BLOB), CAST(IFNULL(extdata, '') AS BLOB)"
        table = f"rocpd_info_agent{self._end}"
        described = self._file.texts(f'SELECT {wanted} FROM "{table}"') if len(rows["id"]) else []
        ids = zip(rows["id"].tolist(), rows["pid"].tolist(), rows["type_index"].tolist(), strict=True)
        for (key, pid, index), (kind, name, product, details) in zip(ids, described, strict=True):
            agent = _agent(details)
            agent.type = {"CPU": 1, "GPU": 2}.get(kind, 0)
            agent.name, agent.product_name, agent.logical_node_type_id = name, product, index
            out[self._process_of.get(pid, 0), key] = agent
        return out

    def kernels(self) -> Table:
        columns = {
            "agent": "agent_id",
            "queue": "queue_id",
            "stream": "stream_id",
            "name": "kernel_id",
            "shared_bytes": "group_segment_size",
            **{f"block_{axis}": f"workgroup_size_{axis}" for axis in "xyz"},
            **{f"grid_{axis}": f"grid_size_{axis}" for axis in "xyz"},
        }
        table = self._timed("rocpd_kernel_dispatch", columns)
        kernel = table["name"]
        symbols = self._select(_SYMBOLS, {"id": _UNKNOWN, "arch_vgpr_count": 0, "accum_vgpr_count": 0})
        registers = symbols["arch_vgpr_count"] + symbols["accum_vgpr_count"]
        by_kernel = dict(zip(symbols["id"].tolist(), registers.tolist(), strict=True))
        return table | {"name": _mapped(kernel, self._name_of), "registers": _mapped(kernel, by_kernel)}

    def copies(self) -> Table:
        columns = {
            "source": "src_agent_id",
            "target": "dst_agent_id",
            "queue": "queue_id",
            "stream": "stream_id",
            "name": "name_id",
            "size_bytes": "size",
        }
        table = self._timed("rocpd_memory_copy", columns)
        return table | {"name": _mapped(table["name"], self._text_of)}

    def regions(self, texts: Texts) -> Table:
        """API calls and ranges. The name of a range is the message of its event, if it has one."""
        table = self._timed("rocpd_region", {"name": "name_id"})
        kind = _mapped(table["name"], self._text_of)
        out = table | {"name": kind, "kind": kind, "category": _mapped(table["category"], self._text_of)}
        known = tuple(texts.numbers)
        of_markers = [i for i, number in self._text_of.items() if "MARKER" in known[number].upper()]
        if len(kind) and of_markers and "extdata" in self._columns("rocpd_event"):
            among = f"e.category_id IN ({', '.join(map(str, of_markers))})"
            query = (
                f"SELECT IFNULL(r.id, 0), CAST(IFNULL({_MESSAGE}, '') AS BLOB)"
                f' FROM "rocpd_region{self._end}" r JOIN "rocpd_event{self._end}" e ON e.id = r.event_id'
                f" WHERE {among}"
            )
            columns, messages = self._file.coded_texts(query, 1)
            message = np.array([texts(text) if text else -1 for text in messages], dtype=np.int64)
            at = dict(zip(columns[0].tolist(), message[columns[1]].tolist(), strict=True))
            told = _mapped(out["id"], at)
            out["name"] = np.where(told >= 0, told, out["name"])
        return {name: out[name] for name in REGIONS}

    def allocations(self) -> Table:
        columns = {"time": "start", "agent": "agent_id", "address": "address", "size_bytes": "size"}
        stem = "rocpd_memory_allocate"
        table = stem + self._end
        if not {"start", "type", "level", *columns.values()} <= set(self._columns(stem)):
            return {name: np.empty(0, dtype=np.int64) for name in ALLOCATIONS}
        taken = [f"IFNULL(CAST({column} AS INTEGER), {_UNKNOWN})" for column in ("pid", *columns.values())]
        taken.append("type = 'FREE'")
        where = f"type IN ('ALLOC', 'FREE') AND level <> '{_SCRATCH}' AND {PART}"
        found = self._file.integers(
            f'SELECT {", ".join(taken)} FROM "{table}" WHERE {where}', len(taken), self._file.parts(table)
        )
        out = dict(zip(("process", *columns, "is_free"), found, strict=True))
        return out | {"process": _mapped(out["process"], self._process_of)}

    def _timed(self, stem: str, columns: dict[str, str]) -> Table:
        """Columns of a table, with the correlation ids of its events. `columns`: the file's name by ours."""
        if not {"start", "end", "pid", "event_id"} <= set(self._columns(stem)):
            names = ("id", "start", "end", "process", "thread", "correlation", "ancestor", "category")
            return {name: np.empty(0, dtype=np.int64) for name in (*names, *columns)}
        wanted = {"id": "id", "start": "start", "end": "end", "process": "pid", "thread": "tid"} | columns
        have = self._columns(stem)
        taken = [self._term("t", column, have) for column in wanted.values()]
        events = {"correlation": "stack_id", "ancestor": "parent_stack_id", "category": "category_id"}
        known = self._columns("rocpd_event")
        taken += [self._term("e", column, known) for column in events.values()]
        table, event = stem + self._end, f"rocpd_event{self._end}"
        join = f'LEFT JOIN "{event}" e ON e.id = t.event_id' if known else ""
        query = f'SELECT {", ".join(taken)} FROM "{table}" t {join} WHERE {PART}'
        found = self._file.integers(query, len(taken), self._file.parts(table, "t"))
        out = dict(zip((*wanted, *events), found, strict=True))
        process = _mapped(out["process"], self._process_of)
        thread = global_thread(process, _mapped(out["thread"], self._thread_of, out["thread"]))
        return out | {"process": process, "thread": thread}

    def _term(self, alias: str, column: str, have: tuple[str, ...]) -> str:
        if column not in have:
            return str(_UNKNOWN)
        missing = _NO_TIME if column in ("start", "end") else _UNKNOWN
        return f'IFNULL(CAST({alias}."{column}" AS INTEGER), {missing})'

    def _columns(self, stem: str) -> tuple[str, ...]:
        return self._file.columns(stem + self._end)

    def _select(self, stem: str, wanted: dict[str, int]) -> Table:
        if not self._columns(stem):
            return {name: np.empty(0, dtype=np.int64) for name in wanted}
        return self._file.select(stem + self._end, {**wanted})

    def _texts(self, query: str, stem: str) -> list[str]:
        return [text for (text,) in self._file.texts(f'{query} "{stem}{self._end}"')]

    def _coded(self, key: str, text: str, stem: str) -> tuple[list[int], list[str]]:
        query = f"SELECT CAST({key} AS INTEGER), CAST(IFNULL({text}, '') AS BLOB)"
        columns, texts = self._file.coded_texts(f'{query} FROM "{stem}{self._end}"', 1)
        return columns[0].tolist(), [texts[i] for i in columns[1].tolist()]


def _agent(details: str) -> Agent:
    """The properties of an agent, which the database stores as JSON."""
    try:
        return msgspec.json.decode(details, type=Agent, strict=False)
    except msgspec.MsgspecError:
        return Agent()


def _mapped(values: I64, numbers: dict[int, int], missing: I64 | int = _UNKNOWN) -> I64:
    """The number of each value; `missing` for values without one."""
    distinct, row = np.unique(values, return_inverse=True)
    found = np.array([numbers.get(value, _NO_TIME) for value in distinct.tolist()] or [0], dtype=np.int64)
    mapped = found[row] if len(values) else np.empty(0, dtype=np.int64)
    return np.where(mapped == _NO_TIME, missing, mapped)
