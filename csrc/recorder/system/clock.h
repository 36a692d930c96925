// SPDX-License-Identifier: Apache-2.0
// The one clock of a recording: CLOCK_REALTIME, which is what CUPTI stamps its records with.
#pragma once

#include <time.h>

#include <cstdint>

namespace plab::recorder {

inline uint64_t now_ns() noexcept {
  timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(t.tv_nsec);
}

inline uint64_t monotonic_ns() noexcept {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(t.tv_nsec);
}

}  // namespace plab::recorder
