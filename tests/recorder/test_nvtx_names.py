# SPDX-License-Identifier: Apache-2.0
"""What a program names through NVTX, in either kind of character, and the payloads of its ranges."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest

from profiling_lab.recording.convert import convert
from profiling_lab.trace import Trace
from profiling_lab.trace.nsys.nccl_payload import payloads as payloads_of

APP = "import ctypes\nfrom nvtx_app import app\n"

REPO = Path(__file__).resolve().parents[2]

WIDE = "gr\u00fc\u00df\u20ac\U0001f600"
NAMED = "COALESCE(text, (SELECT value FROM StringIds WHERE id = textId))"


def test_wide_characters(run: Any, query: Any, apps: dict[str, str]) -> None:
    run(
        APP
        + f"""
wide = {WIDE!r}
with profiling_lab.record(OUT):
    one = app("one.so")
    domain = one.app_domain_wide("d " + wide)
    assert one.app_push_wide("p " + wide) == 0 and one.app_pop() == 0
    one.app_mark_wide("m " + wide)
    one.app_domain_push(domain, one.app_register_wide(domain, "r " + wide), 3); one.app_domain_pop(domain)
    one.app_name_category_wide(domain, 7, "c " + wide)
    one.app_name_thread_wide(4243, "t " + wide)
    one.app_push_wide(None); one.app_pop()
""",
        env=apps,
    )
    rows = query(f"SELECT eventType, {NAMED}, domainId, category FROM NVTX_EVENTS ORDER BY 1, 2")
    assert rows == [
        (33, f"c {WIDE}", 2, 7), (34, f"m {WIDE}", 0, None), (59, None, 0, None),
        (59, f"p {WIDE}", 0, None), (59, f"r {WIDE}", 2, None), (75, f"d {WIDE}", 2, None),
    ]  # fmt: skip
    named = (
        "SELECT s.value FROM ThreadNames JOIN StringIds s ON s.id = nameId WHERE globalTid % 0x1000000 = 4243"
    )
    assert query(named) == [(f"t {WIDE}",)]


def test_names_of_streams_and_other_things(run: Any, query: Any, apps: dict[str, str]) -> None:
    run(
        APP
        + """
with profiling_lab.record(OUT):
    one = app("one.so")
    domain = one.app_domain(b"mine")
    one.app_name_stream(0xffff_ffff_0000_1234, b"copies")
    assert one.app_resource(domain, 0x10001, 77, b"a lock")
    assert one.app_resource(domain, 0x10003, 4244, b"a worker")  # a thread by the system's number
""",
        env=apps,
    )
    rows = query(
        "SELECT domainId, type, identifier, value, globalPid = (SELECT globalPid FROM PROCESSES)"
        " FROM PYREC_RESOURCE JOIN StringIds ON id = nameId ORDER BY type"
    )
    stream = 0xFFFF_FFFF_0000_1234 - (1 << 64)
    assert rows == [
        (2, 0x10001, 77, "a lock", 1), (2, 0x10003, 4244, "a worker", 1), (0, 0x50001, stream, "copies", 1),
    ]  # fmt: skip
    named = "SELECT globalTid % 0x1000000 FROM ThreadNames JOIN StringIds ON id = nameId WHERE value = ?"
    assert query(named, "a worker") == [(4244,)]


def test_payloads_and_what_they_mean(run: Any, query: Any, apps: dict[str, str], tmp_path: Path) -> None:
    """As nsys exports NCCL's ranges, so that the analysis of collectives finds size and communicator."""
    run(
        APP
        + """
with profiling_lab.record(OUT) as recorder:
    one = app("one.so")
    domain = one.app_domain(b"NCCL")
    name = one.app_register(domain, b"ncclAllReduce")
    assert one.app_schema(domain, 16777220) == 16777220
    dynamic = one.app_schema(domain, 0)
    assert dynamic > 1 << 32 and one.app_enum(domain) > dynamic
    for schema, communicator, size, told in (
        (16777220, 0xabcdef, 4096, 16), (dynamic, 0xabcdef, 8192, 2**64 - 1),
        (5, 1, 2, 2**64 - 1), (5, 1, 2, 1 << 40),
    ):
        assert one.app_push_all_reduce(domain, name, schema, communicator, size, told) == 0
        assert one.app_domain_pop(domain) == 0
    one.app_push(b"plain"); one.app_pop()
    assert one.app_payload_range(domain, name, 3) == 0
assert recorder.summary.ranges == 6
""",
        env=apps,
    )
    rows = query(
        f"SELECT {NAMED}, binaryData, uint64Value FROM NVTX_EVENTS WHERE eventType = 59 ORDER BY start"
    )
    payloads = [struct.unpack("<6Q", data) for _, data, _ in rows[:2]]
    dynamic = payloads[1][1]
    assert payloads == [(2, 16777220, 16, 48, 0xABCDEF, 4096), (2, dynamic, 16, 48, 0xABCDEF, 8192)]
    assert [data for _, data, _ in rows[2:5]] == [None, None, None]  # no size known, absurd, no payload
    assert {text for text, *_ in rows} == {"ncclAllReduce", "plain"} and rows[5][0] == "ncclAllReduce"
    pushed, popped = struct.unpack("<10Q", rows[5][1])[:4], struct.unpack("<10Q", rows[5][1])[5:]
    assert pushed[2:] == (8, 40) and popped == (2, 99, 8, 40, 3)
    assert all(number is None for *_, number in rows)  # no payload is taken for a number
    schemas = "SELECT * FROM NVTX_PAYLOAD_SCHEMAS WHERE domainId = 2 ORDER BY schemaId"
    assert query(schemas)[:2] == [
        (2, 16777220, None, 1, None, 2, 16, None), (2, dynamic, None, 1, None, 2, 16, None),
    ]  # fmt: skip
    entries = (
        "SELECT * FROM NVTX_PAYLOAD_SCHEMA_ENTRIES WHERE domainId = 2 AND schemaId = 16777220 ORDER BY idx"
    )
    assert query(entries) == [
        (2, 16777220, 0, None, 18, "NCCL communicator ID", None, None, None),
        (2, 16777220, 1, None, 22, "Message size [bytes]", "in bytes", None, 8),
    ]  # fmt: skip
    assert query("SELECT domainId, name, numEntries, size FROM NVTX_PAYLOAD_ENUMS") == [
        (2, "reduction", 2, 4)
    ]
    assert query("SELECT idx, name, value, isFlag FROM NVTX_PAYLOAD_ENUM_ENTRIES ORDER BY idx") == [
        (0, "sum", 0, None), (1, "product", 1, 1),
    ]  # fmt: skip
    with Trace.open(tmp_path / "out.sqlite") as trace:
        found = payloads_of(trace.source.file)
    assert found.communicator[:2] == (str(0xABCDEF),) * 2 and found.size_bytes[:2].tolist() == [4096, 8192]


def test_names_survive_a_kill(run: Any, query: Any, apps: dict[str, str], tmp_path: Path) -> None:
    run(
        APP
        + """
recorder = profiling_lab.recording.Recorder(OUT, flush_period_ms=20); recorder.start()
one = app("one.so")
domain = one.app_domain(b"NCCL")
one.app_schema(domain, 16777220); one.app_name_category(domain, 3, b"collectives")
one.app_name_stream(5, b"s")
time.sleep(0.3)
os._exit(0)
""",
        env=apps,
    )
    convert(tmp_path / "out.sqlite.spool", tmp_path / "out.sqlite")
    assert query("SELECT text FROM NVTX_EVENTS ORDER BY 1") == [("NCCL",), ("collectives",)]
    assert query("SELECT count(*) FROM NVTX_PAYLOAD_SCHEMA_ENTRIES") == [(2,)]
    assert query("SELECT count(*) FROM PYREC_RESOURCE") == [(1,)]


def test_names_are_in_every_recording(run: Any, query: Any, apps: dict[str, str]) -> None:
    run(
        APP
        + """
with profiling_lab.record(OUT):
    one = app("one.so")
    domain = one.app_domain(b"NCCL"); one.app_schema(domain, 16777220)
with profiling_lab.record(OUT, overwrite=True):
    one.app_domain_push(domain, ctypes.cast(ctypes.create_string_buffer(b"x"), ctypes.c_void_p), 1)
    one.app_domain_pop(domain)
""",
        env=apps,
    )
    assert query("SELECT text, domainId FROM NVTX_EVENTS ORDER BY eventType") == [("x", 2), ("NCCL", 2)]
    assert query("SELECT count(*) FROM NVTX_PAYLOAD_SCHEMA_ENTRIES") == [(2,)]


def test_our_nvtx_declarations_agree_with_the_headers(tmp_path: Path) -> None:
    headers = [Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "include", Path("/usr/include")]
    include = next((folder for folder in headers if (folder / "nvtx3" / "nvToolsExt.h").is_file()), None)
    if include is None:
        pytest.skip("NVTX's headers are not installed")
    source = tmp_path / "conformance.cpp"
    fields = {"category": "category", "color_type": "colorType", "payload_type": "payloadType",
              "payload": "payload", "message_type": "messageType", "message": "message"}  # fmt: skip
    core = (
        "MarkEx MarkA MarkW RangeStartEx RangeStartA RangeStartW RangeEnd RangePushEx RangePushA RangePushW "
        "RangePop NameCategoryA NameCategoryW NameOsThreadA NameOsThreadW"
    )
    core2 = (
        "DomainMarkEx DomainRangeStartEx DomainRangeEnd DomainRangePushEx DomainRangePop "
        "DomainResourceCreate DomainResourceDestroy DomainNameCategoryA DomainNameCategoryW "
        "DomainRegisterStringA DomainRegisterStringW DomainCreateA DomainCreateW"
    )
    cuda = "NameCuDevice NameCuContext NameCuStream NameCuEvent"
    cudart = "NameCudaDevice NameCudaStream NameCudaEvent"
    payload = (
        "PayloadSchemaRegister PayloadEnumRegister MarkPayload RangePushPayload RangePopPayload "
        "RangeStartPayload RangeEndPayload"
    )
    resources = {"CuDevice": "CUDA_DEVICE", "CuContext": "CUDA_CONTEXT", "CuStream": "CUDA_STREAM",
                 "CuEvent": "CUDA_EVENT", "CudaDevice": "CUDART_DEVICE", "CudaStream": "CUDART_STREAM",
                 "CudaEvent": "CUDART_EVENT", "Thread": "GENERIC_THREAD_NATIVE"}  # fmt: skip
    masks = {"Name": "NAME", "Type": "TYPE", "Flags": "FLAGS", "Entries": "ENTRIES",
             "EntryCount": "NUM_ENTRIES", "Bytes": "STATIC_SIZE",
             "Alignment": "ALIGNMENT", "Id": "SCHEMA_ID"}  # fmt: skip
    enum_masks = {"Name": "NAME", "Entries": "ENTRIES", "EntryCount": "NUM_ENTRIES", "Bytes": "SIZE",
                  "Id": "SCHEMA_ID"}  # fmt: skip
    structs = {
        ("ResourceAttributes", "nvtxResourceAttributes_v0"): {
            "type": "identifierType", "identifier": "identifier", "message_type": "messageType",
            "message": "message"},
        ("PayloadData", "nvtxPayloadData_t"): {"schema": "schemaId", "bytes": "size", "data": "payload"},
        ("SchemaEntryAttributes", "nvtxPayloadSchemaEntry_t"): {
            "flags": "flags", "type": "type", "name": "name", "description": "description",
            "detail": "arrayOrUnionDetail", "offset": "offset"},
        ("SchemaAttributes", "nvtxPayloadSchemaAttr_t"): {
            "fields": "fieldMask", "name": "name", "type": "type", "flags": "flags", "entries": "entries",
            "entry_count": "numEntries", "bytes": "payloadStaticSize", "alignment": "packAlign",
            "id": "schemaId"},
        ("EnumEntryAttributes", "nvtxPayloadEnum_t"): {"name": "name", "value": "value", "is_flag": "isFlag"},
        ("EnumAttributes", "nvtxPayloadEnumAttr_t"): {
            "fields": "fieldMask", "name": "name", "entries": "entries", "entry_count": "numEntries",
            "bytes": "sizeOfEnum", "id": "schemaId"},
        ("ExtensionTable", "nvtxExtModuleSegment_t"): {"slot_count": "slotCount", "slots": "functionSlots"},
        ("ExtensionInfo", "nvtxExtModuleInfo_t"): {
            "module": "moduleId", "table_count": "segmentsCount", "tables": "segments"},
    }  # fmt: skip
    checks = [
        f"offsetof(EventAttributes, {a}) == offsetof(nvtxEventAttributes_t, {b})" for a, b in fields.items()
    ]
    checks += [f"int(k{slot}) == NVTX_CBID_CORE_{slot}" for slot in core.split()]
    checks += [f"int(k{slot}) == NVTX_CBID_CORE2_{slot}" for slot in core2.split()]
    for module, slots in (("CUDA", cuda), ("CUDART", cudart)):
        checks += [f"int(k{slot}{w}) == NVTX_CBID_{module}_{slot}{w}" for slot in slots.split() for w in "AW"]
    checks += [f"int(k{slot}) == NVTX3EXT_CBID_nvtx{slot}" for slot in payload.split()]
    checks += [f"kResource{ours} == NVTX_RESOURCE_TYPE_{theirs}" for ours, theirs in resources.items()]
    checks += [f"kSchema{a} == NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_{b}" for a, b in masks.items()]
    checks += [f"kEnum{a} == NVTX_PAYLOAD_ENUM_ATTR_FIELD_{b}" for a, b in enum_masks.items()]
    for (ours, theirs), members in structs.items():
        checks += [f"sizeof({ours}) == sizeof({theirs})"]
        checks += [f"offsetof({ours}, {a}) == offsetof({theirs}, {b})" for a, b in members.items()]
    checks += [
        "kPayloadExtended == NVTX_PAYLOAD_TYPE_EXT",
        "kPayloadExtension == NVTX_EXT_PAYLOAD_MODULEID",
        "offsetof(EventAttributes, payloads) == offsetof(nvtxEventAttributes_t, reserved0)",
        "int(Module::kCuda) == NVTX_CB_MODULE_CUDA",
        "int(Module::kCudaRuntime) == NVTX_CB_MODULE_CUDART",
        "sizeof(EventAttributes) == sizeof(nvtxEventAttributes_t)",
        "int(Module::kCore) == NVTX_CB_MODULE_CORE",
        "int(Module::kCore2) == NVTX_CB_MODULE_CORE2",
        "kExportTableCallbacks == NVTX_ETID_CALLBACKS",
        "sizeof(ExportTable) == sizeof(NvtxExportTableCallbacks)",
        "int(kMessageRegistered) == NVTX_MESSAGE_TYPE_REGISTERED",
        "int(kMessageWide) == NVTX_MESSAGE_TYPE_UNICODE",
        "kColorArgb == NVTX_COLOR_ARGB",
    ]
    lines = [
        '#include "nvtx3/nvToolsExtCuda.h"',
        '#include "nvtx3/nvToolsExtCudaRt.h"',
        '#include "nvtx3/nvToolsExtPayload.h"',
        '#include "recorder/nvtx/abi.h"',
        "using namespace plab::recorder::nvtx;",
    ]
    source.write_text("\n".join([*lines, *(f"static_assert({check});" for check in checks)]))
    compiler = os.environ.get("CXX") or shutil.which("g++") or "c++"
    command = [
        compiler,
        "-std=c++20",
        "-fsyntax-only",
        "-w",
        f"-I{REPO / 'csrc'}",
        f"-I{include}",
        str(source),
    ]
    subprocess.run(command, check=True)
