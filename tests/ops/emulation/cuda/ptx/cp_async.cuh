// SPDX-License-Identifier: Apache-2.0
// In place of csrc/cuda/ptx/cp_async.cuh: a copy happens at the last moment at which it may, when its group
// is waited for. Who reads too early or overwrites what is still to be copied, computes with the wrong row.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <vector>

namespace plab::cuda::ptx {

struct Copy {
  void* shared;
  const void* global;
  unsigned bytes;
};
inline thread_local std::vector<Copy> started;
inline thread_local std::deque<std::vector<Copy>> committed;

inline void cp_async_cg(void* shared, const void* global) {
  if ((reinterpret_cast<std::uintptr_t>(shared) | reinterpret_cast<std::uintptr_t>(global)) % 16 != 0)
    std::abort();
  started.push_back({shared, global, 16});
}
inline void cp_async_cg_part(void* shared, const void* global, unsigned bytes) {
  cp_async_cg(shared, global);
  if (bytes > 16) std::abort();
  started.back().bytes = bytes;
}
inline void cp_async_commit_group() {
  committed.push_back(started);
  started.clear();
}
template <int kPending>
void cp_async_wait_group() {
  while (committed.size() > kPending) {
    for (const Copy& copy : committed.front()) {
      std::memset(copy.shared, 0, 16);
      std::memcpy(copy.shared, copy.global, copy.bytes);
    }
    committed.pop_front();
  }
}

}  // namespace plab::cuda::ptx
