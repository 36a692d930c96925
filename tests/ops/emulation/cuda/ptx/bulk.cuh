// SPDX-License-Identifier: Apache-2.0
// In place of csrc/cuda/ptx/bulk.cuh: a copy happens at once, in the thread that starts it, and then counts its
// bytes on the barrier.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "cuda/ptx/mbarrier.cuh"

namespace plab::cuda::ptx {

constexpr bool kHasBulkCopies = true;

inline void bulk_load(std::uint32_t shared, const void* global, std::uint32_t bytes, std::uint32_t barrier) {
  if ((shared | reinterpret_cast<std::uintptr_t>(global) | bytes) % 16 != 0 || bytes == 0) std::abort();
  std::memcpy(on_cpu::of_dynamic_address(shared), global, bytes);
  mbarrier_at(barrier).change(0, -std::int64_t{bytes});
}

}  // namespace plab::cuda::ptx
