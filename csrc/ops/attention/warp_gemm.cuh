// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "cuda/ptx/mma_sync.cuh"
#include "ops/attention/softmax.cuh"

// Matrix products of one warp by mma.sync: ldmatrix loads fragments from tiles in shared memory, accumulators
// stay in registers.
//
// A tile: rows of kCols 16-bit elements, cut into 16-byte chunks; chunk c of row r is stored at c ^ (r % 8).
// The eight rows that one phase of ldmatrix reads then lie in eight different groups of banks.
namespace plab::ops::attention {

template <int kCols>
__device__ __forceinline__ uint32_t chunk_bytes(int row, int chunk) {
  return uint32_t(row * kCols * 2 + ((chunk ^ (row & 7)) << 4));
}

// The same chunk in two steps, for addresses in unrolled loops: `start` is chunk `odd` (0 or 1) of a row, and
// chunk odd + 2k of that row lies at chunk_pair(start, k). One XOR with a constant instead of a register per
// address.
template <int kCols>
__device__ __forceinline__ uint32_t chunk_start(uint32_t tile, int row, int odd) {
  return tile + uint32_t(row * kCols * 2 + ((odd ^ (row & 7)) << 4));
}
__device__ __forceinline__ uint32_t chunk_pair(uint32_t start, int k) {
  return (start ^ uint32_t((k & 3) << 5)) + uint32_t((k >> 2) * 128);
}

// The start of a range of columns in a row whose chunk_start is `start`. `column` is a multiple of the range's
// width. The width is a power of two, at least 16, so chunk_pair continues from there.
__device__ __forceinline__ uint32_t column_start(uint32_t start, int column) {
  return chunk_pair(start, column / 16);
}

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

}  // namespace plab::ops::attention
