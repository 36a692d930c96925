// SPDX-License-Identifier: Apache-2.0
// Our subscription to CUPTI: what is enabled, the buffers that CUPTI fills, and the shutdown.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "recorder/cupti/activity_buffers.h"
#include "recorder/cupti/activity_records.h"
#include "recorder/cupti/graph_nodes.h"
#include "recorder/cupti/launch_callbacks.h"
#include "recorder/cupti/launch_ring.h"
#include "recorder/cupti/library.h"
#include "recorder/cupti/stream_captures.h"
#include "recorder/cupti/synchronization.h"
#include "recorder/spool/writer.h"

namespace plab::recorder {

struct CuptiOptions {
  std::string override_path;  // this library and no other
  std::vector<std::string> candidates;
  uint32_t buffer_bytes = 4u << 20;  // a few training steps; smaller ones are handed over more often
  uint32_t buffers_ahead = 4;
  uint32_t buffers_most = 64;
  bool graph_nodes = false;  // a replayed graph as its kernels instead of as a whole
};

class CuptiClient {
 public:
  explicit CuptiClient(spool::Writer& writer) : writer_(writer), decoder_(functions_, writer) {}

  // "" (GPU activity is being recorded) or one sentence. Subscribing may load the CUDA driver.
  std::string start(const CuptiOptions& options, LaunchRings* rings, bool python_stacks);
  // start() failed because another client uses CUPTI, which must then be left alone.
  bool refused() const noexcept { return refused_; }
  // Disables everything and flushes what CUPTI still holds; call collect() afterwards.
  void stop() noexcept;
  void release() { buffers_.release(); }

  // Nothing new is recorded until resume(), at no cost to the launches in between; the subscription is kept.
  // What the GPU still has to do is recorded only if the caller waited for it.
  void pause() noexcept;
  void resume(LaunchRings* rings, bool python_stacks) noexcept;
  static void after_fork_child() noexcept;

  void flush(bool forced) noexcept;
  // Thread: the consumer, or another thread once the consumer has ended. Decodes and writes the buffers handed over.
  void collect();
  struct Call {
    uint32_t name;  // a string
    bool launches;  // a kernel
    synchronization::Wait wait;
  };
  // A traced call.
  Call call_of(const LaunchEvent& event) const;
  // Thread: the consumer. This call launched a kernel.
  void launched(uint32_t correlation, uint64_t time_ns) noexcept;
  // Call it after stop() and the last collect(), when CUPTI has been flushed. Writes to the file the time from which
  // on there are launches but no records.
  void compare_launches_with_records(uint64_t recording_start_ns);

  // Thread: the consumer, or under the lock that it holds in collect().
  void add_statistics(std::map<std::string, std::string>* out);

 private:
  std::string subscribe();
  std::string explain(cupti::Result result, const char* what) const;
  void enable_kinds(bool graph_nodes);
  void disable_kinds() noexcept;
  void add_node_callbacks();
  void switch_callbacks(bool on) noexcept;
  void enable_callbacks(LaunchRings* rings, bool python_stacks);

  static void on_buffer_requested(uint8_t** data, size_t* bytes, size_t* most_records);
  static void on_buffer_completed(void* context, uint32_t stream, uint8_t* data, size_t bytes, size_t valid);

  spool::Writer& writer_;
  cupti::Functions functions_;
  cupti::SubscriberHandle subscriber_ = nullptr;
  bool refused_ = false;
  ActivityBuffers buffers_;
  ActivityDecoder decoder_;
  GraphNodes graph_nodes_{functions_};
  bool traces_nodes_ = false;
  std::vector<launch_callbacks::TracedCall> traced_;
  std::vector<stream_captures::Call> captures_;  // watched in pauses too
  std::unordered_map<uint32_t, Call> calls_;     // by domain << 16 | cbid

  std::mutex flush_mutex_;  // of the three counters below
  uint64_t flush_ns_ = 0, flushes_ = 0, dropped_ = 0;

  uint64_t undecoded_ = 0;  // buffers of which not all could be read
  struct {
    uint32_t correlation = 0;
    uint64_t time_ns = 0;
  } last_launch_;
  uint64_t captures_at_last_record_ = 0;
};

}  // namespace plab::recorder
