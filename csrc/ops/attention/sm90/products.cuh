// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/attention/sm90/tiles.cuh"

// The two products of the forward. A descriptor is made once per tile and stepped by adding to it: addresses
// lie in its low bits, in units of 16 bytes, and no tile reaches the end of that field. Made anew for every
// step, it costs six instructions of the uniform pipe per wgmma, which then waits for them.
namespace plab::ops::attention::sm90 {

// S = A Bᵀ for this warpgroup's 64 rows of A; both tiles K-major. Issues one group, does not wait.
template <class Element, int kN, int kDim, int kRowsA>
__device__ __forceinline__ void issue_scores(float (&s)[kN / 2], uint32_t a_rows, uint32_t b_tile) {
  const uint64_t a = ptx::descriptor_k_major(a_rows), b = ptx::descriptor_k_major(b_tile);
#pragma unroll
  for (int k = 0; k < kDim / 16; ++k)
    ptx::Wgmma<Element, kN, false, false>::ss(s, a + (depth_step<kRowsA>(0, k) >> 4),
                                              b + (depth_step<kN>(0, k) >> 4), k > 0);
  ptx::wgmma_commit();
}

// O += P V with P in registers (a score accumulator, packed) and V a tile whose kDepth rows are the product's
// depth.
template <class Element, int kDim, int kDepth>
__device__ __forceinline__ void issue_output(float (&o)[kDim / 2], const uint32_t (&p)[kDepth / 16][4],
                                             uint32_t v_tile) {
  const uint64_t v = ptx::descriptor_mn_major(v_tile, kDepth * 128);
#pragma unroll
  for (int k = 0; k < kDepth / 16; ++k)
    ptx::Wgmma<Element, kDim, false, true>::rs(o, p[k], v + k * (2048 >> 4), 1);
  ptx::wgmma_commit();
}

}  // namespace plab::ops::attention::sm90
