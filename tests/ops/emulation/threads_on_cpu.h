// SPDX-License-Identifier: Apache-2.0
// The threads of a cluster, which take turns on one thread of the CPU: each runs until it waits for others. So a
// barrier costs a change of stacks, not a sleep of the operating system, and what happens is the same in each run.
// A warp, and then a block, goes as far ahead of the others as it can, and every other round goes backwards: who fails
// to wait for others meets them too early. The thread sanitizer sees threads, and what orders them is barriers alone, not
// the turns.
#pragma once

#include <sys/mman.h>
#include <ucontext.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#endif

namespace on_cpu {

struct Thread {
  unsigned number, index, rank, block;  // number: of the cluster; index: of its block
  bool made, ended, went_on;            // went_on: since the scheduler last looked
  void* sanitized;
  ucontext_t context;
};
inline ucontext_t scheduler;
#ifdef __SANITIZE_THREAD__
inline void* const sanitized_scheduler = __tsan_get_current_fiber();
#else
inline void* const sanitized_scheduler = nullptr;
#endif
inline const std::function<void()>* program;
inline unsigned launches = 0;

/// Stacks begin at multiples of their size, with the thread itself, so that who runs is found without a variable
/// that all would share.
constexpr std::size_t kStack = 1 << 18, kGuard = 4096, kMostThreads = 2048;
inline Thread& thread(unsigned number) {
  static char* const stacks = [] {
    const std::size_t bytes = kStack * (kMostThreads + 1);
    void* const room =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED) std::abort();
    char* const first =
        reinterpret_cast<char*>((reinterpret_cast<std::uintptr_t>(room) + kStack - 1) / kStack * kStack);
    for (std::size_t i = 0; i < kMostThreads; ++i)  // whose stack is full ends the program
      if (mprotect(first + i * kStack + kGuard, kGuard, PROT_NONE) != 0) std::abort();
    return first;
  }();
  if (number >= kMostThreads) std::abort();
  return *reinterpret_cast<Thread*>(stacks + number * kStack);
}
/// The thread that runs.
inline Thread& now() {
  return *reinterpret_cast<Thread*>(reinterpret_cast<std::uintptr_t>(__builtin_frame_address(0)) & -kStack);
}

/// One for each thread, new in each launch.
template <class T>
class OfThread {
 public:
  T& mine() {
    One& one = all_[now().number];
    if (one.launch != launches) one = {launches, {}};
    return one.value;
  }

 private:
  struct One {
    unsigned launch = 0;
    T value{};
  };
  std::vector<One> all_ = std::vector<One>(kMostThreads);
};

// What orders the threads of a launch after all that was done before it, and what comes then after them.
inline void before([[maybe_unused]] void* what) {
#ifdef __SANITIZE_THREAD__
  __tsan_release(what);
#endif
}
inline void after([[maybe_unused]] void* what) {
#ifdef __SANITIZE_THREAD__
  __tsan_acquire(what);
#endif
}

inline void change(ucontext_t& from, ucontext_t& to, [[maybe_unused]] void* sanitized) {
#ifdef __SANITIZE_THREAD__
  __tsan_switch_to_fiber(sanitized, __tsan_switch_to_fiber_no_sync);  // orders nothing
#endif
  swapcontext(&from, &to);
}
inline void yield() { change(now().context, scheduler, sanitized_scheduler); }

/// Until `ready` says so.
template <class Ready>
void wait(Ready&& ready) {
  now().went_on = true;
  while (!ready()) yield();
  now().went_on = true;
}

inline char begins, ends;
/// What a thread does, launch after launch: it costs the sanitizer much to make one.
inline void turn() {
  for (;;) {
    after(&begins);
    (*program)();
    now().ended = now().went_on = true;
    before(&ends);
    yield();
  }
}
inline void make(Thread& one) {
  getcontext(&one.context);
  one.context.uc_stack = {.ss_sp = reinterpret_cast<char*>(&one) + 2 * kGuard,
                          .ss_size = kStack - 2 * kGuard};
  makecontext(&one.context, turn, 0);
#ifdef __SANITIZE_THREAD__
  one.sanitized = __tsan_create_fiber(0);
#endif
  one.made = true;
}

/// Lets a warp go on until it waits for others. Whether it went on.
__attribute__((no_sanitize_thread)) inline bool warp_goes_on(unsigned first, unsigned& running) {
  for (bool any = false, backwards = false;; any = true, backwards = !backwards) {
    bool went_on = false;
    for (unsigned i = 0; i < 32; ++i) {
      Thread& one = thread(first + (backwards ? 31 - i : i));
      if (one.ended) continue;
      change(scheduler, one.context, one.sanitized);
      went_on = went_on || one.went_on;
      one.went_on = false;
      running -= one.ended;
    }
    if (!went_on) return any;
  }
}
/// The same for a block, whose other warps do not go on before one waits: who does not wait for them shows it.
inline bool block_goes_on(unsigned first, unsigned threads, bool backwards, unsigned& running) {
  for (bool any = false;; any = true) {
    bool went_on = false;
    for (unsigned w = 0; w < threads; w += 32)
      went_on |= warp_goes_on(first + (backwards ? threads - 32 - w : w), running);
    if (!went_on) return any;
  }
}

/// Runs `kernel` once in each thread of `blocks` blocks.
inline void run(unsigned blocks, unsigned threads, const std::function<void()>& kernel) {
  ++launches;
  program = &kernel;
  unsigned running = blocks * threads;
  for (unsigned i = 0; i < blocks * threads; ++i) {
    Thread& one = thread(i);
    if (!one.made) make(one);
    one.number = i, one.index = i % threads, one.rank = i / threads, one.ended = false;
  }
  before(&begins);
  for (bool backwards = false; running > 0; backwards = !backwards) {
    bool went_on = false;
    for (unsigned b = 0; b < blocks; ++b)
      went_on |= block_goes_on((backwards ? blocks - 1 - b : b) * threads, threads, backwards, running);
    if (went_on) continue;
    std::fprintf(stderr, "%u threads wait for one another\n", running);
    std::abort();
  }
  after(&ends);
}

}  // namespace on_cpu
