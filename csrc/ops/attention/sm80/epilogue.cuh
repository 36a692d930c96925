// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "ops/attention/sm80/tiles.cuh"

// Stores accumulators to global memory through a tile in shared memory, so that rows are written 16 bytes at a
// time.
namespace plab::ops::attention::sm80 {

// Puts a warp's 16 accumulator rows (times factor[h]) as 16-bit elements into rows row0 .. row0 + 15 of a
// tile, from a column on.
template <class Element, int kCols, int kRegs>
__device__ __forceinline__ void stage_rows(uint32_t smem, int row0, const float (&acc)[kRegs],
                                           const float (&factor)[2], int column0 = 0) {
  const int lane = int(threadIdx.x & 31);
#pragma unroll
  for (int i = 0; i < kRegs; i += 2) {
    const int h = i / 2 % 2, row = row0 + lane / 4 + 8 * h;
    const uint32_t pair = ptx::pack_pair<Element>(acc[i] * factor[h], acc[i + 1] * factor[h]);
    ptx::store_shared(smem + chunk_bytes<kCols>(row, column0 / 8 + i / 4) + 4 * (lane % 4), pair);
  }
}

// Shared to global memory, 16 bytes at a time, within the valid rows and columns. Call after a barrier.
template <int kRows, int kCols, int kThreads, class Element>
__device__ __forceinline__ void store_tile(Element* global, int64_t stride, uint32_t smem, int rows_valid,
                                           int cols_valid) {
  constexpr int kChunks = kCols / 8;
#pragma unroll 4
  for (int i = 0; i < kRows * kChunks / kThreads; ++i) {
    const int index = i * kThreads + int(threadIdx.x), row = index / kChunks, chunk = index % kChunks;
    if (row < rows_valid && chunk * 8 < cols_valid)
      *reinterpret_cast<uint4*>(global + row * stride + chunk * 8) =
          ptx::load_shared_16(smem + chunk_bytes<kCols>(row, chunk));
  }
}

}  // namespace plab::ops::attention::sm80
