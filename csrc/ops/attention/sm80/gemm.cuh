// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "cuda/ptx/mma_sync.cuh"
#include "ops/attention/sm80/tiles.cuh"

// More GEMMs of one warp (warp_gemm.cuh): operands that are packed, in shared memory, or transposed.
namespace plab::ops::attention::sm80 {

// acc[16 x kN] += A[16 x 16 kSteps] B per band: A is packed accumulators, B the kN columns from `column` on
// of rows in shared memory.
template <class Element, int kN, int kCols, int kBands, int kPacked>
__device__ __forceinline__ void product_packed(float (&acc)[kBands][kN / 2],
                                               const uint32_t (&packed)[kBands][kPacked], uint32_t b_tile,
                                               int column, int b_offset = 0) {
  const int lane = int(threadIdx.x & 31);
  const uint32_t b_start = column_start(chunk_start<kCols>(b_tile, lane & 15, lane >> 4), column);
#pragma unroll
  for (int k = 0; k < kPacked / 4; ++k) {
    uint32_t a[kBands][4];
#pragma unroll
    for (int m = 0; m < kBands; ++m)
#pragma unroll
      for (int i = 0; i < 4; ++i) a[m][i] = packed[m][4 * k + i];
#pragma unroll
    for (int n = 0; n < kN / 16; ++n) {
      uint32_t b[4];
      ptx::ldmatrix_x4_trans(b, chunk_pair(b_start, n) + k * 16 * kCols * 2 + b_offset);
      multiply_fragment<Element>(acc, a, b, n);
    }
  }
}

// The same with A in shared memory: kK columns from column_a on of a tile with kColsA, rows from row_a on.
template <class Element, int kBands, int kK, int kColsA, int kN, int kCols>
__device__ __forceinline__ void product_shared(float (&acc)[kBands][kN / 2], uint32_t a_tile, int row_a,
                                               int column_a, uint32_t b_tile, int column, int a_offset = 0,
                                               int b_offset = 0) {
  const int lane = int(threadIdx.x & 31);
  const uint32_t a_start =
      column_start(chunk_start<kColsA>(a_tile, row_a + (lane & 15), lane >> 4), column_a);
  const uint32_t b_start = column_start(chunk_start<kCols>(b_tile, lane & 15, lane >> 4), column);
#pragma unroll
  for (int k = 0; k < kK / 16; ++k) {
    uint32_t a[kBands][4];
#pragma unroll
    for (int m = 0; m < kBands; ++m)
      ptx::ldmatrix_x4(a[m], chunk_pair(a_start, k) + m * 16 * kColsA * 2 + a_offset);
#pragma unroll
    for (int n = 0; n < kN / 16; ++n) {
      uint32_t b[4];
      ptx::ldmatrix_x4_trans(b, chunk_pair(b_start, n) + k * 16 * kCols * 2 + b_offset);
      multiply_fragment<Element>(acc, a, b, n);
    }
  }
}

// acc[16 x kN] += A^T B per band, A[kK x kColsA] and B[kK x kCols] rows in shared memory: of A the columns
// from column_a on, of B those from column_b on.
template <class Element, int kK, int kColsA, int kN, int kCols, int kBands>
__device__ __forceinline__ void product_tn(float (&acc)[kBands][kN / 2], uint32_t a_tile, int column_a,
                                           uint32_t b_tile, int column_b) {
  const int lane = int(threadIdx.x & 31);
  const uint32_t a_start =
      column_start(chunk_start<kColsA>(a_tile, (lane & 7) + ((lane >> 4) << 3), (lane >> 3) & 1), column_a);
  const uint32_t b_start = column_start(chunk_start<kCols>(b_tile, lane & 15, lane >> 4), column_b);
#pragma unroll
  for (int k = 0; k < kK / 16; ++k) {
    uint32_t a[kBands][4];
#pragma unroll
    for (int m = 0; m < kBands; ++m)
      ptx::ldmatrix_x4_trans(a[m], chunk_pair(a_start, m) + k * 16 * kColsA * 2);
#pragma unroll
    for (int n = 0; n < kN / 16; ++n) {
      uint32_t b[4];
      ptx::ldmatrix_x4_trans(b, chunk_pair(b_start, n) + k * 16 * kCols * 2);
      multiply_fragment<Element>(acc, a, b, n);
    }
  }
}

}  // namespace plab::ops::attention::sm80
