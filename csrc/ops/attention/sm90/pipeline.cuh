// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

// What warps of different roles agree on: warpgroups, rings of buffers, values that a whole warp shares.
namespace plab::ops::attention::sm90 {

constexpr int kWarpgroup = 128;

// A ring of kStages buffers: which buffer comes next, and the parity its barriers will complete with.
template <int kStages>
struct Ring {
  int stage = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// The same value in every lane of the warp, as the compiler then knows: loop counts, buffer numbers and
// descriptors that depend on it stay in uniform registers, where wgmma reads them.
__device__ __forceinline__ int uniform(int x) { return __shfl_sync(~0u, x, 0); }

}  // namespace plab::ops::attention::sm90
