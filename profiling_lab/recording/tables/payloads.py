# SPDX-License-Identifier: Apache-2.0
"""NVTX payloads, and the schema tables that describe their layout to readers of nsys exports."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from profiling_lab.recording.spool import Spool
from profiling_lab.recording.tables.arrow_columns import numbers, of_list
from profiling_lab.recording.tables.schema import NSYS_TABLES, column_names

_STATIC, _DYNAMIC = 1, 2  # types of a schema; 0 is an enumeration
_UINT32, _UINT64, _INT32, _REGISTERED_STRING = 16, 18, 15, 80  # types of an entry
_ARRAY_OF_LENGTH_IN_ENTRY = 48
_THREAD_STATES = ("Running", "Blocking Wait", "Uninterruptible")

Rows = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class StackForm:
    """A domain whose marks contain Python stacks, in nsys' form."""

    name: str
    domain: int


def build(spool: Spool, stacks: list[StackForm]) -> dict[str, Any]:
    """Arrow tables of all payload schemas: those of our stacks, and those the program registered with
    NVTX.
    """
    schemas, entries, enums, enum_entries = _registered(spool)
    for number, form in enumerate(stacks):
        schema, frame, state = ((1 << 32) + 8 * number + i for i in range(3))
        schemas += [
            {"domainId": form.domain, "schemaId": schema, "name": form.name, "type": _DYNAMIC,
             "numEntries": 4},
            {"domainId": form.domain, "schemaId": frame, "type": _STATIC, "numEntries": 3, "payloadSize": 24},
        ]  # fmt: skip
        entries += [
            _entry(form.domain, schema, 0, _UINT64, "Thread state ID", None),
            _entry(form.domain, schema, 1, state, "Thread state", 8),
            _entry(form.domain, schema, 2, _UINT32, "Frames count", 12),
            _entry(form.domain, schema, 3, frame, "Frames", 16) | {
                "flags": _ARRAY_OF_LENGTH_IN_ENTRY, "arrayOrUnionDetail": 2},
            _entry(form.domain, frame, 0, _REGISTERED_STRING, "Function", None),
            _entry(form.domain, frame, 1, _REGISTERED_STRING, "File", 8),
            _entry(form.domain, frame, 2, _INT32, "Line", 16),
        ]  # fmt: skip
        enums.append(
            {"domainId": form.domain, "schemaId": state, "numEntries": len(_THREAD_STATES), "size": 4}
        )
        enum_entries += [
            {"domainId": form.domain, "schemaId": state, "idx": i, "name": name, "value": i + 1}
            for i, name in enumerate(_THREAD_STATES)
        ]
    return {
        name: _table(name, rows)
        for name, rows in (
            ("NVTX_PAYLOAD_SCHEMAS", schemas),
            ("NVTX_PAYLOAD_SCHEMA_ENTRIES", entries),
            ("NVTX_PAYLOAD_ENUMS", enums),
            ("NVTX_PAYLOAD_ENUM_ENTRIES", enum_entries),
        )
        if rows
    }


def _entry(domain: int, schema: int, index: int, kind: int, name: str, offset: int | None) -> dict[str, Any]:
    return {"domainId": domain, "schemaId": schema, "idx": index, "type": kind, "name": name,
            "offset": offset}  # fmt: skip


def _registered(spool: Spool) -> tuple[Rows, Rows, Rows, Rows]:
    """Rows of the schemas registered by the program. As in nsys' exports, 0 is NULL."""

    def text(number: int) -> str | None:
        return spool.strings[number] if number < len(spool.strings) else None

    schemas: Rows = []
    enums: Rows = []
    is_enum = set()
    for s in spool.records["schemas"]:
        where = {"domainId": int(s["domain"]), "schemaId": int(s["id"])}
        facts = {"name": text(s["name"]), "numEntries": int(s["entries"])}
        if s["type"] == 0:
            is_enum.add(tuple(where.values()))
            enums.append(where | facts | {"size": int(s["bytes"])})
        else:
            more = {"type": "type", "flags": "flags", "payloadSize": "bytes", "alignTo": "alignment"}
            schemas.append(where | facts | {name: int(s[field]) or None for name, field in more.items()})
    entries: Rows = []
    enum_entries: Rows = []
    for e in spool.records["schema_entries"]:
        where = {"domainId": int(e["domain"]), "schemaId": int(e["schema"])}
        facts = {"idx": int(e["index"]), "name": text(e["name"])}
        if tuple(where.values()) in is_enum:
            value = int(e["kind"].astype(np.int64))  # SQLite's integers are signed
            enum_entries.append(where | facts | {"value": value, "isFlag": int(e["flags"]) or None})
        else:
            facts |= {"type": int(e["kind"]), "description": text(e["description"])}
            more = {"flags": "flags", "arrayOrUnionDetail": "detail", "offset": "offset"}
            entries.append(where | facts | {name: int(e[field]) or None for name, field in more.items()})
    return schemas, entries, enums, enum_entries


def _table(name: str, rows: Rows) -> Any:
    import pyarrow as pa

    text = {c.split()[0] for c in NSYS_TABLES[name].split(",") if c.split()[1] == "TEXT"}
    types = {c: pa.string() if c in text else pa.int64() for c in column_names(name)}
    return pa.table({c: of_list([row.get(c) for row in rows], kind) for c, kind in types.items()})


def blobs(spool: Spool, data: npt.NDArray[Any]) -> Any:
    """The payloads of ranges, stored in hexadecimal in the capture; NULL if there is none."""
    import pyarrow as pa

    distinct, inverse = np.unique(data, return_inverse=True)
    texts = [spool.strings[i] if i < len(spool.strings) else None for i in distinct.tolist()]
    return of_list(list(map(_bytes, texts)), pa.binary()).take(numbers(inverse.reshape(-1)))


def _bytes(hexadecimal: str | None) -> bytes | None:
    """The decoded bytes. None if the text was lost (empty) or is not hexadecimal."""
    with contextlib.suppress(ValueError):
        return bytes.fromhex(hexadecimal) if hexadecimal else None
    return None
