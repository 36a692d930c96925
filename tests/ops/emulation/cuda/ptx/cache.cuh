// SPDX-License-Identifier: Apache-2.0
// In place of csrc/cuda/ptx/cache.cuh. An address that is no multiple of 16 would be a fault on the GPU, and
// is one here.
#pragma once

#include <cstdint>
#include <cstdlib>

namespace plab::cuda::ptx {

inline uint4 ld_global_nc_no_allocate(const uint4* address) {
  if (reinterpret_cast<std::uintptr_t>(address) % 16 != 0) std::abort();
  return *address;
}
inline void st_global_no_allocate(uint4* address, uint4 v) {
  if (reinterpret_cast<std::uintptr_t>(address) % 16 != 0) std::abort();
  *address = v;
}
inline void prefetch_l2(const void* address, int bytes) {
  if ((reinterpret_cast<std::uintptr_t>(address) | static_cast<unsigned>(bytes)) % 16 != 0) std::abort();
}

}  // namespace plab::cuda::ptx
