// SPDX-License-Identifier: Apache-2.0
// A mutex that is free in a forked child, even if another thread held it in the parent.
#pragma once

#include <pthread.h>
#include <time.h>

#include <atomic>
#include <mutex>
#include <new>

namespace plab::recorder {

// For locks that are held briefly. A fork waits for the lock, so that the child finds consistent data. The wait has a
// limit, because a thread that forks inside a signal handler may itself hold the lock.
class ForkSafeMutex {
 public:
  void lock() { mutex_.lock(); }
  void unlock() noexcept { mutex_.unlock(); }

  void before_fork() noexcept {
    constexpr timespec kMillisecond{0, 1'000'000};
    for (int tries = 0; tries < kMostTries; ++tries) {
      if (mutex_.try_lock()) {
        forking_ = pthread_self();
        return;
      }
      nanosleep(&kMillisecond, nullptr);
    }
  }
  void after_fork_parent() noexcept {
    if (forking_.load() != pthread_self()) return;  // another thread forks as well, or none got it
    forking_ = pthread_t{};
    mutex_.unlock();
  }
  // False: the fork could not wait for it, and what it protects may be half changed.
  bool after_fork_child() noexcept {
    const bool held = forking_.load() == pthread_self();
    forking_ = pthread_t{};
    new (&mutex_) std::mutex;
    return held;
  }

 private:
  static constexpr int kMostTries = 100;
  std::mutex mutex_;
  std::atomic<pthread_t> forking_{};  // the thread that forks and holds it
};

}  // namespace plab::recorder
