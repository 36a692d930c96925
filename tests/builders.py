# SPDX-License-Identifier: Apache-2.0
"""TraceBuilder: a synthetic trace with known truth in a few lines.

    builder = TraceBuilder()
    builder.launch("gemm", 1000, stack="train.py:8 main > model.py:5 Net.forward", peek=1)
    builder.launch("gemm_bwd", 2000, node=0, node_name="MmBackward0", thread=2)
    path = builder.write(tmp_path / "run.sqlite")

Times are nanoseconds; every launch advances the host's clock, every operation starts when the GPU is free.
`form="nsys"`
writes the stacks as nsys does (NVTX rows with a JSON payload) and no autograd facts.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

VM = 1 << 48
HOST_NS = 5_000  # from one API call to the next
CALL_NS = 3_000
FIRST_NS = 1_000_000

Stack = tuple[tuple[str, str, int], ...]  # (function, file, line), outermost first
Judge = Callable[[Any, "TraceBuilder"], Any]  # one rule applied to one trace (tests/rules)

_OPERATION = "start! end! deviceId! contextId! streamId! correlationId globalPid"

# The columns this builder writes, of those that an export has; `!` marks NOT NULL, `:text` a text.
SCHEMA = {
    "StringIds": "id! value:text!",
    "CUPTI_ACTIVITY_KIND_KERNEL": f"{_OPERATION} greenContextId demangledName! shortName! registersPerThread "
    "gridX gridY gridZ blockX blockY blockZ staticSharedMemory dynamicSharedMemory graphNodeId",
    "CUPTI_ACTIVITY_KIND_MEMCPY": f"{_OPERATION} bytes! copyKind! srcKind dstKind",
    "CUPTI_ACTIVITY_KIND_MEMSET": f"{_OPERATION} value! bytes! memKind",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": f"{_OPERATION} graphId!",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": f"{_OPERATION} deprecatedSyncType syncType! eventId!",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start! end! eventClass! globalTid correlationId nameId! returnValue! "
    "callchainId",
    "NVTX_EVENTS": "start! end eventType! text:text globalTid endGlobalTid textId domainId jsonTextId "
    "jsonText:text binaryData:blob",
    "NVTX_PAYLOAD_SCHEMA_ENTRIES": "domainId! schemaId! idx! flags type name:text offset",
    "CUDA_CALLCHAINS": "id! symbol! module! unresolved originalIP stackDepth!",
    "CUPTI_ACTIVITY_KIND_OVERHEAD": "start! end! globalTid correlationId nameId overheadType!",
    "PROFILER_OVERHEAD": "start! end! globalTid nameId! overheadType!",
    "OSRT_API": "start! end! eventClass globalTid correlationId nameId! returnValue nestingLevel callchainId",
    "CUDA_GPU_MEMORY_USAGE_EVENTS": "start! globalPid deviceId! bytes! memKind! memoryOperationType!",
    "ThreadNames": "nameId! priority globalTid",
    "PROCESSES": "globalPid pid name:text",
    "TARGET_INFO_CUDA_STREAM": "streamId! hwId! vmId! processId! contextId! priority! flag!",
    "TARGET_INFO_GPU": "vmId! id! name:text memoryBandwidth smCount totalMemory computeMajor computeMinor "
    "maxWarpsPerSm maxBlocksPerSm maxRegistersPerSm maxShmemPerSm",
    "TARGET_INFO_SYSTEM_ENV": "globalVid devStateName:text! name:text! nameEnum! value:text!",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs utcTime:text localTime:text",
    "ANALYSIS_DETAILS": "globalVid! duration! startTime! stopTime!",
    "DIAGNOSTIC_EVENT": "timestamp! timestampType! source! severity! text:text! globalPid",
    "META_DATA_CAPTURE": "name:text! value:text",
    "META_DATA_EXPORT": "name:text! value:text",
    "PYREC_FRAME": "id functionId fileId line firstLine",
    "PYREC_STACK": "id parentId frameId depth",
    "PYREC_GRAPH_NODE": "globalPid graphNodeId correlationId",
    "PYREC_LAUNCH": "globalTid correlationId stackId peekSeq nodeSeq nodeFwdThread selfThread nodeNameId "
    "ownNs",
    "PYREC_META": "name:text value:text",
    "PYREC_PROCESS": "globalPid name:text value:text",
    "PYREC_HOST_EVENT": "start! end! globalTid nameId stackId",
    "PYREC_WINDOW": "start! end firstStep",
    "PYREC_SOURCE": "fileId line text:text",
    "PYREC_MEMORY_EVENT": "start! globalPid deviceId action! address bytes stackId",
    "PYREC_MEMORY_SEGMENT": "globalPid deviceId address bytes isExpandable",
    "PYREC_MEMORY_BLOCK": "globalPid deviceId address bytes requestedBytes isAllocated",
    "PYREC_MEMORY_DEVICE": "globalPid deviceId mostEvents allocatedPeak reservedPeak allocated reserved "
    "totalMemory settings:text",
    "PYREC_MEMORY_SAMPLE": "start! globalPid setId",
    "PYREC_MEMORY_TENSOR": "globalPid setId address kind",
    "PYREC_ENERGY": "start! spread globalPid deviceId energyMj powerMw instantPowerMw smClockMhz clockLimits "
    "powerLimitMw memoryClockMhz temperatureC",
    "PYREC_COUNTERS": "start! end! globalPid deviceId dramReadBytes dramWrittenBytes smActivePpm issuedPpm "
    "tensorPpm pcieReadBytes pcieWrittenBytes nvlinkReceivedBytes nvlinkSentBytes",
    "PYREC_WORK": "start! end! globalTid nameId flops readBytes writtenBytes kindId mathId shapesId",
}


def create_table(table: str) -> str:
    """`CREATE TABLE` for one of SCHEMA, with the types of an export."""
    columns = []
    for column in SCHEMA[table].split():
        name, _, kind = column.rstrip("!").partition(":")
        columns.append(f"{name} {kind.upper() or 'INTEGER'}{' NOT NULL' if column.endswith('!') else ''}")
    return f"CREATE TABLE {table} ({', '.join(columns)})"


def parse_stack(text: str) -> Stack:
    """`train.py:8 main > model.py:5 Net.forward`, outermost first."""
    frames = []
    for part in filter(None, (p.strip() for p in text.split(" > "))):
        where, function = part.split(" ", 1)
        file, line = where.rsplit(":", 1)
        frames.append((function, file, int(line)))
    return tuple(frames)


@dataclass
class TraceBuilder:
    """Collects the rows of one trace; `write` makes the file."""

    form: str = "recorder"
    pid: int = 100
    now_ns: int = FIRST_NS
    gpu_free_ns: dict[tuple[int, int], int] = field(default_factory=dict)
    rows: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    _strings: dict[str, int] = field(default_factory=dict)
    _frames: dict[tuple[str, str, int], int] = field(default_factory=dict)
    _nodes: dict[tuple[int, int], int] = field(default_factory=dict)
    _correlation: int = 0

    def string(self, text: str) -> int:
        return self._strings.setdefault(text, len(self._strings) + 1)

    def row(self, table: str, **values: Any) -> TraceBuilder:
        """Any row of any table, for what the other methods do not say."""
        self.rows.setdefault(table, []).append(values)
        return self

    def gap(self, ns: int) -> TraceBuilder:
        """Time passes on the host."""
        self.now_ns += ns
        return self

    def tid(self, thread: int, pid: int | None = None) -> int:
        """The global id of a thread; thread 1 is the main thread."""
        pid = self.pid if pid is None else pid
        return VM | pid << 24 | (pid + thread - 1)

    def launch(
        self,
        kernel: str,
        gpu_ns: int,
        *,
        short_name: str | None = None,
        blocks: int | None = None,
        **how: Any,
    ) -> TraceBuilder:
        """A kernel and the call that launched it; `how` as for `operation`."""
        names = {
            "demangledName": self.string(kernel),
            "shortName": self.string(short_name or kernel.split("<")[0]),
        }
        if blocks is not None:
            shape = ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ")
            names |= dict(zip(shape, (blocks, 1, 1, 128, 1, 1), strict=True))
        return self.operation(
            "CUPTI_ACTIVITY_KIND_KERNEL", gpu_ns, names, **{"api": "cudaLaunchKernel_v7000"} | how
        )

    def copy(
        self,
        kind: str,
        gpu_ns: int,
        *,
        size_bytes: int = 1 << 20,
        source: int | None = None,
        target: int | None = None,
        **how: Any,
    ) -> TraceBuilder:
        """A copy: kind is HtoD, DtoH or DtoD; source and target are kinds of memory (MemoryKind)."""
        details = {"copyKind": {"HtoD": 1, "DtoH": 2, "DtoD": 8}[kind], "bytes": size_bytes}
        details |= {"srcKind": source, "dstKind": target}
        return self.operation(
            "CUPTI_ACTIVITY_KIND_MEMCPY", gpu_ns, details, **{"api": "cudaMemcpyAsync_v3020"} | how
        )

    def memset(self, gpu_ns: int, *, memory: int | None = None, **how: Any) -> TraceBuilder:
        """A memset; memory is its kind (MemoryKind)."""
        details = {"value": 0, "bytes": 4, "memKind": memory}
        return self.operation(
            "CUPTI_ACTIVITY_KIND_MEMSET", gpu_ns, details, **{"api": "cudaMemsetAsync_v3020"} | how
        )

    def operation(
        self,
        table: str,
        gpu_ns: int,
        details: dict[str, Any],
        *,
        api: str,
        stack: str | Stack = (),
        thread: int = 1,
        pid: int | None = None,
        device: int = 0,
        stream: int = 7,
        start_ns: int | None = None,
        recorded: bool = True,
        correlation: int | None = None,
        **autograd: Any,
    ) -> TraceBuilder:
        """A GPU operation and its call. `recorded=False` leaves the call out; `autograd`: see `call`."""
        if correlation is None:
            self._correlation += 1
            correlation = self._correlation
        pid = self.pid if pid is None else pid
        earliest = max(self.now_ns + CALL_NS, self.gpu_free_ns.get((device, stream), 0))
        start_ns = earliest if start_ns is None else start_ns
        if recorded:
            self.call(api, stack=stack, thread=thread, pid=pid, correlation=correlation, **autograd)
        else:
            self.now_ns += HOST_NS
        self.gpu_free_ns[device, stream] = start_ns + gpu_ns
        shared = {
            "start": start_ns,
            "end": start_ns + gpu_ns,
            "deviceId": device,
            "contextId": 1,
            "streamId": stream,
            "correlationId": correlation,
            "globalPid": VM | pid << 24,
        }
        return self.row(table, **shared, **details)

    def call(
        self,
        api: str,
        *,
        stack: str | Stack = (),
        thread: int = 1,
        pid: int | None = None,
        correlation: int | None = None,
        call_ns: int = CALL_NS,
        peek: int | None = None,
        node: int | None = None,
        node_thread: int = 1,
        node_name: str | None = None,
        logical_thread: int | None = None,
        own_ns: int | None = None,
    ) -> TraceBuilder:
        """An API call. peek: the autograd counter; node, node_thread, node_name: the node being evaluated;
        own_ns: what the recorder took of it.
        """
        if correlation is None:
            self._correlation += 1
            correlation = self._correlation
        tid = self.tid(thread, pid)
        start_ns, self.now_ns = self.now_ns, self.now_ns + HOST_NS
        call = {"end": start_ns + call_ns, "globalTid": tid, "correlationId": correlation}
        self.row(
            "CUPTI_ACTIVITY_KIND_RUNTIME",
            start=start_ns,
            **call,
            eventClass=0,
            nameId=self.string(api),
            returnValue=0,
        )
        frames = parse_stack(stack) if isinstance(stack, str) else stack
        if self.form == "recorder":
            self.row(
                "PYREC_LAUNCH",
                globalTid=tid,
                correlationId=correlation,
                stackId=self._stack_id(frames),
                peekSeq=peek,
                nodeSeq=node,
                nodeFwdThread=None if node is None else node_thread,
                selfThread=(logical_thread or thread) if peek is not None or node is not None else None,
                nodeNameId=self.string(node_name) if node_name else None,
                ownNs=own_ns,
            )
        elif frames:
            # nsys hangs the stack on an extra row, a moment wider than the call.
            chained = {
                "start": start_ns - 100,
                "eventClass": 67,
                "nameId": self.string(api.split("_v")[0]),
                "returnValue": 0,
                "callchainId": None,
            }
            self.row("CUPTI_ACTIVITY_KIND_RUNTIME", **call | chained)
            self.backtrace(start_ns - 100, tid, frames)
        return self

    def backtrace(
        self,
        start_ns: int,
        tid: int,
        frames: Stack,
        *,
        by_id: bool = False,
        schema: str = "Python Backtrace on CUDA",
    ) -> TraceBuilder:
        """The NVTX row in which nsys keeps a Python stack. `by_id`: the payload lies in the string table."""
        listed = [
            {"Function": self.string(_escaped(function)), "File": self.string(_escaped(file)), "Line": line}
            for function, file, line in reversed(frames)
        ]
        payload = {
            "Thread state ID": 1,
            "Thread state": "Running",
            "Frames count": len(listed),
            "Frames": listed,
        }
        text = json.dumps({schema: payload}, separators=(",", ":"))
        kept = {"jsonTextId": self.string(text)} if by_id else {"jsonText": text}
        return self.row("NVTX_EVENTS", start=start_ns, eventType=34, globalTid=tid, domainId=1, **kept)

    def range(
        self, text: str, start_ns: int, end_ns: int | None, *, thread: int = 1, **more: Any
    ) -> TraceBuilder:
        """A push/pop range."""
        values = {"eventType": 59, "text": text, "globalTid": self.tid(thread), "domainId": 0} | more
        return self.row("NVTX_EVENTS", start=start_ns, end=end_ns, **values)

    def sample(self, time_ns: int, stack: str, *, thread: int = 1) -> TraceBuilder:
        """Where a sample found a thread; `stack` as for `launch`, outermost first."""
        return self.backtrace(
            time_ns, self.tid(thread), parse_stack(stack), schema="Python Periodic Sampling"
        )

    def host_event(self, text: str, start_ns: int, end_ns: int, stack: str = "") -> TraceBuilder:
        """A pause that Python or torch told of: a garbage collection, a compilation."""
        return self.row(
            "PYREC_HOST_EVENT",
            start=start_ns,
            end=end_ns,
            globalTid=self.tid(1),
            nameId=self.string(text),
            stackId=self._stack_id(parse_stack(stack)),
        )

    def operator(
        self,
        name: str,
        *gpu_ns: int,
        flops: int | None = None,
        read: int = 0,
        written: int = 0,
        kind: str = "elementwise",
        math: str = "",
        **how: Any,
    ) -> TraceBuilder:
        """An operator whose work was counted, with a kernel of each of these times; `how` as for `launch`."""
        start_ns = self.now_ns - 100
        for i, ns in enumerate(gpu_ns):
            self.launch(f"{name.split('::')[-1]}_kernel{i}", ns, **how)
        texts = {"nameId": name, "kindId": kind, "mathId": math, "shapesId": "[8, 8]"}
        return self.row(
            "PYREC_WORK",
            start=start_ns,
            end=self.now_ns - 1000,
            globalTid=self.tid(how.get("thread", 1)),
            flops=flops,
            readBytes=read,
            writtenBytes=written,
            **{column: self.string(text) for column, text in texts.items()},
        )

    def source(self, file: str, line: int, text: str) -> TraceBuilder:
        """The text of a line of code."""
        return self.row("PYREC_SOURCE", fileId=self.string(file), line=line, text=text)

    def _stack_id(self, frames: Stack) -> int:
        node = 0
        for frame in frames:
            number = self._frames.setdefault(frame, len(self._frames) + 1)
            node = self._nodes.setdefault((node, number), len(self._nodes) + 1)
        return node

    def write(self, path: Path) -> Path:
        """Write the file and give its path. Only tables with rows exist, as in an export."""
        for (function, file, line), number in self._frames.items():
            self.row(
                "PYREC_FRAME",
                id=number,
                functionId=self.string(function),
                fileId=self.string(file),
                line=line,
            )
        for (parent, frame), number in self._nodes.items():
            self.row("PYREC_STACK", id=number, parentId=parent, frameId=frame)
        if self.form == "recorder":
            self.row("PYREC_META", name="recorder_version", value="test")
        self.row("META_DATA_EXPORT", name="EXPORT_SCHEMA_VERSION", value="3.25.0")
        self.rows["StringIds"] = [{"id": number, "value": text} for text, number in self._strings.items()]
        with sqlite3.connect(path) as file:
            # The file need not survive a power cut: waiting for the disk took most of the time of many tests.
            file.executescript("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF")
            for table, rows in self.rows.items():
                file.execute(create_table(table))
                for row in rows:
                    names = ", ".join(row)
                    file.execute(
                        f"INSERT INTO {table} ({names}) VALUES ({', '.join('?' * len(row))})", [*row.values()]
                    )
        file.close()
        return path


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
