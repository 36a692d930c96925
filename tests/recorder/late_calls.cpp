// SPDX-License-Identifier: Apache-2.0
// Threads with a thread-local of the program's that is older than ours: its destructor makes a call when the
// recorder's thread-locals are gone. And a C library whose malloc() a test can make slow or fail (preloaded).
#include <pthread.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <thread>
#include <vector>

namespace {

using Act = void (*)(const char*);  // a range's name, where it takes one

std::atomic<int> ended{0};
std::atomic<bool> go{false};
std::vector<std::thread> threads;

struct Late {
  Act act = nullptr;
  ~Late() {
    if (!act) return;
    ++ended;
    while (!go) usleep(1000);
    act("late");
    act("late");
  }
};
thread_local Late late;

std::atomic<const char*> starved{nullptr};  // the thread of this name gets no memory
std::atomic<int> refused{0};
std::atomic<unsigned> hold_us{0};
std::atomic<bool> holding{false};
// Which of this thread's next mallocs is held, counted from 1; 0: none.
__attribute__((tls_model("initial-exec"))) thread_local int hold_at = 0;

}  // namespace

#define SHOWN extern "C" __attribute__((visibility("default")))

SHOWN void late_start(int count, Act first, Act last) {
  for (int i = 0; i < count; ++i) {
    threads.emplace_back([first, last] {
      late.act = last;
      first("early");
    });
  }
}
SHOWN int late_ended() { return ended; }
SHOWN void late_join() {
  go = true;
  for (auto& thread : threads) thread.join();
  threads.clear();
}

#ifdef WITH_MALLOC
SHOWN void starve(const char* thread) { starved = thread ? strdup(thread) : nullptr; }
SHOWN int times_refused() { return refused; }
// The calling thread stays in its malloc number `number` from now on for so long, then in no other.
SHOWN void hold(int number, unsigned microseconds) {
  holding = false;
  hold_us = microseconds;
  hold_at = number;
}
SHOWN int is_holding() { return holding; }

extern "C" void* __libc_malloc(size_t);
SHOWN void* malloc(size_t bytes) {
  if (hold_at > 0 && --hold_at == 0) {
    holding = true;
    usleep(hold_us);
  }
  if (const char* name = starved) {
    char mine[16] = "";
    prctl(PR_GET_NAME, mine);
    if (std::strcmp(mine, name) == 0) {
      ++refused;
      errno = ENOMEM;
      return nullptr;
    }
  }
  return __libc_malloc(bytes);
}
#endif
