// SPDX-License-Identifier: Apache-2.0
// In place of csrc/cuda/ptx/mbarrier.cuh: barriers that count arrivals and bytes, by their shared addresses.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <map>
#include <mutex>

namespace plab::cuda::ptx {

struct Mbarrier {
  std::mutex mutex;
  std::int64_t expected = 0, arrivals = 0, bytes = 0;  // of this phase: still to arrive
  unsigned phase = 0;

  void change(std::int64_t fewer_arrivals, std::int64_t more_bytes) {
    const std::lock_guard lock(mutex);
    arrivals -= fewer_arrivals, bytes += more_bytes;
    if (arrivals < 0) std::abort();
    if (arrivals > 0 || bytes != 0) return;
    arrivals = expected, ++phase;
  }
};
inline std::mutex mbarriers_mutex;
inline std::map<std::uint32_t, Mbarrier> mbarriers;
inline Mbarrier& mbarrier_at(std::uint32_t address) {
  if (address % 8 != 0) std::abort();
  const std::lock_guard lock(mbarriers_mutex);
  return mbarriers[address];
}

inline void mbarrier_init(std::uint32_t barrier, std::uint32_t arrivals) {
  Mbarrier& it = mbarrier_at(barrier);
  const std::lock_guard lock(it.mutex);
  it.expected = it.arrivals = arrivals, it.bytes = 0, it.phase = 0;
}
inline void fence_barrier_init() {}
inline void fence_proxy_async() {}
inline void mbarrier_arrive(std::uint32_t barrier) { mbarrier_at(barrier).change(1, 0); }
inline void mbarrier_arrive_expect_tx(std::uint32_t barrier, std::uint32_t bytes) {
  mbarrier_at(barrier).change(1, bytes);
}
inline void mbarrier_wait(std::uint32_t barrier, std::uint32_t parity) {
  Mbarrier& it = mbarrier_at(barrier);
  on_cpu::wait([&] {
    const std::lock_guard lock(it.mutex);
    return it.phase % 2 != parity;
  });
#ifdef WHOLE_WARPS_WAIT  // and go on together: no lane tests the barrier after another has given the buffer back
  __syncwarp();
#endif
}

}  // namespace plab::cuda::ptx
