// SPDX-License-Identifier: Apache-2.0
#include "recorder/cupti/activity_records.h"

#include <algorithm>
#include <new>

namespace plab::recorder {

using cupti::ActivityKind;

namespace {

constexpr size_t kNamesRemembered = 1 << 14;

template <class Wanted>  // word: quoted
const Wanted& as(const cupti::Record* record) {
  return *reinterpret_cast<const Wanted*>(record);
}

}  // namespace

void ActivityDecoder::decode(uint8_t* data, size_t valid_bytes) {
  cupti::Record* record = nullptr;
  while (functions_.ActivityGetNextRecord(data, valid_bytes, &record) == cupti::kSuccess) {
    switch (static_cast<ActivityKind>(record->kind)) {
      case ActivityKind::kConcurrentKernel:
        add_kernel(as<cupti::KernelRecord>(record));
        break;
      case ActivityKind::kMemcpy:
        add_copy(as<cupti::MemcpyRecord>(record));
        break;
      case ActivityKind::kMemcpyPeer:
        add_copy(as<cupti::MemcpyPeerRecord>(record));
        break;
      case ActivityKind::kMemset:
        if (const auto& r = as<cupti::MemsetRecord>(record); has_time(r))
          sets_.push_back(spool::Set{}.take(r));
        break;
      case ActivityKind::kGraphTrace:
        if (const auto& r = as<cupti::GraphTraceRecord>(record); has_time(r))
          graphs_.push_back(spool::Graph{}.take(r));
        break;
      case ActivityKind::kOverhead: {
        const auto& r = as<cupti::OverheadRecord>(record);
        spool::Overhead& overhead = overheads_.emplace_back().take(r);
        if (r.object_kind != cupti::kObjectThread) overhead.thread = 0;
        break;
      }
      case ActivityKind::kContext:
        contexts_.push_back(spool::Context{}.take(as<cupti::ContextRecord>(record)));
        break;
      case ActivityKind::kStream:
        streams_.push_back(spool::Stream{}.take(as<cupti::StreamRecord>(record)));
        break;
      default:
        ++counts_.unknown;
    }
  }
}

// CUPTI gives 0 where a record was flushed before the GPU wrote its times (or lost them, CUDA 12.6u2
// to 13.0).
template <class Record>
bool ActivityDecoder::has_time(const Record& r) {
  if (r.correlation_id > newest_.correlation)
    newest_ = {r.correlation_id, std::max(newest_.time_ns, uint64_t{r.end_ns})};
  if (r.start_ns != 0 && r.end_ns >= r.start_ns) return true;
  ++counts_.without_time;
  return false;
}

void ActivityDecoder::add_kernel(const cupti::KernelRecord& r) {
  if (!has_time(r)) return;
  spool::Kernel kernel{};
  kernel.take(r);
  kernel.mangled_name = name(r.name ? r.name : "");
  kernel.cache_config = r.cache_configs >> 4;  // the executed one
  const auto& cluster = *reinterpret_cast<const cupti::KernelClusterRecord*>(&r + 1);
  if (functions_.version >= cupti::kVersionClusterFields) kernel.take(cluster);
  if (functions_.version >= cupti::kVersionMaxClusters)
    kernel.take(*reinterpret_cast<const cupti::KernelOccupancyRecord*>(&cluster + 1));
  kernels_.push_back(kernel);
}

template <class Record>
void ActivityDecoder::add_copy(const Record& r) {
  if (!has_time(r)) return;
  spool::Copy copy{};
  copy.src_device_id = copy.src_context_id = copy.dst_device_id = copy.dst_context_id = spool::kNone;
  copy.copy_count = 1;
  copies_.push_back(copy.take(r));
}

// The text behind a known pointer is compared, because CUPTI may reuse the pointer when a module is reloaded.
// Comparing is cheaper than looking up a long text.
uint32_t ActivityDecoder::name(const char* text) {
  const auto found = names_.find(text);
  if (found != names_.end() && found->second.text == text) return found->second.string;
  if (names_.size() >= kNamesRemembered) names_.clear();
  const uint32_t string = writer_.intern(text);
  if (string == spool::kNone) throw std::bad_alloc();
  names_[text] = {text, string};
  return string;
}

void ActivityDecoder::write_out() {
  counts_.kernels += kernels_.size();
  counts_.copies += copies_.size();
  counts_.sets += sets_.size();
  counts_.graphs += graphs_.size();
  const auto put = [this](auto&... records) { ((writer_.append(records), records.clear()), ...); };
  put(kernels_, copies_, sets_, graphs_, overheads_, contexts_, streams_);
}

}  // namespace plab::recorder
