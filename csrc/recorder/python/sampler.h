// SPDX-License-Identifier: Apache-2.0
// Samples the Python stack of every thread some hundred times a second: what the host did between CUDA calls.
//
// Another thread's frames can only be read while they do not run, that is, with the GIL. Waiting for the GIL while
// another thread is busy costs that thread a switch each time, and takes up to the interpreter's switch interval
// (5 ms). So the main thread takes the sample itself, as a pending call between two instructions. If it does not run
// the call soon, it is inside of C code, and the GIL is most likely free.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "recorder/spool/records.h"

namespace plab::recorder {

class ThreadStacks;

class PythonSampler {
 public:
  using Wanted = std::function<bool()>;

  PythonSampler();
  ~PythonSampler();

  // GIL held, python_stacks running. `wanted` is asked at every tick, on a thread of the sampler's.
  void start(uint64_t period_ns, Wanted wanted);
  // GIL released: a sample may be under way.
  void stop();
  // Thread: any. What was sampled since the last call.
  std::vector<spool::Sample> take();
  // GIL held. The calling thread is not sampled from here on, until the next start().
  static void leave_out_this_thread() noexcept;
  static bool leaves_out_this_thread() noexcept;
  // In a forked child, which has no sampler thread.
  static void after_fork_child() noexcept;

  struct Totals {
    uint64_t moments = 0;  // at which samples were taken
    uint64_t late = 0;     // ticks that passed while the GIL was not available
    uint64_t lost = 0;     // dropped: too many were waiting, or the thread's number is unknown
    uint64_t cost_ns = 0;  // with the GIL
  };
  Totals totals();

 private:
  struct Thread {
    std::unique_ptr<ThreadStacks> stacks;
    uint32_t number = 0;  // the system's
    uint64_t seen = 0;    // the moment
  };
  void run();
  void tick();
  void sample();  // GIL held
  static int serve(void*);

  uint64_t period_ns_ = 0;
  Wanted wanted_;
  std::thread thread_;
  std::mutex mutex_;  // never held while the GIL is waited for
  std::condition_variable wake_;
  bool stopping_ = false;
  std::vector<spool::Sample> samples_;
  Totals totals_;
  void* state_ = nullptr;                         // of our own thread
  std::atomic<bool> asked_{false};                // a sample is due: the thread that clears the flag takes it
  std::unordered_map<uint64_t, Thread> threads_;  // by PyThreadState_GetID; only with the GIL
};

}  // namespace plab::recorder
