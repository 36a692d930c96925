// SPDX-License-Identifier: Apache-2.0
// How large CUPTI's records are in CUDA 13.0, and records in which every field has a number of its own, so
// that none can stand in for another.
#pragma once

#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "recorder/cupti/abi.h"

namespace plab::recorder::cupti {

constexpr size_t kKernelBytes = 216, kMemcpyBytes = 96, kMemcpyPeerBytes = 96, kMemsetBytes = 88,
                 kGraphBytes = 56, kContextBytes = 32, kStreamBytes = 24, kUnknownBytes = 64;

inline size_t bytes_of(int kind) {
  switch (static_cast<ActivityKind>(kind)) {
    case ActivityKind::kConcurrentKernel:
      return kKernelBytes;
    case ActivityKind::kMemcpy:
      return kMemcpyBytes;
    case ActivityKind::kMemcpyPeer:
      return kMemcpyPeerBytes;
    case ActivityKind::kMemset:
      return kMemsetBytes;
    case ActivityKind::kGraphTrace:
      return kGraphBytes;
    case ActivityKind::kContext:
      return kContextBytes;
    case ActivityKind::kStream:
      return kStreamBytes;
    default:
      return kUnknownBytes;
  }
}

struct KernelTail {
  KernelClusterRecord cluster;
  KernelOccupancyRecord occupancy;
};
struct WholeKernel {
  KernelRecord start;
  KernelTail tail;
};

struct Numbered {
  std::vector<uint8_t> record;
  std::string numbers;  // "bytes=5 start_ns=6 ..."
};

inline Numbered numbered(ActivityKind kind) {
  Numbered made;
  int last = 1;
  const auto number = [&]<class Type>(Type& field, const char* name) {
    if constexpr (!std::is_pointer_v<Type>) {
      field = static_cast<Type>(++last);
      made.numbers += std::string(name) + "=" + std::to_string(last) + " ";
    }
  };
  const auto keep = [&made](const auto& record) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(&record);
    made.record.assign(bytes, bytes + sizeof record);
  };
#define PLAB_NUMBER(type, name, theirs) number(r.name, #name);
#define PLAB_NUMBERED(Record, FIELDS) \
  {                                   \
    Record r{};                       \
    r.kind = static_cast<int>(kind);  \
    FIELDS(PLAB_NUMBER)               \
    keep(r);                          \
  }
  switch (kind) {
    case ActivityKind::kConcurrentKernel: {
      WholeKernel whole{};
      whole.start.kind = static_cast<int>(kind);
      whole.start.name = "numbered";
      {
        auto& r = whole.start;
        PLAB_CUPTI_KERNEL(PLAB_NUMBER)
      }
      {
        auto& r = whole.tail.cluster;
        PLAB_CUPTI_KERNEL_CLUSTER(PLAB_NUMBER)
      }
      {
        auto& r = whole.tail.occupancy;
        PLAB_CUPTI_KERNEL_OCCUPANCY(PLAB_NUMBER)
      }
      keep(whole);
      break;
    }
    case ActivityKind::kMemcpy:
      PLAB_NUMBERED(MemcpyRecord, PLAB_CUPTI_MEMCPY)
      break;
    case ActivityKind::kMemcpyPeer:
      PLAB_NUMBERED(MemcpyPeerRecord, PLAB_CUPTI_MEMCPY_PEER)
      break;
    case ActivityKind::kMemset:
      PLAB_NUMBERED(MemsetRecord, PLAB_CUPTI_MEMSET)
      break;
    default:
      PLAB_NUMBERED(GraphTraceRecord, PLAB_CUPTI_GRAPH_TRACE)
  }
#undef PLAB_NUMBERED
#undef PLAB_NUMBER
  return made;
}

}  // namespace plab::recorder::cupti
