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
inline on_cpu::OfThread<std::vector<Copy>> started;
inline on_cpu::OfThread<std::deque<std::vector<Copy>>> committed;

inline void cp_async_cg(void* shared, const void* global) {
  if ((reinterpret_cast<std::uintptr_t>(shared) | reinterpret_cast<std::uintptr_t>(global)) % 16 != 0)
    std::abort();
  started.mine().push_back({shared, global, 16});
}
inline void cp_async_cg_part(void* shared, const void* global, unsigned bytes) {
  cp_async_cg(shared, global);
  if (bytes > 16) std::abort();
  started.mine().back().bytes = bytes;
}
inline void cp_async_commit_group() {
  committed.mine().push_back(std::move(started.mine()));
  started.mine().clear();
}
template <int kPending>
void cp_async_wait_group() {
  auto& groups = committed.mine();
  while (groups.size() > kPending) {
    for (const Copy& copy : groups.front()) {
      std::memset(copy.shared, 0, 16);
      std::memcpy(copy.shared, copy.global, copy.bytes);
    }
    groups.pop_front();
  }
}

}  // namespace plab::cuda::ptx
