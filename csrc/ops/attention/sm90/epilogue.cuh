// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "ops/attention/sm90/tma.cuh"
#include "ops/attention/softmax.cuh"

// Stores accumulators to global memory through a tile in shared memory, so that rows are written 16 bytes at a
// time.
namespace plab::ops::attention::sm90 {

// Puts this warpgroup's 64 accumulator rows (times factor[h]) as 16-bit elements into a tile of kRows rows.
template <class Element, int kRows, int kDim>
__device__ __forceinline__ void stage_rows(uint32_t tile, int row0, const float (&acc)[kDim / 2],
                                           const float (&factor)[2]) {
  const int lane = int(threadIdx.x & 31), warp = int(threadIdx.x % kWarpgroup / 32);
#pragma unroll
  for (int i = 0; i < kDim / 2; i += 2) {
    const int h = i / 2 % 2, row = row0 + 16 * warp + lane / 4 + 8 * h, piece = i / 4;
    const uint32_t at =
        tile + (piece / 8) * kRows * 128 + row * 128 + (((piece % 8) ^ (row & 7)) << 4) + 4 * (lane % 4);
    ptx::store_shared(at, ptx::pack_pair<Element>(acc[i] * factor[h], acc[i + 1] * factor[h]));
  }
}

// 64 rows from shared to global memory by one warpgroup, within the valid rows and columns.
template <int kRows, int kDim, class Element>
__device__ __forceinline__ void store_rows(Element* global, int64_t stride, uint32_t tile, int row0,
                                           int rows_valid, int cols_valid) {
  constexpr int kPieces = kDim / 8, kStep = kWarpgroup / kPieces;
  const int piece = int(threadIdx.x) % kPieces, first = int(threadIdx.x % kWarpgroup) / kPieces;
  if (piece * 8 >= cols_valid || first >= kStep) return;
#pragma unroll 4
  for (int row = row0 + first; row < row0 + 64; row += kStep) {
    if (row >= rows_valid) return;
    const uint32_t at = tile + (piece / 8) * kRows * 128 + row * 128 + (((piece % 8) ^ (row & 7)) << 4);
    *reinterpret_cast<uint4*>(global + row * stride + piece * 8) = ptx::load_shared_16(at);
  }
}

}  // namespace plab::ops::attention::sm90
