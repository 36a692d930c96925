// SPDX-License-Identifier: Apache-2.0
// What a tool needs of NVTX's injection interface (NVTX 3), declared here: ids, tables, event attributes.
#pragma once

#include <cstddef>
#include <cstdint>

namespace plab::recorder::nvtx {

inline constexpr uint32_t kExportTableCallbacks = 1;
enum class Module : int { kCore = 1, kCuda = 2, kCudaRuntime = 4, kCore2 = 5 };

// Slots of the core table (default domain) ...
enum Core : unsigned {
  kMarkEx = 1,
  kMarkA = 2,
  kMarkW = 3,
  kRangeStartEx = 4,
  kRangeStartA = 5,
  kRangeStartW = 6,
  kRangeEnd = 7,
  kRangePushEx = 8,
  kRangePushA = 9,
  kRangePushW = 10,
  kRangePop = 11,
  kNameCategoryA = 12,
  kNameCategoryW = 13,
  kNameOsThreadA = 14,
  kNameOsThreadW = 15,
};
// ... of the second core table (domains) ...
enum Core2 : unsigned {
  kDomainMarkEx = 1,
  kDomainRangeStartEx = 2,
  kDomainRangeEnd = 3,
  kDomainRangePushEx = 4,
  kDomainRangePop = 5,
  kDomainResourceCreate = 6,
  kDomainResourceDestroy = 7,
  kDomainNameCategoryA = 8,
  kDomainNameCategoryW = 9,
  kDomainRegisterStringA = 10,
  kDomainRegisterStringW = 11,
  kDomainCreateA = 12,
  kDomainCreateW = 13,
};
// ... and those that name things of the CUDA driver and of the CUDA runtime.
enum Cuda : unsigned {
  kNameCuDeviceA = 1,
  kNameCuDeviceW = 2,
  kNameCuContextA = 3,
  kNameCuContextW = 4,
  kNameCuStreamA = 5,
  kNameCuStreamW = 6,
  kNameCuEventA = 7,
  kNameCuEventW = 8,
};
enum CudaRuntime : unsigned {
  kNameCudaDeviceA = 1,
  kNameCudaDeviceW = 2,
  kNameCudaStreamA = 3,
  kNameCudaStreamW = 4,
  kNameCudaEventA = 5,
  kNameCudaEventW = 6,
};

using Function = void (*)();
using FunctionTable = Function**;

struct ExportTable {
  size_t struct_bytes;
  int (*get_module_function_table)(Module module, FunctionTable* table, unsigned* size);
};
using GetExportTable = const void* (*)(uint32_t id);

enum MessageType : int32_t { kMessageNone = 0, kMessageText = 1, kMessageWide = 2, kMessageRegistered = 3 };
inline constexpr int32_t kColorArgb = 1;
inline constexpr int32_t kPayloadExtended = static_cast<int32_t>(0xDFBD0009);

struct EventAttributes {
  uint16_t version, size;
  uint32_t category;
  int32_t color_type;
  uint32_t color;
  int32_t payload_type;
  int32_t payloads;  // of kPayloadExtended: how many PayloadData `payload` points to
  uint64_t payload;
  int32_t message_type;
  const void* message;  // text, wide text or a registered string
};

struct ResourceAttributes {
  uint16_t version, size;
  int32_t type;
  uint64_t identifier;
  int32_t message_type;
  const void* message;
};
enum ResourceType : uint32_t {
  kResourceThread = 0x10003,  // the system's number
  kResourceCuDevice = 0x40001,
  kResourceCuContext = 0x40002,
  kResourceCuStream = 0x40003,
  kResourceCuEvent = 0x40004,
  kResourceCudaDevice = 0x50000,
  kResourceCudaStream = 0x50001,
  kResourceCudaEvent = 0x50002,
};

// ---- the payload extension: structured data at ranges and marks ----

inline constexpr uint16_t kPayloadExtension = 2;  // the number of its module

struct PayloadData {
  uint64_t schema;
  size_t bytes;  // SIZE_MAX: the schema says
  const void* data;
};

struct SchemaEntryAttributes {
  uint64_t flags, type;
  const char *name, *description;
  uint64_t detail, offset;
  const void *semantics, *reserved;
};
// Fields count only if the mask has their bit.
enum SchemaField : uint64_t {
  kSchemaName = 1 << 1,
  kSchemaType = 1 << 2,
  kSchemaFlags = 1 << 3,
  kSchemaEntries = 1 << 4,
  kSchemaEntryCount = 1 << 5,
  kSchemaBytes = 1 << 6,
  kSchemaAlignment = 1 << 7,
  kSchemaId = 1 << 8,
};
struct SchemaAttributes {
  uint64_t fields;
  const char* name;
  uint64_t type, flags;
  const SchemaEntryAttributes* entries;
  size_t entry_count, bytes, alignment;
  uint64_t id;
  void* extension;
};

struct EnumEntryAttributes {
  const char* name;
  uint64_t value;
  int8_t is_flag;
};
enum EnumField : uint64_t {
  kEnumName = 1 << 1,
  kEnumEntries = 1 << 2,
  kEnumEntryCount = 1 << 3,
  kEnumBytes = 1 << 4,
  kEnumId = 1 << 5,
};
struct EnumAttributes {
  uint64_t fields;
  const char* name;
  const EnumEntryAttributes* entries;
  size_t entry_count, bytes;
  uint64_t id;
  void* extension;
};

// Slots of the extension's only table.
enum Payloads : unsigned {
  kPayloadSchemaRegister = 0,
  kPayloadEnumRegister = 1,
  kMarkPayload = 2,
  kRangePushPayload = 3,
  kRangePopPayload = 4,
  kRangeStartPayload = 5,
  kRangeEndPayload = 6,
};
struct ExtensionTable {
  size_t id, slot_count;
  intptr_t* slots;
};
struct ExtensionInfo {
  uint16_t nvtx_version, struct_bytes, module, compatibility;
  size_t table_count;
  ExtensionTable* tables;
  intptr_t (*get_export)(uint32_t id);
  const void* details;
};

}  // namespace plab::recorder::nvtx
