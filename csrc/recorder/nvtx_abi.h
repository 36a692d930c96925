// SPDX-License-Identifier: Apache-2.0
// What a tool needs of NVTX's injection interface (NVTX 3), declared here: ids, tables, event attributes.
#pragma once

#include <cstddef>
#include <cstdint>

namespace plab::recorder::nvtx {

inline constexpr uint32_t kExportTableCallbacks = 1;
enum class Module : int { kCore = 1, kCore2 = 5 };

// Slots of the core table (default domain) ...
enum Core : unsigned {
  kMarkEx = 1,
  kMarkA = 2,
  kRangeStartEx = 4,
  kRangeStartA = 5,
  kRangeEnd = 7,
  kRangePushEx = 8,
  kRangePushA = 9,
  kRangePop = 11,
  kNameCategoryA = 12,
  kNameOsThreadA = 14,
};
// ... and of the second core table (domains).
enum Core2 : unsigned {
  kDomainMarkEx = 1,
  kDomainRangeStartEx = 2,
  kDomainRangeEnd = 3,
  kDomainRangePushEx = 4,
  kDomainRangePop = 5,
  kDomainNameCategoryA = 8,
  kDomainRegisterStringA = 10,
  kDomainCreateA = 12,
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

struct EventAttributes {
  uint16_t version, size;
  uint32_t category;
  int32_t color_type;
  uint32_t color;
  int32_t payload_type;
  int32_t reserved;
  uint64_t payload;
  int32_t message_type;
  const void* message;  // text, wide text or a registered string
};

}  // namespace plab::recorder::nvtx
