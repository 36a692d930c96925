// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "cuda/ptx/wgmma.cuh"
#include "ops/attention/sm90/tma.cuh"

// Matrix products of one warpgroup by wgmma: they are asynchronous. This file issues them, the
// caller waits.
namespace plab::ops::attention::sm90 {

// The address of the step-th group of 16 columns of a K-major tile of kRows rows.
template <int kRows>
__device__ __forceinline__ uint32_t depth_step(uint32_t tile, int step) {
  return tile + uint32_t((step / 4) * kRows * 128 + (step % 4) * 32);
}

// A value that needs every register, for wgmma_wait_after: probabilities have no sign bits, so it is not
// negative.
template <int kRegs>
__device__ __forceinline__ float all_of(const float (&p)[kRegs]) {
  uint32_t bits = 0;
#pragma unroll
  for (int i = 0; i < kRegs; ++i) bits |= __float_as_uint(p[i]);
  return __uint_as_float(bits);
}

// D = A Bᵀ (kAdd: D += A Bᵀ) for this warpgroup's 64 rows of A; both tiles K-major. Issues one group, does
// not wait.
template <class Element, int kN, int kDim, int kRowsA, bool kAdd = false>
__device__ __forceinline__ void issue_nt(float (&d)[kN / 2], uint32_t a_rows, uint32_t b_tile) {
  const uint64_t a = ptx::descriptor_k_major(a_rows), b = ptx::descriptor_k_major(b_tile);
#pragma unroll
  for (int k = 0; k < kDim / 16; ++k)
    ptx::Wgmma<Element, kN, false, false>::ss(d, ptx::descriptor_step(a, depth_step<kRowsA>(0, k)),
                                              ptx::descriptor_step(b, depth_step<kN>(0, k)), kAdd || k > 0);
  ptx::wgmma_commit();
}

// D += A B (D = A B unless `add`) with A in registers (a score accumulator, packed) and B a tile whose kDepth
// rows are the product's depth.
template <class Element, int kDim, int kDepth>
__device__ __forceinline__ void issue_nn(float (&d)[kDim / 2], const uint32_t (&a)[kDepth / 16][4],
                                         uint32_t b_tile, bool add = true) {
  const uint64_t b = ptx::descriptor_mn_major(b_tile, kDepth * 128);
#pragma unroll
  for (int k = 0; k < kDepth / 16; ++k)
    ptx::Wgmma<Element, kDim, false, true>::rs(d, a[k], ptx::descriptor_step(b, k * 2048), add || k > 0);
  ptx::wgmma_commit();
}

}  // namespace plab::ops::attention::sm90
