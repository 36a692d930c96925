// SPDX-License-Identifier: Apache-2.0
// In place of csrc/cuda/ptx/dynamic_shared.cuh: each block of a cluster has its own.
#pragma once

#include <cstring>

namespace plab::cuda::ptx {

inline float4* dynamic_shared() { return on_cpu::dynamic_shared[on_cpu::rank()]; }
/// NaN everywhere.
inline void clear_dynamic_shared() {
  std::memset(on_cpu::dynamic_shared, 0xff, sizeof on_cpu::dynamic_shared);
}

}  // namespace plab::cuda::ptx
