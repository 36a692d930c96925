// SPDX-License-Identifier: Apache-2.0
// Our subscription to CUPTI: what is switched on, the buffers it fills, and how all of it ends again.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "recorder/activity_buffers.h"
#include "recorder/activity_decode.h"
#include "recorder/capture_watch.h"
#include "recorder/cupti_library.h"
#include "recorder/graph_nodes.h"
#include "recorder/launch_callbacks.h"
#include "recorder/launch_ring.h"
#include "trace/spool.h"

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
  explicit CuptiClient(trace::spool::Writer& writer) : writer_(writer), decoder_(functions_, writer) {}

  // "" (GPU activity is being recorded) or one sentence. Subscribing may load the CUDA driver.
  std::string start(const CuptiOptions& options, LaunchRings* rings, bool python_stacks);
  // start() failed because somebody else holds CUPTI, which must then be left alone.
  bool refused() const noexcept { return refused_; }
  // Switches everything off and fetches what CUPTI still holds; collect() it afterwards.
  void stop() noexcept;
  void release() { buffers_.release(); }

  // Nothing new is recorded until resume(), at no cost to the launches in between; the subscription is kept.
  // What the GPU still has to do is recorded only if the caller waited for it.
  void pause() noexcept;
  void resume(LaunchRings* rings, bool python_stacks) noexcept;

  void flush(bool forced) noexcept;
  // Thread: the consumer (or nobody else after it). Decodes and writes what was handed over.
  void collect();
  // Thread: the consumer. Says so in the file if calls go on but no records come any more.
  void watch(uint64_t recorded_calls);

  // The string of a traced call's name.
  uint32_t name_of(cupti::Domain domain, uint32_t cbid) const;

  // Thread: the consumer, or under the lock that it holds in collect().
  void add_statistics(std::map<std::string, std::string>* out);

 private:
  std::string subscribe();
  std::string explain(cupti::Result result, const char* what) const;
  void enable_kinds(bool graph_nodes);
  void disable_kinds() noexcept;
  void switch_callbacks(bool on) noexcept;
  void enable_callbacks(LaunchRings* rings, bool python_stacks);

  static void on_buffer_requested(uint8_t** data, size_t* bytes, size_t* most_records);
  static void on_buffer_completed(void* context, uint32_t stream, uint8_t* data, size_t bytes, size_t valid);

  trace::spool::Writer& writer_;
  cupti::Functions functions_;
  cupti::SubscriberHandle subscriber_ = nullptr;
  bool refused_ = false;
  ActivityBuffers buffers_;
  ActivityDecoder decoder_;
  GraphNodes graph_nodes_{functions_};
  bool traces_nodes_ = false;
  std::vector<launch_callbacks::TracedCall> traced_;
  std::vector<capture_watch::Call> captures_;     // watched in pauses too
  std::unordered_map<uint32_t, uint32_t> names_;  // domain << 16 | cbid -> string

  std::mutex flush_mutex_;  // of the three counters below
  uint64_t flush_ns_ = 0, flushes_ = 0, dropped_ = 0;

  uint64_t calls_at_last_buffer_ = 0, last_buffer_ns_ = 0, buffers_seen_ = 0;
  bool takeover_reported_ = false;
};

}  // namespace plab::recorder
