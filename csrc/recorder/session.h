// SPDX-License-Identifier: Apache-2.0
// One recording from start to stop: the only entry into the recorder, and the only code that changes CUPTI's
// state.
//
//   start()   CUPTI subscribed, callbacks and activity kinds on, consumer thread running
//   halt()    everything off again, what CUPTI still held is fetched and written (takes no GIL)
//   finish()  stacks' tail and statistics written, capture file closed
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "recorder/activity_buffers.h"
#include "recorder/activity_decode.h"
#include "recorder/cupti_library.h"
#include "recorder/launch_callbacks.h"
#include "recorder/launch_ring.h"
#include "recorder/stack_writer.h"
#include "trace/spool.h"

namespace plab::recorder {

struct StartOptions {
  std::string spool_path;
  std::string cupti_override;
  std::vector<std::string> cupti_candidates;
  bool gpu = true;
  bool python_stacks = true;
  bool nvtx = true;
  uint32_t buffer_bytes = 4u << 20;
  uint32_t buffers_ahead = 4;
  uint32_t buffers_most = 64;
  uint32_t flush_period_ms = 1000;
};

struct StartResult {
  bool started = false;
  bool gpu = false;
  std::string error;         // not started: one sentence
  std::string gpu_reason;    // started without the GPU: one sentence
  std::string stack_reason;  // started without Python stacks: one sentence
};

class Session {
 public:
  static Session& instance();

  StartResult start(const StartOptions& options);  // GIL held
  std::string halt();                              // GIL released; "" or why nothing was halted
  // Returns the statistics, which a full disk may have kept out of the file.
  std::map<std::string, std::string> finish(const std::map<std::string, std::string>& meta);
  // Facts about the recording; a later value of a name replaces an earlier one.
  void add_meta(const std::map<std::string, std::string>& meta) noexcept;
  bool recording() const noexcept { return state_ == State::kRecording; }

  // Names and values about the running recording, for status() and for the file.
  std::map<std::string, std::string> statistics();

 private:
  enum class State { kIdle, kStarting, kRecording, kHalted, kForked };

  Session();
  std::string subscribe();
  std::string start_gpu(const StartOptions& options);
  void stop_gpu() noexcept;
  void consume();
  void drain();
  void drain_launches();
  void drain_activity();
  void flush(bool forced) noexcept;
  void check_takeover(uint64_t now);
  void write_thread_names();
  std::string explain(cupti::Result result, const char* what) const;

  static void after_fork_child();
  static void on_buffer_requested(uint8_t** data, size_t* bytes, size_t* most_records);
  static void on_buffer_completed(void* context, uint32_t stream, uint8_t* data, size_t bytes, size_t valid);

  std::mutex control_;   // start, halt and finish one at a time
  std::mutex counting_;  // what statistics() reads and the consumer writes; never held into CUPTI
  std::atomic<State> state_{State::kIdle};
  cupti::Functions cupti_;
  cupti::SubscriberHandle subscriber_ = nullptr;
  std::vector<launch_callbacks::TracedCall> traced_;
  std::unordered_map<uint32_t, uint32_t> call_names_;  // domain << 16 | cbid -> string
  std::unordered_map<const void*, uint32_t> node_names_;

  trace::spool::Writer writer_;
  LaunchRings rings_;
  ActivityBuffers buffers_;
  ActivityDecoder decoder_{cupti_, writer_};
  StackWriter stacks_{writer_};
  std::vector<trace::spool::ApiCall> calls_;

  std::thread consumer_;
  std::mutex consumer_mutex_;
  std::condition_variable wake_;
  bool stopping_ = false;
  uint32_t flush_period_ms_ = 1000;

  bool gpu_ = false, nvtx_ = false, python_ = false, subscriber_refused_ = false;
  uint64_t start_ns_ = 0, flush_ns_ = 0, flushes_ = 0;
  uint64_t recorded_calls_ = 0, calls_with_stack_ = 0, cupti_dropped_ = 0;
  uint64_t calls_at_last_buffer_ = 0, last_buffer_ns_ = 0, buffers_seen_ = 0;
  bool takeover_reported_ = false;
};

}  // namespace plab::recorder
