# SPDX-License-Identifier: Apache-2.0
"""The JSON file of rocprofv3 (`--output-format json`), also inside of gzip.

It is decoded into typed records: fields that no analysis needs are skipped, and a file with other types is
refused with the place of the first one.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from profiling_lab.errors import UnreadableInputError
from profiling_lab.trace.columns import I64
from profiling_lab.trace.facts import whole_number
from profiling_lab.trace.rocprof import ROOT
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

_GZIP = b"\x1f\x8b"


class _Handle(msgspec.Struct):
    handle: int = 0


class _Ids(msgspec.Struct):
    internal: int = -1
    ancestor: int = -1


class _Extent(msgspec.Struct):
    x: int = 1
    y: int = 1
    z: int = 1


class _Event(msgspec.Struct):
    """What all records have."""

    start_timestamp: int
    end_timestamp: int
    kind: int = 0
    operation: int = 0
    thread_id: int = 0
    correlation_id: _Ids = msgspec.field(default_factory=_Ids)
    stream_id: _Handle = msgspec.field(default_factory=_Handle)


class _Dispatched(msgspec.Struct):
    agent_id: _Handle
    queue_id: _Handle
    kernel_id: int
    group_segment_size: int = 0
    workgroup_size: _Extent = msgspec.field(default_factory=_Extent)
    grid_size: _Extent = msgspec.field(default_factory=_Extent)


class _Dispatch(_Event, kw_only=True):
    dispatch_info: _Dispatched


class _Copy(_Event, kw_only=True):
    src_agent_id: _Handle
    dst_agent_id: _Handle
    bytes: int = 0


class _Allocation(_Event, kw_only=True):
    agent_id: _Handle = msgspec.field(default_factory=_Handle)
    address: Any = None
    allocation_size: int = 0


class _Buffers(msgspec.Struct):
    kernel_dispatch: list[_Dispatch] = []
    memory_copy: list[_Copy] = []
    memory_allocation: list[_Allocation] = []
    hip_api: list[_Event] = []
    hsa_api: list[_Event] = []
    marker_api: list[_Event] = []
    rccl_api: list[_Event] = []


class _Kind(msgspec.Struct):
    kind: str = ""
    operations: list[str] = []


class _Message(msgspec.Struct):
    key: int
    value: str


class _Strings(msgspec.Struct):
    buffer_records: list[_Kind] = []
    marker_api: list[_Message] = []


class _Symbol(msgspec.Struct):
    kernel_id: int = 0
    kernel_name: str = ""
    formatted_kernel_name: str = ""
    arch_vgpr_count: int = 0
    accum_vgpr_count: int = 0

    @property
    def registers(self) -> int:
        return self.arch_vgpr_count + self.accum_vgpr_count

    @property
    def name(self) -> str:
        return self.formatted_kernel_name or self.kernel_name.removesuffix(".kd")


class _ListedAgent(Agent):
    id: _Handle = msgspec.field(default_factory=_Handle)


class _Metadata(msgspec.Struct):
    pid: int = 0
    init_time: int = 0
    fini_time: int = 0
    command: list[str] = []


class _Process(msgspec.Struct):
    buffer_records: _Buffers
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)
    agents: list[_ListedAgent] = []
    strings: _Strings = msgspec.field(default_factory=_Strings)
    kernel_symbols: list[_Symbol] = []


class _File(msgspec.Struct, rename={"processes": ROOT}):
    processes: list[_Process]


def read_json(path: Path) -> Records:
    """All records. Raises UnreadableInputError if the file is cut off, or is not such a file."""
    try:
        data = path.read_bytes()
        file_bytes = len(data)
        if data.startswith(_GZIP):
            data = gzip.decompress(data)
        processes = msgspec.json.decode(data, type=_File).processes
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UnreadableInputError(
            f"{path} is truncated or damaged, it cannot be decompressed: {error}"
        ) from None
    except msgspec.ValidationError as error:
        raise UnreadableInputError(f"{path} is not JSON as rocprofv3 writes it: {error}") from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise UnreadableInputError(f"{path} is truncated or damaged JSON of rocprofv3: {error}") from None
    texts = Texts()
    known = [(_process_id(one), one) for one in processes]
    return Records(
        schema="JSON",
        file_bytes=file_bytes,
        processes=tuple(_facts(one.metadata) for one in processes),
        agents={(process, agent.id.handle): agent for process, one in known for agent in one.agents},
        kernels=joined((_kernels(one, process, texts) for process, one in known), KERNELS),
        copies=joined((_copies(one, process, texts) for process, one in known), COPIES),
        regions=joined((_regions(one, process, texts) for process, one in known), REGIONS),
        allocations=joined((_allocations(one, process) for process, one in known), ALLOCATIONS),
        texts=tuple(texts.numbers),
    )


def _process_id(one: _Process) -> int:
    return global_process(0, one.metadata.pid)


def _facts(noted: _Metadata) -> Process:
    return Process(noted.pid, " ".join(noted.command), noted.init_time, noted.fini_time)


def _table(rows: Sequence[Any], columns: Mapping[str, str | Callable[[Any], int]]) -> Table:
    """Columns of records, each a field such as `queue_id.handle` or what a function says."""
    known = {name: attrgetter(of) if isinstance(of, str) else of for name, of in columns.items()}
    return {name: _column([value(row) for row in rows]) for name, value in known.items()}


def _column(values: list[int]) -> I64:
    try:
        return np.array(values, dtype=np.int64)
    except OverflowError:  # handles are unsigned
        return np.array([value & (1 << 64) - 1 for value in values], dtype=np.uint64).astype(np.int64)


def _timed(rows: Sequence[Any], process: int) -> Table:
    out = _table(
        rows,
        {
            "start": "start_timestamp",
            "end": "end_timestamp",
            "thread": "thread_id",
            "correlation": "correlation_id.internal",
            "ancestor": "correlation_id.ancestor",
            "stream": "stream_id.handle",
        },
    )
    out["process"] = np.full(len(rows), process, dtype=np.int64)
    return out | {"thread": global_thread(out["process"], out["thread"])}


def _kernels(one: _Process, process: int, texts: Texts) -> Table:
    symbols = {symbol.kernel_id: symbol for symbol in one.kernel_symbols}
    nothing = _Symbol()
    rows = one.buffer_records.kernel_dispatch
    launched = [row.dispatch_info for row in rows]
    kernels = [symbols.get(info.kernel_id, nothing) for info in launched]
    out = _timed(rows, process) | _table(
        launched,
        {
            "agent": "agent_id.handle",
            "queue": "queue_id.handle",
            "shared_bytes": "group_segment_size",
            **{f"block_{axis}": f"workgroup_size.{axis}" for axis in "xyz"},
            **{f"grid_{axis}": f"grid_size.{axis}" for axis in "xyz"},
        },
    )
    return out | _table(kernels, {"name": lambda symbol: texts(symbol.name), "registers": "registers"})


def _copies(one: _Process, process: int, texts: Texts) -> Table:
    rows = one.buffer_records.memory_copy
    out = _timed(rows, process) | _table(
        rows,
        {
            "source": "src_agent_id.handle",
            "target": "dst_agent_id.handle",
            "size_bytes": "bytes",
            "name": lambda copy: texts(_operation(one.strings, copy)),
        },
    )
    return out | {"queue": np.zeros(len(rows), dtype=np.int64)}


def _regions(one: _Process, process: int, texts: Texts) -> Table:
    buffers = one.buffer_records
    rows = [*buffers.hip_api, *buffers.hsa_api, *buffers.marker_api, *buffers.rccl_api]
    messages = {message.key: message.value for message in one.strings.marker_api}
    markers = range(
        len(buffers.hip_api) + len(buffers.hsa_api), len(rows) - len(buffers.rccl_api)
    )  # only they have messages
    out = _timed(rows, process) | _table(
        rows,
        {
            "kind": lambda event: texts(_operation(one.strings, event)),
            "category": lambda event: texts(_category(one.strings, event)),
        },
    )
    out["name"] = out["kind"].copy()
    for i in markers:
        if message := messages.get(rows[i].correlation_id.internal):
            out["name"][i] = texts(message)
    return out


def _allocations(one: _Process, process: int) -> Table:
    kinds = ("ALLOCATE", "FREE")
    named = [(row, _operation(one.strings, row)) for row in one.buffer_records.memory_allocation]
    rows = [(row, name) for row, name in named if name.endswith(kinds)]
    out = _table(
        rows,
        {
            "time": lambda row: row[0].start_timestamp,
            "agent": lambda row: row[0].agent_id.handle,
            "address": lambda row: _address(row[0].address),
            "size_bytes": lambda row: row[0].allocation_size,
            "is_free": lambda row: row[1].endswith("FREE"),
        },
    )
    return out | {"process": np.full(len(rows), process, dtype=np.int64)}


def _operation(strings: _Strings, event: _Event) -> str:
    known = strings.buffer_records
    operations = known[event.kind].operations if 0 <= event.kind < len(known) else []
    return operations[event.operation] if 0 <= event.operation < len(operations) else "unknown"


def _category(strings: _Strings, event: _Event) -> str:
    known = strings.buffer_records
    return known[event.kind].kind if 0 <= event.kind < len(known) else ""


def _address(value: Any) -> int:
    """A number, hexadecimal text, or an object with either, depending on the version."""
    if isinstance(value, dict):
        value = value.get("handle", value.get("value"))
    if isinstance(value, str) and value.startswith("0x"):
        try:
            return int(value, 16) & (1 << 62) - 1
        except ValueError:
            return -1
    return whole_number(value)
