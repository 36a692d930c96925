# SPDX-License-Identifier: Apache-2.0
"""The tables of a recording: Nsight Systems' SQLite schema 3.25, and our own PYREC_* tables.

Names, order, types and NOT NULL are those of nsys, so that tools for its exports can read our files; a test
compares them with real exports. Such tools ignore the PYREC_* tables.
"""

from __future__ import annotations

import json
from importlib.resources import files

NSYS_SCHEMA_VERSION = "3.25.0"

NSYS_TABLES: dict[str, str] = {
    "StringIds": """
        id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL""",
    "CUPTI_ACTIVITY_KIND_KERNEL": """
        start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL,
        greenContextId INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER,
        demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL, mangledName INTEGER, launchType INTEGER,
        cacheConfig INTEGER, registersPerThread INTEGER NOT NULL, gridX INTEGER NOT NULL, gridY INTEGER NOT
        NULL, gridZ INTEGER NOT NULL, blockX INTEGER NOT NULL, blockY INTEGER NOT NULL, blockZ INTEGER NOT
        NULL, staticSharedMemory INTEGER NOT NULL, dynamicSharedMemory INTEGER NOT NULL,
        localMemoryPerThread INTEGER NOT NULL, localMemoryTotal INTEGER NOT NULL, gridId INTEGER NOT NULL,
        sharedMemoryExecuted INTEGER, graphNodeId INTEGER, sharedMemoryLimitConfig INTEGER,
        qmdBulkReleaseDone INTEGER, qmdPreexitDone INTEGER, qmdLastCtaDone INTEGER, graphId INTEGER,
        clusterX INTEGER, clusterY INTEGER, clusterZ INTEGER, clusterSchedulingPolicy INTEGER,
        maxPotentialClusterSize INTEGER, maxActiveClusters INTEGER, sharedMemoryRequestedPercentage INTEGER,
        tensorSizeMinusOneElements TEXT NOT NULL""",
    "CUPTI_ACTIVITY_KIND_MEMCPY": """
        start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL,
        greenContextId INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, bytes
        INTEGER NOT NULL, copyKind INTEGER NOT NULL, deprecatedSrcId INTEGER, srcKind INTEGER, dstKind
        INTEGER, srcDeviceId INTEGER, srcContextId INTEGER, dstDeviceId INTEGER, dstContextId INTEGER,
        migrationCause INTEGER, graphNodeId INTEGER, virtualAddress INTEGER, copyCount INTEGER""",
    "CUPTI_ACTIVITY_KIND_MEMSET": """
        start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL,
        greenContextId INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, value
        INTEGER NOT NULL, bytes INTEGER NOT NULL, graphNodeId INTEGER, memKind INTEGER""",
    "CUPTI_ACTIVITY_KIND_RUNTIME": """
        start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL, globalTid INTEGER,
        correlationId INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL, callchainId INTEGER""",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": """
        start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL,
        greenContextId INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER,
        deprecatedSyncType INTEGER, syncType INTEGER NOT NULL, eventId INTEGER NOT NULL,
        eventSyncId INTEGER""",
    "CUPTI_ACTIVITY_KIND_OVERHEAD": """
        start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL, globalTid INTEGER,
        correlationId INTEGER, nameId INTEGER, overheadType INTEGER NOT NULL""",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": """
        start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL,
        greenContextId INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, graphId
        INTEGER NOT NULL, graphExecId INTEGER NOT NULL""",
    "NVTX_EVENTS": """
        start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, rangeId INTEGER, category INTEGER,
        color INTEGER, text TEXT, globalTid INTEGER, endGlobalTid INTEGER, textId INTEGER, domainId INTEGER,
        uint64Value INTEGER, int64Value INTEGER, doubleValue REAL, uint32Value INTEGER, int32Value INTEGER,
        floatValue REAL, jsonTextId INTEGER, jsonText TEXT, binaryData TEXT""",
    "NVTX_PAYLOAD_SCHEMAS": """
        domainId INTEGER, schemaId INTEGER, name TEXT, type INTEGER, flags INTEGER, numEntries INTEGER,
        payloadSize INTEGER, alignTo INTEGER""",
    "NVTX_PAYLOAD_SCHEMA_ENTRIES": """
        domainId INTEGER NOT NULL, schemaId INTEGER NOT NULL, idx INTEGER NOT NULL, flags INTEGER, type
        INTEGER, name TEXT, description TEXT, arrayOrUnionDetail INTEGER, offset INTEGER""",
    "NVTX_PAYLOAD_ENUMS": """
        domainId INTEGER, schemaId INTEGER, name TEXT, numEntries INTEGER, size INTEGER""",
    "NVTX_PAYLOAD_ENUM_ENTRIES": """
        domainId INTEGER NOT NULL, schemaId INTEGER NOT NULL, idx INTEGER NOT NULL, name TEXT, value
        INTEGER, isFlag INTEGER""",
    "ThreadNames": """
        nameId INTEGER NOT NULL, priority INTEGER, globalTid INTEGER""",
    "PROCESSES": """
        globalPid INTEGER, pid INTEGER, name TEXT""",
    "TARGET_INFO_GPU": """
        vmId INTEGER NOT NULL, id INTEGER NOT NULL, name TEXT, busLocation TEXT, isDiscrete INTEGER,
        l2CacheSize INTEGER, totalMemory INTEGER, memoryBandwidth INTEGER, clockRate INTEGER, smCount
        INTEGER, pwGpuId INTEGER, uuid TEXT, luid INTEGER, chipName TEXT, cuDevice INTEGER, ctxswDevPath
        TEXT, ctrlDevPath TEXT, revision INTEGER, nodeMask INTEGER, constantMemory INTEGER, maxIPC INTEGER,
        maxRegistersPerBlock INTEGER, maxShmemPerBlock INTEGER, maxShmemPerBlockOptin INTEGER, maxShmemPerSm
        INTEGER, maxRegistersPerSm INTEGER, threadsPerWarp INTEGER, asyncEngines INTEGER, maxWarpsPerSm
        INTEGER, maxBlocksPerSm INTEGER, maxThreadsPerBlock INTEGER, maxBlockDimX INTEGER, maxBlockDimY
        INTEGER, maxBlockDimZ INTEGER, maxGridDimX INTEGER, maxGridDimY INTEGER, maxGridDimZ INTEGER,
        computeMajor INTEGER, computeMinor INTEGER, smMajor INTEGER, smMinor INTEGER""",
    "TARGET_INFO_CUDA_DEVICE": """
        gpuId INTEGER, cudaId INTEGER NOT NULL, pid INTEGER NOT NULL, uuid TEXT,
        numMultiprocessors INTEGER""",
    "TARGET_INFO_CUDA_CONTEXT_INFO": """
        nullStreamId INTEGER NOT NULL, hwId INTEGER NOT NULL, vmId INTEGER NOT NULL, processId INTEGER NOT
        NULL, deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL, parentContextId INTEGER, isGreenContext
        INTEGER, numMultiprocessors INTEGER""",
    "TARGET_INFO_CUDA_STREAM": """
        streamId INTEGER NOT NULL, hwId INTEGER NOT NULL, vmId INTEGER NOT NULL, processId INTEGER NOT NULL,
        contextId INTEGER NOT NULL, priority INTEGER NOT NULL, flag INTEGER NOT NULL""",
    "TARGET_INFO_SESSION_START_TIME": """
        utcEpochNs INTEGER, utcTime TEXT, localTime TEXT, systemClockNs INTEGER""",
    "TARGET_INFO_SYSTEM_ENV": """
        globalVid INTEGER, devStateName TEXT NOT NULL, name TEXT NOT NULL, nameEnum INTEGER NOT NULL, value
        TEXT NOT NULL""",
    "ANALYSIS_DETAILS": """
        globalVid INTEGER NOT NULL, duration INTEGER NOT NULL, startTime INTEGER NOT NULL, stopTime INTEGER
        NOT NULL""",
    "DIAGNOSTIC_EVENT": """
        timestamp INTEGER NOT NULL, timestampType INTEGER NOT NULL, source INTEGER NOT NULL, severity
        INTEGER NOT NULL, text TEXT NOT NULL, globalPid INTEGER""",
    "META_DATA_CAPTURE": """
        name TEXT NOT NULL, value TEXT""",
    "META_DATA_EXPORT": """
        name TEXT NOT NULL, value TEXT""",
}

PYREC_TABLES: dict[str, str] = {
    "PYREC_FRAME": """
        id INTEGER PRIMARY KEY, functionId INTEGER, fileId INTEGER, line INTEGER, firstLine INTEGER""",
    # A trie: a stack is the node of its innermost frame, parentId is the caller's node, 0 the root's parent.
    "PYREC_STACK": """
        id INTEGER PRIMARY KEY, parentId INTEGER, frameId INTEGER, depth INTEGER""",
    # One row per recorded CUDA call. NULL: unknown; nodeSeq -1: an autograd node without a number; ownNs: the
    # recorder's own time, from the begin of the call on.
    "PYREC_LAUNCH": """
        globalTid INTEGER, correlationId INTEGER, stackId INTEGER, peekSeq INTEGER, nodeSeq INTEGER,
        nodeFwdThread INTEGER, selfThread INTEGER, nodeNameId INTEGER, ownNs INTEGER""",
    # If graphs were recorded node by node: the call that captured the node, or the node's original.
    "PYREC_GRAPH_NODE": """
        globalPid INTEGER, graphNodeId INTEGER, correlationId INTEGER""",
    "PYREC_META": """
        name TEXT, value TEXT""",
    # Only in recordings with pauses: the recorded windows. end NULL: never closed; firstStep NULL: no steps;
    # globalPid NULL: the only process.
    "PYREC_WINDOW": """
        start INTEGER NOT NULL, end INTEGER, firstStep INTEGER, globalPid INTEGER""",
    # Events reported by the host itself: garbage collections, compilations by torch.compile.
    "PYREC_HOST_EVENT": """
        start INTEGER NOT NULL, end INTEGER NOT NULL, globalTid INTEGER, nameId INTEGER, stackId INTEGER""",
    # Only in merged recordings: the PYREC_META of each process.
    "PYREC_PROCESS": """
        globalPid INTEGER, name TEXT, value TEXT""",
    # Of the lines in PYREC_FRAME the text, where it is known.
    "PYREC_SOURCE": """
        fileId INTEGER, line INTEGER, text TEXT""",
    # Only with `record --memory`: what torch's caching allocator did. action: trace.memory_history.Action.
    # address: of OOM the free memory of the device.
    "PYREC_MEMORY_EVENT": """
        start INTEGER NOT NULL, globalPid INTEGER, deviceId INTEGER, action INTEGER NOT NULL, address INTEGER,
        bytes INTEGER, stackId INTEGER""",
    # What it held at the end, and its blocks in use.
    "PYREC_MEMORY_SEGMENT": """
        globalPid INTEGER, deviceId INTEGER, address INTEGER, bytes INTEGER, isExpandable INTEGER""",
    "PYREC_MEMORY_BLOCK": """
        globalPid INTEGER, deviceId INTEGER, address INTEGER, bytes INTEGER, requestedBytes INTEGER,
        isAllocated INTEGER""",
    # torch.cuda.memory_stats at the end. mostEvents: older events were dropped; NULL: not known.
    "PYREC_MEMORY_DEVICE": """
        globalPid INTEGER, deviceId INTEGER, mostEvents INTEGER, allocatedPeak INTEGER, reservedPeak INTEGER,
        allocated INTEGER, reserved INTEGER, totalMemory INTEGER, settings TEXT""",
    # When the recorder looked at tensors, and what it saw. kind: trace.memory_history.TensorKind.
    "PYREC_MEMORY_SAMPLE": """
        start INTEGER NOT NULL, globalPid INTEGER, setId INTEGER""",
    "PYREC_MEMORY_TENSOR": """
        globalPid INTEGER, setId INTEGER, address INTEGER, kind INTEGER""",
    # Only with --work: per operator call of one step what it must do. flops NULL: not counted; kindId: the
    # kind of operator, mathId: the dtype of the FLOPs ('' none), shapesId: of its inputs, as texts.
    "PYREC_WORK": """
        start INTEGER NOT NULL, end INTEGER NOT NULL, globalTid INTEGER, nameId INTEGER, flops INTEGER,
        readBytes INTEGER, writtenBytes INTEGER, kindId INTEGER, mathId INTEGER, shapesId INTEGER""",
    # Only with --energy: a row per change of a GPU's energy counter. deviceId: as in the kernel table; start:
    # when it changed, spread nanoseconds earlier or later at most; energyMj: since the driver was loaded;
    # powerMw: NVML's average, instantPowerMw: at the moment of reading; clockLimits: NVML's bit mask of clock
    # event reasons. NULL: this GPU or driver does not say it.
    "PYREC_ENERGY": """
        start INTEGER NOT NULL, spread INTEGER, globalPid INTEGER, deviceId INTEGER, energyMj INTEGER, powerMw
        INTEGER, instantPowerMw INTEGER, smClockMhz INTEGER, clockLimits INTEGER, powerLimitMw INTEGER,
        memoryClockMhz INTEGER, temperatureC INTEGER""",
    # Hardware counters, a row per sample: bytes, and millionths of what the units could do in its time.
    "PYREC_COUNTERS": """
        start INTEGER NOT NULL, end INTEGER NOT NULL, globalPid INTEGER, deviceId INTEGER, dramReadBytes
        INTEGER, dramWrittenBytes INTEGER, smActivePpm INTEGER, issuedPpm INTEGER, tensorPpm INTEGER,
        pcieReadBytes INTEGER, pcieWrittenBytes INTEGER, nvlinkReceivedBytes INTEGER, nvlinkSentBytes
        INTEGER""",
    # Names given through NVTX: of streams, events, contexts, devices and other resources.
    # type and identifier are NVTX's: 0x50001 is a cudaStream_t, whose handle is the identifier.
    "PYREC_RESOURCE": """
        globalPid INTEGER, domainId INTEGER, type INTEGER, identifier INTEGER, nameId INTEGER""",
}

# These are in every file; the others only if they have rows, as in nsys' exports.
ALWAYS_WRITTEN = (
    "StringIds",
    "META_DATA_CAPTURE",
    "META_DATA_EXPORT",
    "TARGET_INFO_SESSION_START_TIME",
    "ANALYSIS_DETAILS",
    "PROCESSES",
    "PYREC_FRAME",
    "PYREC_STACK",
    "PYREC_LAUNCH",
    "PYREC_META",
)


def create_table(name: str) -> str:
    """The CREATE TABLE statement of one table."""
    columns = NSYS_TABLES.get(name) or PYREC_TABLES.get(name) or _ENUM_COLUMNS
    return f"CREATE TABLE {name} ({' '.join(columns.split())})"


def column_names(name: str) -> tuple[str, ...]:
    """The columns of one table, in order."""
    columns = NSYS_TABLES.get(name) or PYREC_TABLES.get(name) or _ENUM_COLUMNS
    return tuple(column.split()[0] for column in columns.split(","))


def enum_rows() -> dict[str, list[tuple[int, str, str]]]:
    """nsys' ENUM_* tables: what the numbers in the other tables mean."""
    text = (files("profiling_lab.recording.tables") / "nsys_enums.json").read_text(encoding="utf-8")
    return {
        table: [(int(i), name, label) for i, name, label in rows] for table, rows in json.loads(text).items()
    }


_ENUM_COLUMNS = "id INTEGER NOT NULL PRIMARY KEY, name TEXT, label TEXT"
