// SPDX-License-Identifier: Apache-2.0
#include "recorder/python/host_events.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <mutex>
#include <utility>

#include "recorder/python/sampler.h"
#include "recorder/python/stacks.h"
#include "recorder/system/clock.h"

namespace plab::recorder::host_events {
namespace {

constexpr uint64_t kShortestNs = 1'000'000;
constexpr size_t kMostWaiting = 1 << 16;  // more: the consumer has ended, or is stuck

std::atomic<bool> on{false};
std::array<uint64_t, 2> began_ns{};  // by kind; only with the GIL
std::mutex mutex;
std::vector<Event>& waiting() {
  static auto* const events =
      new std::vector<Event>;  // never destroyed: a collection may come at the very end
  return *events;
}

}  // namespace

void start() noexcept {
  began_ns = {};
  on = true;
}

void stop() noexcept { on = false; }

void began(Kind kind) noexcept {
  if (on) began_ns[static_cast<size_t>(kind)] = now_ns();
}

void ended(Kind kind, std::string text) {
  const uint64_t start_ns = std::exchange(began_ns[static_cast<size_t>(kind)], 0);
  if (!on || !start_ns || PythonSampler::leaves_out_this_thread())
    return;  // what we do ourselves is no event
  const uint64_t end_ns = now_ns();
  if (end_ns < start_ns + kShortestNs) return;
  const auto thread = static_cast<uint32_t>(syscall(SYS_gettid));
  const uint32_t stack = python_stacks::capture();
  const std::lock_guard lock(mutex);
  if (waiting().size() < kMostWaiting)
    waiting().push_back({start_ns, end_ns, thread, stack, std::move(text)});
}

std::vector<Event> take() {
  const std::lock_guard lock(mutex);
  return std::exchange(waiting(), {});
}

}  // namespace plab::recorder::host_events
