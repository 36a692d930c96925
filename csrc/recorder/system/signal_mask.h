// SPDX-License-Identifier: Apache-2.0
// Threads that start during the lifetime of such an object receive none of the program's signals.
//
// A thread inherits the signal mask of the thread that starts it. So this object surrounds everything that may start
// a thread, CUPTI's workers included. Otherwise a program that blocks SIGTERM on its own threads would be killed
// through one of ours.
#pragma once

#include <pthread.h>
#include <signal.h>

namespace plab::recorder {

class SignalsBlocked {
 public:
  SignalsBlocked() noexcept {
    sigset_t all;
    sigfillset(&all);
    // A fault belongs to the thread that made it; blocked, the program's handler would not see it.
    for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS}) sigdelset(&all, fault);
    blocked_ = pthread_sigmask(SIG_BLOCK, &all, &before_) == 0;
  }
  ~SignalsBlocked() {
    if (blocked_) pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
  bool blocked_ = false;
};

}  // namespace plab::recorder
