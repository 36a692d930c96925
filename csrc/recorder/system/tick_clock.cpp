// SPDX-License-Identifier: Apache-2.0
#include "recorder/system/tick_clock.h"

#include <cpuid.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>

namespace plab::recorder {
namespace {

constexpr int64_t kSpacingNs = 100'000'000;
constexpr size_t kMostKept = 1 << 14;       // half an hour at that spacing: no CUDA call lasts longer
constexpr int64_t kShortestNs = 5'000'000;  // over a shorter time the slope is dominated by the reading error
constexpr uint64_t kFirstApartNs = 200'000;  // but a start should not wait
constexpr double kStepNs = 1'000'000;        // no drift: the wall clock was set, or the counter was
constexpr int kTries = 5;

uint64_t ticks_for(int readings, uint64_t (*read)()) noexcept {
  const uint64_t begin = __rdtsc();
  for (int i = 0; i < readings; ++i) read();
  return __rdtsc() - begin;
}

bool kernel_trusts_counter() noexcept {
  FILE* file = std::fopen("/sys/devices/system/clocksource/clocksource0/current_clocksource", "r");
  if (!file) return true;  // a container without /sys: only the processor's own flags are available
  char name[32] = "";
  const bool read = std::fgets(name, sizeof name, file) != nullptr;
  std::fclose(file);
  // kvm-clock is the same counter, scaled by the hypervisor.
  return read && (std::strncmp(name, "tsc", 3) == 0 || std::strncmp(name, "kvm-clock", 9) == 0);
}

}  // namespace

namespace tick_clock {

const char* unusable() noexcept {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid(0x80000007, &a, &b, &c, &d) || !(d & 1u << 8))
    return "the processor has no invariant counter";
  if (!kernel_trusts_counter()) return "the kernel does not keep its own time by the processor's counter";
  constexpr int kReadings = 64;
  const auto counter = [] { return static_cast<uint64_t>(__rdtsc()); };
  const auto system = [] { return now_ns(); };
  ticks_for(kReadings, system);  // the first ones are slow
  if (ticks_for(kReadings, counter) >= ticks_for(kReadings, system))
    return "reading the counter is slow here";
  return "";
}

}  // namespace tick_clock

// Taken between two readings of the counter, and repeated if they are far apart.
TickTimeline::Anchor TickTimeline::read_both() {
  Anchor best{};
  uint64_t narrowest = UINT64_MAX;
  for (int i = 0; i < kTries; ++i) {
    const uint64_t before = tick_clock::now();
    const uint64_t ns = now_ns();
    const uint64_t after = tick_clock::now();
    if (after - before >= narrowest) continue;
    narrowest = after - before;
    best = {before + narrowest / 2, ns};
  }
  return best;
}

void TickTimeline::start(const char* no_counter) {
  no_counter_ = no_counter;
  tick_clock::counting = no_counter_[0] == '\0';
  ns_per_tick_ = 1;
  rate_is_old_ = false;
  kept_.clear();
  if (!tick_clock::counting) return;
  kept_.push_back(read_());
  const uint64_t begin = monotonic_ns();
  while (monotonic_ns() - begin < kFirstApartNs) _mm_pause();
  newest_ = read_();
  ns_per_tick_ =
      static_cast<double>(newest_.ns - kept_[0].ns) / static_cast<double>(newest_.tick - kept_[0].tick);
}

std::string TickTimeline::state() const {
  return tick_clock::counting ? "processor counter" : std::string("system clock: ") + no_counter_;
}

void TickTimeline::anchor() {
  if (!tick_clock::counting) return;
  const Anchor fresh = read_();
  const auto by_clock = static_cast<int64_t>(fresh.ns - newest_.ns);
  const auto ticks = static_cast<int64_t>(fresh.tick - newest_.tick);
  const bool forwards = ticks > 0 && by_clock >= 0;
  if (forwards && rate_is_old_) {
    if (by_clock < kShortestNs) return;
    rate_is_old_ = false;
    kept_ = {newest_};
    newest_ = fresh;
    ns_per_tick_ = static_cast<double>(by_clock) / static_cast<double>(ticks);
    return;
  }
  const double by_ticks = static_cast<double>(ticks) * ns_per_tick_;
  if (!forwards || std::abs(static_cast<double>(by_clock) - by_ticks) > kStepNs) {
    begin_anew(fresh);
    return;
  }
  if (by_clock < kShortestNs) return;
  if (static_cast<int64_t>(newest_.ns - kept_.back().ns) >= kSpacingNs) {
    if (kept_.size() == kMostKept) kept_.erase(kept_.begin(), kept_.begin() + kMostKept / 2);
    kept_.push_back(newest_);
  }
  newest_ = fresh;
  const Anchor& last = kept_.back();
  ns_per_tick_ = static_cast<double>(fresh.ns - last.ns) / static_cast<double>(fresh.tick - last.tick);
}

// The wall clock was set, or the counter changed: a virtual machine has moved to a host with another rate.
// Interpolating across that would make earlier calls appear longer. So they keep their distance from now, and the
// next reading determines the rate.
void TickTimeline::begin_anew(const Anchor& fresh) {
  const auto before = static_cast<uint64_t>(static_cast<double>(kShortestNs) / ns_per_tick_);
  kept_ = {{fresh.tick - before, fresh.ns - static_cast<uint64_t>(kShortestNs)}};
  newest_ = fresh;
  rate_is_old_ = true;
}

uint64_t TickTimeline::between(const Anchor& from, const Anchor& to, uint64_t tick) noexcept {
  const double slope = static_cast<double>(to.ns - from.ns) / static_cast<double>(to.tick - from.tick);
  const auto distance = static_cast<int64_t>(tick - to.tick);  // exact: a double could not hold `tick`
  return to.ns + static_cast<uint64_t>(std::llround(static_cast<double>(distance) * slope));
}

uint64_t TickTimeline::nanoseconds(uint64_t tick) const noexcept {
  if (!tick_clock::counting) return tick;
  if (tick >= kept_.back().tick || kept_.size() == 1) return between(kept_.back(), newest_, tick);
  const auto after =
      std::upper_bound(kept_.begin() + 1, kept_.end() - 1, tick,
                       [](uint64_t wanted, const Anchor& anchor) { return wanted < anchor.tick; });
  return between(*(after - 1), *after, tick);
}

}  // namespace plab::recorder
