// SPDX-License-Identifier: Apache-2.0
// The processor's time stamp counter as the clock of calls. A reading costs a third of a system clock reading, and
// each launch takes four. Ticks become CLOCK_REALTIME nanoseconds afterwards, by interpolating between moments at which
// both were read.
#pragma once

#include <x86intrin.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "recorder/system/clock.h"

namespace plab::recorder {

namespace tick_clock {

// Whether ticks are the counter's; otherwise they are CLOCK_REALTIME nanoseconds. Does not change while a
// recording runs.
inline std::atomic<bool> counting{false};

inline uint64_t now() noexcept { return counting.load(std::memory_order_relaxed) ? __rdtsc() : now_ns(); }

// "", or why the counter cannot be used: it stops or changes its rate on this processor, the kernel
// does not trust it, or reading it is trapped.
const char* unusable() noexcept;

}  // namespace tick_clock

// Converts ticks. Not synchronised: only the consumer uses it.
class TickTimeline {
 public:
  struct Anchor {
    uint64_t tick, ns;
  };
  using ReadBoth = Anchor (*)();
  // The reading of the counter that belongs to the system's.
  static Anchor read_both();

  explicit TickTimeline(ReadBoth read = &read_both) : read_(read) {}

  // Decides tick_clock::counting; no call may be recorded yet. `no_counter` says why the counter cannot be
  // used.
  void start(const char* no_counter = tick_clock::unusable());
  void anchor();  // reads both clocks; worth calling whenever ticks are about to be converted

  uint64_t nanoseconds(uint64_t tick) const noexcept;
  double ns_per_tick() const noexcept { return ns_per_tick_; }
  // Where the times of calls come from, for the file.
  std::string state() const;

 private:
  void begin_anew(const Anchor& fresh);
  static uint64_t between(const Anchor& from, const Anchor& to, uint64_t tick) noexcept;

  std::vector<Anchor> kept_;  // in order and well apart: a call may have begun long ago
  Anchor newest_{};
  double ns_per_tick_ = 1;
  bool rate_is_old_ = false;  // of the time before a step
  ReadBoth read_;
  const char* no_counter_ = "";
};

}  // namespace plab::recorder
