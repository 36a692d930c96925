// SPDX-License-Identifier: Apache-2.0
#include "recorder/cupti/activity_records.h"

#include <algorithm>
#include <new>

namespace plab::recorder {

using cupti::ActivityKind;

namespace {

constexpr size_t kNamesRemembered = 1 << 14;

}  // namespace

void ActivityDecoder::decode(uint8_t* data, size_t valid_bytes) {
  cupti::Record* record = nullptr;
  while (functions_.ActivityGetNextRecord(data, valid_bytes, &record) == cupti::kSuccess) {
    switch (static_cast<ActivityKind>(record->kind)) {
      case ActivityKind::kConcurrentKernel:
        add_kernel(*reinterpret_cast<const cupti::KernelRecord*>(record));
        break;
      case ActivityKind::kMemcpy:
        add_copy(*reinterpret_cast<const cupti::MemcpyRecord*>(record));
        break;
      case ActivityKind::kMemcpyPeer:
        add_peer_copy(*reinterpret_cast<const cupti::MemcpyPeerRecord*>(record));
        break;
      case ActivityKind::kMemset: {
        const auto& r = *reinterpret_cast<const cupti::MemsetRecord*>(record);
        if (!has_time(r.correlation, r.start, r.end)) break;
        sets_.push_back({r.start, r.end, r.bytes, r.graph_node, r.device, r.context, r.stream, r.correlation,
                         r.value, r.memory_kind});
        break;
      }
      case ActivityKind::kGraphTrace: {
        const auto& r = *reinterpret_cast<const cupti::GraphTraceRecord*>(record);
        if (!has_time(r.correlation, r.start, r.end)) break;
        graphs_.push_back({r.start, r.end, r.device, r.context, r.stream, r.correlation, r.graph, 0});
        break;
      }
      case ActivityKind::kOverhead: {
        const auto& r = *reinterpret_cast<const cupti::OverheadRecord*>(record);
        overheads_.push_back({r.start, r.end, static_cast<uint32_t>(r.overhead_kind),
                              r.object_kind == cupti::kObjectThread ? r.thread : 0});
        break;
      }
      case ActivityKind::kContext: {
        const auto& r = *reinterpret_cast<const cupti::ContextRecord*>(record);
        contexts_.push_back({r.context, r.device, r.null_stream, 0});
        break;
      }
      case ActivityKind::kStream: {
        const auto& r = *reinterpret_cast<const cupti::StreamRecord*>(record);
        streams_.push_back({r.context, r.stream, r.priority, static_cast<uint32_t>(r.flag)});
        break;
      }
      default:
        ++counts_.unknown;
    }
  }
}

// CUPTI gives 0 where a record was flushed before the GPU wrote its times (or lost them, CUDA 12.6u2
// to 13.0).
bool ActivityDecoder::has_time(uint32_t correlation, uint64_t start, uint64_t end) {
  if (correlation > newest_.correlation) newest_ = {correlation, std::max(newest_.time_ns, end)};
  if (start != 0 && end >= start) return true;
  ++counts_.without_time;
  return false;
}

void ActivityDecoder::add_kernel(const cupti::KernelRecord& r) {
  if (!has_time(r.correlation, r.start, r.end)) return;
  spool::Kernel k{};
  k.start_ns = r.start;
  k.end_ns = r.end;
  k.local_total = r.local_total;
  k.graph_node = r.graph_node;
  k.grid_id = r.grid_id;
  k.device = r.device;
  k.context = r.context;
  k.stream = r.stream;
  k.correlation = r.correlation;
  k.name = name(r.name ? r.name : "");
  k.grid_x = r.grid[0], k.grid_y = r.grid[1], k.grid_z = r.grid[2];
  k.block_x = r.block[0], k.block_y = r.block[1], k.block_z = r.block[2];
  k.static_shared = r.static_shared;
  k.dynamic_shared = r.dynamic_shared;
  k.local_per_thread = r.local_per_thread;
  k.shared_executed = r.shared_executed;
  k.graph = r.graph;
  k.registers = r.registers_per_thread;
  k.launch_type = r.launch_type;
  k.cache_config = r.cache_config >> 4;  // the executed one; the low half is what was requested
  k.shared_limit = static_cast<uint32_t>(r.shared_limit_config);
  const auto& tail = *reinterpret_cast<const cupti::KernelClusterTail*>(&r + 1);
  if (functions_.version >= cupti::kVersionClusterFields) {
    k.cluster_x = tail.cluster[0], k.cluster_y = tail.cluster[1], k.cluster_z = tail.cluster[2];
    k.cluster_scheduling = tail.cluster_scheduling;
    k.local_total = tail.local_total;
  }
  if (functions_.version >= cupti::kVersionMaxClusters) {
    k.max_potential_cluster = tail.max_potential_cluster;
    k.max_active_clusters = tail.max_active_clusters;
  }
  kernels_.push_back(k);
}

// The text of a pointer is compared and not taken from memory: CUPTI may use the pointer again when a module
// is reloaded. That is cheaper than to look a long text up.
uint32_t ActivityDecoder::name(const char* text) {
  const auto found = names_.find(text);
  if (found != names_.end() && found->second.text == text) return found->second.string;
  if (names_.size() >= kNamesRemembered) names_.clear();
  const uint32_t string = writer_.intern(text);
  if (string == spool::kNone) throw std::bad_alloc();
  names_[text] = {text, string};
  return string;
}

void ActivityDecoder::add_copy(const cupti::MemcpyRecord& r) {
  if (!has_time(r.correlation, r.start, r.end)) return;
  copies_.push_back({r.start, r.end, r.bytes, r.graph_node, r.device, r.context, r.stream, r.correlation,
                     r.copy_kind, r.source_kind, r.destination_kind, spool::kNone, spool::kNone, spool::kNone,
                     spool::kNone, 1});
}

void ActivityDecoder::add_peer_copy(const cupti::MemcpyPeerRecord& r) {
  if (!has_time(r.correlation, r.start, r.end)) return;
  copies_.push_back({r.start, r.end, r.bytes, r.graph_node, r.device, r.context, r.stream, r.correlation,
                     r.copy_kind, r.source_kind, r.destination_kind, r.source_device, r.source_context,
                     r.destination_device, r.destination_context, 1});
}

void ActivityDecoder::write_out() {
  counts_.kernels += kernels_.size();
  counts_.copies += copies_.size();
  counts_.sets += sets_.size();
  counts_.graphs += graphs_.size();
  const auto put = [this](spool::Kind kind, auto& records) {
    writer_.append(kind, records);
    records.clear();
  };
  put(spool::Kind::kKernel, kernels_);
  put(spool::Kind::kCopy, copies_);
  put(spool::Kind::kSet, sets_);
  put(spool::Kind::kGraph, graphs_);
  put(spool::Kind::kOverhead, overheads_);
  put(spool::Kind::kContext, contexts_);
  put(spool::Kind::kStream, streams_);
}

}  // namespace plab::recorder
