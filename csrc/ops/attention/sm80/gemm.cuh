// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "cuda/ptx/mma_sync.cuh"
#include "ops/attention/sm80/tiles.cuh"

// Matrix products of one warp by mma.sync: ldmatrix loads fragments from tiles in shared memory (tiles.cuh),
// accumulators stay in registers.
namespace plab::ops::attention::sm80 {

// Columns 16 n to 16 n + 15 of acc += A B in each band: one fragment of A per band, and one of B for all bands.
template <class Element, int kBands, int kRegs>
__device__ __forceinline__ void multiply_fragment(float (&acc)[kBands][kRegs], const uint32_t (&a)[kBands][4],
                                                  const uint32_t (&b)[4], int n) {
#pragma unroll
  for (int m = 0; m < kBands; ++m) {
    float* d = acc[m] + 8 * n;
    ptx::mma_m16n8k16<Element>(d[0], d[1], d[2], d[3], a[m], b[0], b[1]);
    ptx::mma_m16n8k16<Element>(d[4], d[5], d[6], d[7], a[m], b[2], b[3]);
  }
}

// The products below take tiles and offsets. A second tile at a constant distance behind the first is read with
// the first tile's addresses, so a thread holds these addresses once.
//
// acc[16 x kN] += A[16 x kCols] B[kN x kCols]ᵀ for kBands bands of 16 rows that share every B fragment; both
// row-major in shared memory, this warp's A rows start at row_a.
template <class Element, int kBands, int kN, int kCols>
__device__ __forceinline__ void product_nt(float (&acc)[kBands][kN / 2], uint32_t a_tile, int row_a,
                                           uint32_t b_tile, int a_offset = 0, int b_offset = 0) {
  const int lane = int(threadIdx.x & 31);
  const uint32_t a_start = chunk_start<kCols>(a_tile, row_a + (lane & 15), lane >> 4);
  const uint32_t b_start = chunk_start<kCols>(b_tile, (lane & 7) + ((lane >> 4) << 3), (lane >> 3) & 1);
#pragma unroll
  for (int k = 0; k < kCols / 16; ++k) {
    uint32_t a[kBands][4];
#pragma unroll
    for (int m = 0; m < kBands; ++m)
      ptx::ldmatrix_x4(a[m], chunk_pair(a_start, k) + m * 16 * kCols * 2 + a_offset);
#pragma unroll
    for (int n = 0; n < kN / 16; ++n) {
      uint32_t b[4];
      ptx::ldmatrix_x4(b, chunk_pair(b_start, k) + n * 16 * kCols * 2 + b_offset);
      multiply_fragment<Element>(acc, a, b, n);
    }
  }
}

// acc[16 x kCols] += A[16 x kK] B[kK x kCols] per band: A is an accumulator rounded to 16 bits on the way, B
// row-major in shared memory.
template <class Element, int kBands, int kK, int kCols>
__device__ __forceinline__ void product_nn(float (&acc)[kBands][kCols / 2], const float (&s)[kBands][kK / 2],
                                           uint32_t b_tile) {
  const int lane = int(threadIdx.x & 31);
  const uint32_t b_start = chunk_start<kCols>(b_tile, lane & 15, lane >> 4);
#pragma unroll
  for (int k = 0; k < kK / 16; ++k) {
    uint32_t a[kBands][4];
#pragma unroll
    for (int m = 0; m < kBands; ++m) pack_operand<Element>(a[m], s[m], k);
#pragma unroll
    for (int n = 0; n < kCols / 16; ++n) {
      uint32_t b[4];
      ptx::ldmatrix_x4_trans(b, chunk_pair(b_start, n) + k * 16 * kCols * 2);
      multiply_fragment<Element>(acc, a, b, n);
    }
  }
}

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
