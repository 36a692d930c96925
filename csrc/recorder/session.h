// SPDX-License-Identifier: Apache-2.0
// One recording from start to stop: the only entry into the recorder.
//
//   start()   callbacks, activity records, NVTX and Python stacks on, consumer thread running
//   open_window(), pause()   a window begins, it ends and nothing is recorded until the next
//   halt()    everything is disabled, CUPTI is flushed and its records are written (takes no GIL)
//   finish()  statistics written, capture file closed
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

#include "recorder/cupti/client.h"
#include "recorder/cupti/launch_ring.h"
#include "recorder/nvtx/ranges.h"
#include "recorder/python/sampler.h"
#include "recorder/python/stack_writer.h"
#include "recorder/spool/writer.h"
#include "recorder/system/tick_clock.h"

namespace plab::recorder {

struct StartOptions {
  std::string spool_path;
  int spool_file = -1;  // that file, created and locked by the caller; -1: it is created here
  CuptiOptions cupti;
  bool gpu = true;
  bool python_stacks = true;
  bool nvtx = true;
  bool paused = false;            // begin in a pause, before the first window
  uint64_t sample_period_ns = 0;  // from one sample of the host's Python to the next; 0: none
  uint64_t most_bytes = 0;        // the capture file ends its last window before it grows larger; 0: no limit
  uint32_t flush_period_ms = 1000;  // what a killed process may lose
  uint32_t drain_period_ms = 20;    // how often the rings are emptied
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

  int duplicate_spool() noexcept { return writer_.duplicate(); }
  StartResult start(const StartOptions& options);  // GIL held
  std::string halt();                              // GIL released; "" or why nothing was halted
  // Returns the statistics, which a full disk may have kept out of the file. GIL held.
  std::map<std::string, std::string> finish(const std::map<std::string, std::string>& meta);

  // A recording that pauses consists of windows. All four take no GIL and return false if there is nothing to
  // do.
  bool warm_up();                  // CUPTI works, but what it delivers belongs to no window
  bool open_window(int64_t step);  // `step` is the first step in it, -1 if no step began it
  bool close_window();             // later launches belong to no window; earlier ones may still run
  bool pause();  // nothing is recorded, launches cost nothing extra; work the GPU has not finished is lost

  // Facts about the recording; a later value of a name replaces an earlier one.
  void add_meta(const std::map<std::string, std::string>& meta) noexcept;
  bool recording() const noexcept { return state_ == State::kRecording; }

  // Counts and overhead of the running (or the last) recording.
  std::map<std::string, std::string> statistics();

 private:
  enum class State { kIdle, kStarting, kRecording, kHalted, kForked };

  Session();
  void begin(const StartOptions& options, uint64_t start_ns, StartResult* result);
  void consume();
  void begin_window(uint64_t start_ns, int64_t step);
  void close_locked();
  void pause_locked();
  void end_window();
  void keep_below_limit();
  void check_clock();
  void drain() noexcept;
  void drain_launches();
  void drain_samples();
  void drain_host_events();
  void write_thread_names();
  bool in_window(uint64_t start_ns, uint64_t end_ns);
  const nvtx_ranges::Keep keep_ = [this](uint64_t start_ns, uint64_t end_ns) {
    return in_window(start_ns, end_ns);
  };
  static void before_fork();
  static void after_fork_parent();
  static void after_fork_child();
  void stop_consumer();

  // No exception thrown here may reach the program; it can only mean that memory ran out. It is counted, and the
  // work that was not done is tried again in the next round.
  template <class Work>
  void survive(Work work) noexcept {
    try {
      work();
    } catch (...) {
      failures_.fetch_add(1, std::memory_order_relaxed);
    }
  }

  std::mutex control_;   // start, halt and finish one at a time
  std::mutex counting_;  // what statistics() reads and the consumer writes; never held into CUPTI
  std::atomic<State> state_{State::kIdle};

  spool::Writer writer_;
  CuptiClient cupti_{writer_};
  LaunchRings rings_;
  StackWriter stacks_{writer_};
  PythonSampler sampler_;
  std::unordered_map<const void*, uint32_t> node_names_;
  std::vector<spool::ApiCall> calls_;
  std::vector<spool::Sync> syncs_;
  std::vector<spool::Sample> samples_;
  TickTimeline ticks_;

  std::thread consumer_;
  std::mutex consumer_mutex_;
  std::condition_variable wake_;
  bool stopping_ = false;
  std::atomic<uint64_t> failures_{0};
  uint32_t flush_period_ms_ = 1000, drain_period_ms_ = 20;
  spool::Clock last_clock_{};

  bool gpu_ = false, nvtx_ = false, python_ = false, sampling_ = false;
  std::atomic<bool> armed_{false}, open_{false};  // CUPTI works; in a window
  std::atomic<bool> launched_{false};             // the program has called CUDA
  bool limit_reached_ = false;
  uint64_t most_bytes_ = 0, start_ns_ = 0;

  std::mutex windows_mutex_;
  std::vector<spool::Window> windows_;  // all of them: a range may end long after many
  uint64_t recorded_calls_ = 0, calls_with_stack_ = 0, waits_ = 0, own_ns_ = 0;
};

}  // namespace plab::recorder
