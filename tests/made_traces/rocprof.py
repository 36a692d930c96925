# SPDX-License-Identifier: Apache-2.0
"""A made recording of rocprofv3, written as rocpd database and as JSON, to the documented schemas."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

UUID = "00000450_565d_765d_bc41_19a2073d19ee"
GPU, CPU = 2, 0
KINDS = {
    "NONE": (),
    "HIP_RUNTIME_API": (
        "hipLaunchKernel",
        "hipMemcpyAsync",
        "hipMemcpy",
        "hipDeviceSynchronize",
        "hipMalloc",
    ),
    "HSA_CORE_API": ("hsa_queue_load", "hsa_signal_store_screlease"),
    "MARKER_CORE_RANGE_API": ("roctxMarkA", "roctxThreadRangeA", "roctxProcessRangeA"),
    "RCCL_API": ("ncclAllReduce",),
    "MEMORY_COPY": (
        "MEMORY_COPY_NONE",
        "MEMORY_COPY_HOST_TO_HOST",
        "MEMORY_COPY_HOST_TO_DEVICE",
        "MEMORY_COPY_DEVICE_TO_HOST",
        "MEMORY_COPY_DEVICE_TO_DEVICE",
    ),
    "KERNEL_DISPATCH": ("KERNEL_DISPATCH_NONE", "KERNEL_DISPATCH_ENQUEUE", "KERNEL_DISPATCH_COMPLETE"),
    "MEMORY_ALLOCATION": ("MEMORY_ALLOCATION_NONE", "MEMORY_ALLOCATION_ALLOCATE", "MEMORY_ALLOCATION_FREE"),
}
_LISTED = {
    "hip_api": "HIP_RUNTIME_API",
    "hsa_api": "HSA_CORE_API",
    "marker_api": "MARKER_CORE_RANGE_API",
    "rccl_api": "RCCL_API",
}
_TABLES = {
    "metadata": "tag value",
    "string": "string",
    "info_node": "hash machine_id hostname",
    "info_process": "nid ppid pid init fini start end command environment extdata",
    "info_thread": "nid ppid pid tid name",
    "info_agent": "nid pid type absolute_index logical_index type_index name product_name extdata",
    "info_kernel_symbol": "nid pid code_object_id kernel_name display_name group_segment_size sgpr_count "
    "arch_vgpr_count accum_vgpr_count extdata",
    "event": "category_id stack_id parent_stack_id correlation_id call_stack line_info extdata",
    "region": "nid pid tid start end name_id event_id extdata",
    "sample": "track_id timestamp event_id",
    "kernel_dispatch": "nid pid tid agent_id kernel_id dispatch_id queue_id stream_id start end "
    "private_segment_size group_segment_size workgroup_size_x workgroup_size_y workgroup_size_z "
    "grid_size_x grid_size_y grid_size_z region_name_id event_id extdata",
    "memory_copy": "nid pid tid start end name_id dst_agent_id dst_address src_agent_id src_address size "
    "queue_id stream_id region_name_id event_id extdata",
    "memory_allocate": "nid pid tid agent_id type level start end address size queue_id stream_id event_id",
}
AGENTS = (
    {"id": 0, "type": 1, "name": "EPYC", "product_name": "EPYC", "cu_count": 64, "logical_node_type_id": 0},
    {"id": 2, "type": 2, "name": "gfx942", "product_name": "AMD Instinct MI300X", "cu_count": 304},
    {"id": 3, "type": 2, "name": "gfx942", "product_name": "AMD Instinct MI300X", "cu_count": 304},
)


@dataclass
class RocprofRun:
    """Events in the order in which they happened; correlation ids count the calls."""

    pid: int = 4321
    uuid: str = UUID
    regions: list[dict[str, Any]] = field(default_factory=list)
    kernels: list[dict[str, Any]] = field(default_factory=list)
    copies: list[dict[str, Any]] = field(default_factory=list)
    allocations: list[dict[str, Any]] = field(default_factory=list)
    schema: str = "3"

    def region(
        self, kind: str, name: str, start: int, end: int, message: str = "", ancestor: int = 0, tid: int = 0
    ) -> int:
        """The correlation id."""
        row = {"kind": kind, "name": name, "start": start, "end": end, "message": message}
        self.regions.append(row | {"ancestor": ancestor, "tid": tid or self.pid, "id": len(self.regions) + 1})
        return len(self.regions)

    def call(self, name: str, start: int, end: int, **more: Any) -> int:
        return self.region("HIP_RUNTIME_API", name, start, end, **more)

    def range(self, message: str, start: int, end: int, name: str = "roctxThreadRangeA") -> None:
        self.region("MARKER_CORE_RANGE_API", name, start, end, message)

    def kernel(self, name: str, start: int, end: int, correlation: int, **more: Any) -> None:
        row = {"name": name, "start": start, "end": end, "correlation": correlation, "agent": GPU, "queue": 7}
        row |= {"stream": 3, "grid": (4096, 2, 1), "block": (256, 1, 1), "lds": 1024, "tid": self.pid}
        self.kernels.append(row | more)

    def copy(self, name: str, start: int, end: int, correlation: int, size: int, **more: Any) -> None:
        row = {
            "name": name,
            "start": start,
            "end": end,
            "correlation": correlation,
            "size": size,
            "stream": 3,
        }
        row |= {"source": CPU if "HOST_TO" in name else GPU, "tid": self.pid}
        self.copies.append(row | {"target": CPU if "TO_HOST" in name else GPU} | more)

    def allocation(self, time: int, address: int, size: int = 0, agent: int = GPU) -> None:
        """Without a size it is a free."""
        self.allocations.append({"time": time, "address": address, "size": size, "agent": agent})

    def symbols(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(dict.fromkeys(k["name"] for k in self.kernels), 1)}

    def write_rocpd(self, path: Path) -> None:
        """Into a new database, or into one with another process in it."""
        with sqlite3.connect(path) as file:
            for stem, columns in _TABLES.items():
                listed = "".join(f', "{column}"' for column in columns.split())
                file.execute(f'CREATE TABLE "rocpd_{stem}_{self.uuid}" (id INTEGER PRIMARY KEY{listed})')
                others = [
                    name
                    for (name,) in file.execute(
                        "SELECT name FROM sqlite_master WHERE type='table' AND name GLOB ?",
                        (f"rocpd_{stem}_0*",),
                    )
                ]
                file.execute(f'DROP VIEW IF EXISTS "rocpd_{stem}"')
                every = " UNION ALL ".join(f'SELECT * FROM "{name}"' for name in others)
                file.execute(f'CREATE VIEW "rocpd_{stem}" AS {every}')
            self._fill(file)
        file.close()

    def _fill(self, file: sqlite3.Connection) -> None:
        def insert(stem: str, **values: Any) -> int:
            columns = ", ".join(f'"{name}"' for name in values)
            marks = ", ".join("?" * len(values))
            query = f'INSERT INTO "rocpd_{stem}_{self.uuid}" ({columns}) VALUES ({marks})'
            return int(file.execute(query, tuple(values.values())).lastrowid or 0)

        texts: dict[str, int] = {}

        def text(value: str) -> int:
            if value not in texts:
                texts[value] = insert("string", string=value)
            return texts[value]

        def event(category: str, correlation: int, ancestor: int, extdata: str = "{}") -> int:
            ids = {"stack_id": correlation, "parent_stack_id": ancestor, "correlation_id": 0}
            return insert("event", category_id=text(category), extdata=extdata, **ids)

        insert("metadata", tag="schema_version", value=self.schema)
        insert("info_node", id=77, hash=77, machine_id="made", hostname="made")
        times = {"init": 1_000, "fini": 90_000_000}
        insert("info_process", id=self.pid, nid=77, pid=self.pid, command="python train.py", **times)
        tids = {row["tid"] for row in (*self.regions, *self.kernels, *self.copies)}
        for tid in sorted(tids):
            insert("info_thread", id=tid, nid=77, pid=self.pid, tid=tid)
        for i, agent in enumerate(AGENTS):
            insert(
                "info_agent",
                id=agent["id"],
                nid=77,
                pid=self.pid,
                type=("CPU", "GPU")[agent["type"] - 1],
                absolute_index=agent["id"],
                type_index=max(i - 1, 0),
                name=agent["name"],
                product_name=agent["product_name"],
                extdata=json.dumps(_described(i)),
            )
        symbols = self.symbols()
        for name, i in symbols.items():
            known = {"kernel_name": f"_Z{name}.kd", "display_name": name, "code_object_id": 1}
            insert(
                "info_kernel_symbol",
                id=i,
                nid=77,
                pid=self.pid,
                **known,
                arch_vgpr_count=40,
                accum_vgpr_count=8,
            )
        for row in self.regions:
            extdata = json.dumps({"message": row["message"]}) if row["message"] else "{}"
            happened = event(row["kind"], row["id"], row["ancestor"], extdata)
            if row["end"] == row["start"]:
                insert("sample", track_id=1, timestamp=row["start"], event_id=happened)
                continue
            insert(
                "region",
                id=row["id"],
                nid=77,
                pid=self.pid,
                tid=row["tid"],
                start=row["start"],
                end=row["end"],
                name_id=text(row["name"]),
                event_id=happened,
            )
        for i, row in enumerate(self.kernels, 1):
            sizes = {f"workgroup_size_{a}": n for a, n in zip("xyz", row["block"], strict=True)}
            sizes |= {f"grid_size_{a}": n for a, n in zip("xyz", row["grid"], strict=True)}
            insert(
                "kernel_dispatch",
                id=i,
                nid=77,
                pid=self.pid,
                tid=row["tid"],
                agent_id=row["agent"],
                kernel_id=symbols[row["name"]],
                dispatch_id=i,
                queue_id=row["queue"],
                stream_id=row["stream"],
                start=row["start"],
                end=row["end"],
                group_segment_size=row["lds"],
                event_id=event("KERNEL_DISPATCH", row["correlation"], row["correlation"]),
                **sizes,
            )
        for row in self.copies:
            insert(
                "memory_copy",
                nid=77,
                pid=self.pid,
                tid=row["tid"],
                start=row["start"],
                end=row["end"],
                name_id=text(row["name"]),
                dst_agent_id=row["target"],
                src_agent_id=row["source"],
                size=row["size"],
                stream_id=row["stream"],
                event_id=event("MEMORY_COPY", row["correlation"], row["correlation"]),
            )
        for row in self.allocations:
            kind = "ALLOC" if row["size"] else "FREE"
            place = {"address": row["address"], "size": row["size"], "start": row["time"], "end": row["time"]}
            agent = row["agent"] if row["size"] else None
            insert("memory_allocate", nid=77, pid=self.pid, type=kind, level="REAL", agent_id=agent, **place)

    def write_json(self, path: Path) -> None:
        path.write_text(json.dumps({"rocprofiler-sdk-tool": [self.as_json()]}, indent=0))

    def as_json(self) -> dict[str, Any]:
        listed, symbols = list(KINDS), self.symbols()

        def record(kind: str, name: str, row: dict[str, Any], **more: Any) -> dict[str, Any]:
            ids = {"internal": row.get("correlation", row.get("id", 0)), "external": 0}
            if "ancestor" in row:
                ids["ancestor"] = row["ancestor"]
            return {
                "size": 96,
                "kind": listed.index(kind),
                "operation": KINDS[kind].index(name),
                "thread_id": row.get("tid", self.pid),
                "correlation_id": ids,
                "start_timestamp": row.get("start", row.get("time")),
                "end_timestamp": row.get("end", row.get("time")),
                "stream_id": {"handle": row.get("stream", 0)},
                **more,
            }

        regions: dict[str, list[Any]] = {
            name: [record(kind, row["name"], row) for row in self.regions if row["kind"] == kind]
            for name, kind in _LISTED.items()
        }
        dispatches = [
            record(
                "KERNEL_DISPATCH",
                "KERNEL_DISPATCH_COMPLETE",
                row,
                dispatch_info={
                    "agent_id": {"handle": 100 + row["agent"]},
                    "queue_id": {"handle": row["queue"]},
                    "kernel_id": symbols[row["name"]],
                    "group_segment_size": row["lds"],
                    "workgroup_size": dict(zip("xyz", row["block"], strict=True)),
                    "grid_size": dict(zip("xyz", row["grid"], strict=True)),
                },
            )
            for row in self.kernels
        ]
        copies = [
            record(
                "MEMORY_COPY",
                row["name"],
                row,
                bytes=row["size"],
                src_agent_id={"handle": 100 + row["source"]},
                dst_agent_id={"handle": 100 + row["target"]},
            )
            for row in self.copies
        ]
        allocations = [
            record(
                "MEMORY_ALLOCATION",
                f"MEMORY_ALLOCATION_{'ALLOCATE' if row['size'] else 'FREE'}",
                row,
                agent_id={"handle": 100 + row["agent"] if row["size"] else 0},
                address={"handle": row["address"]},
                allocation_size=row["size"],
            )
            for row in self.allocations
        ]
        messages = [{"key": row["id"], "value": row["message"]} for row in self.regions if row["message"]]
        return {
            "metadata": {"pid": self.pid, "init_time": 1_000, "fini_time": 90_000_000, "command": ["python"]},
            "agents": [{"id": {"handle": 100 + AGENTS[i]["id"]}} | _described(i) for i in range(len(AGENTS))],
            "counters": [],
            "strings": {
                "buffer_records": [{"kind": kind, "operations": [*names]} for kind, names in KINDS.items()],
                "marker_api": messages,
            },
            "kernel_symbols": [
                {"kernel_id": i, "kernel_name": f"_Z{name}.kd", "formatted_kernel_name": name}
                | {"arch_vgpr_count": 40, "accum_vgpr_count": 8}
                for name, i in symbols.items()
            ],
            "buffer_records": {
                "kernel_dispatch": dispatches,
                "memory_copy": copies,
                "memory_allocation": allocations,
                **regions,
            },
        }


def _described(i: int) -> dict[str, Any]:
    """An agent as JSON has it."""
    agent = {**AGENTS[i], "mem_banks": [{"size_in_bytes": 192 << 30}], "logical_node_type_id": max(i - 1, 0)}
    del agent["id"]
    return agent


def training(steps: int = 6) -> RocprofRun:
    """Steps in ROCTx ranges: a copy from the host, kernels on two GPUs, an all-reduce, a wait."""
    run = RocprofRun()
    run.allocation(1_500, 0x7F00, 64 << 20)
    run.allocation(1_600, 0x8F00, 32 << 20, agent=3)
    for step in range(steps):
        t = 10_000 + step * 1_000_000
        run.range(f"train step {step}", t, t + 900_000)
        copy = run.call("hipMemcpyAsync", t + 1_000, t + 9_000)
        run.copy("MEMORY_COPY_HOST_TO_DEVICE", t + 12_000, t + 40_000 + step, copy, 1 << 20)
        for i in range(4):
            at = t + 50_000 + 60_000 * i
            launch = run.call("hipLaunchKernel", at, at + 5_000)
            name = "Cijk_Ailk_Bljk_SB_MT128x64" if i % 2 else "void relu_kernel<float>(float*, int)"
            run.kernel(name, at + 10_000, at + 45_000 + 7 * i, launch)
        outer = run.call("hipLaunchKernel", t + 400_000, t + 410_000)
        inner = run.region("HSA_CORE_API", "hsa_queue_load", t + 401_000, t + 402_000, ancestor=outer)
        run.kernel("ncclDevKernel_AllReduce", t + 420_000, t + 520_000, inner, stream=5, agent=3)
        run.region("RCCL_API", "ncclAllReduce", t + 399_000, t + 411_000)
        back = run.call("hipMemcpyAsync", t + 530_000, t + 535_000)
        run.copy("MEMORY_COPY_DEVICE_TO_HOST", t + 540_000, t + 541_000, back, 4)
        run.call("hipDeviceSynchronize", t + 600_000, t + 800_000)
        run.region("MARKER_CORE_RANGE_API", "roctxMarkA", t + 850_000, t + 850_000, "mark")
    run.allocation(80_000_000, 0x7F00)
    return run
